# SPDX-License-Identifier: Apache-2.0
"""The sample of the guide about processes is deployed, stage by stage."""

import json
import re
from pathlib import Path
from typing import Any

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application
from pipecd.sdk import StageStatus
from plugins.process.testbed import Service

GUIDE = (Path(__file__).parents[3] / "docs" / "guide" / "process.md").read_text()


def block(language: str, containing: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.M | re.S)
    return next(each for each in found if containing in each)


async def test_the_sample_runs(service: Service) -> None:
    text = block("yaml", "kind: Application").replace("8000", str(service.port))
    read = read_application(text.encode(), file="app.pipecd.yaml", catalog=load_catalog())
    section: Any = read.spec.plugins["process"]
    service.input = json.loads(json.dumps(section["input"]))
    files = {"server.py": block("python", "ThreadingHTTPServer")}
    one, two = service.commit("one", files), service.commit("two", {**files, "new": ""})
    two.running = one
    assert (await one.run("PROCESS_SYNC")).status is StageStatus.SUCCESS
    assert await service.get() == (200, "shop at one\n")
    for index, stage in enumerate(read.spec.pipeline.stages):
        if stage.name == "ANALYSIS":
            continue
        options = json.loads(json.dumps(stage.with_))
        done = await two.run(stage.name, options, index=index)
        assert done.status is StageStatus.SUCCESS, done.message
    assert await service.get() == (200, "shop at two\n")
    assert len(await service.pids()) == 2
