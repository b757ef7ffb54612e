# SPDX-License-Identifier: Apache-2.0
"""The samples of the guide about stages run, with shorter durations."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application
from pipecd.plugins.analysis.plugin import AnalysisPlugin
from pipecd.plugins.scriptrun.plugin import ScriptRunPlugin
from pipecd.plugins.wait.plugin import WaitPlugin
from pipecd.plugins.waitapproval.plugin import WaitApprovalPlugin
from pipecd.sdk import PluginEntry, StageCommandKind, StageStatus
from pipecd.sdk.testing import StageBench

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "stages.md").read_text()
SAMPLES = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.M | re.S)
APPLICATIONS = [sample for sample in SAMPLES if "kind: Application\n" in sample]
TEMPLATES = [sample for sample in SAMPLES if "kind: AnalysisTemplate\n" in sample]
PLUGINS = {
    "ANALYSIS": AnalysisPlugin,
    "SCRIPT_RUN": ScriptRunPlugin,
    "WAIT": WaitPlugin,
    "WAIT_APPROVAL": WaitApprovalPlugin,
}


def shortened(text: str) -> str:
    """Returns a sample with short durations and intervals."""
    text = re.sub(r"(duration: )\w+", r"\g<1>200ms", text)
    return re.sub(r"(interval: )\w+", r"\g<1>40ms", text)


@asynccontextmanager
async def healthy_server() -> AsyncGenerator[str, None]:
    """Serves one good point for every query to Prometheus, and status 200."""
    data = {"status": "success", "data": {"result": [{"values": [[0, "0"]]}]}}
    body = json.dumps(data).encode()
    head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(1 << 16):
            writer.write(head + body)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def put_files(directory: Path, sample: str) -> None:
    """Writes the scripts of a sample and the analysis templates of the repository."""
    for script in re.findall(r"\./([\w-]+\.sh)", sample):
        (directory / script).write_text('#!/bin/sh\necho "$0 $*"\n')
        (directory / script).chmod(0o755)
    (directory / ".pipe").mkdir()
    (directory / ".pipe" / "analysis.yaml").write_text(shortened(TEMPLATES[0]))


def test_the_guide_has_a_sample_of_every_stage() -> None:
    named = set(re.findall(r"- name: (\w+)", "".join(APPLICATIONS)))
    assert named == set(PLUGINS)


@pytest.mark.parametrize("sample", APPLICATIONS, ids=range(1, len(APPLICATIONS) + 1))
async def test_the_stages_of_a_sample_succeed(sample: str, tmp_path: Path) -> None:
    put_files(tmp_path, sample)
    async with healthy_server() as url, asyncio.timeout(30):
        text = shortened(sample).replace("https://shop.example.com", url)
        spec = read_application(text, file="app.pipecd.yaml", catalog=load_catalog()).spec
        provider = {"name": "prometheus", "type": "PROMETHEUS", "config": {"address": url}}
        for index, stage in enumerate(spec.pipeline.stages):
            settings: dict[str, Any] = {}
            if stage.name == "ANALYSIS":
                settings = {"analysisProviders": [provider]}
            entry = PluginEntry(stage.name, settings)
            bench = StageBench(PLUGINS[stage.name](), tmp_path, entry, config=text)
            for user in ("alice", "carol"):
                bench.host.tell(StageCommandKind.APPROVE, user)
            result = await bench.run(stage.name, stage.with_, index=index)
            assert result.status is StageStatus.SUCCESS, bench.host.lines
