# SPDX-License-Identifier: Apache-2.0
"""The example of the guide works as written."""

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.control_plane import StartControlPlane

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "webhooks.md"


async def run_example(address: str, secret: str) -> tuple[int | None, str]:
    example = re.search(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    assert example is not None
    process = await asyncio.create_subprocess_exec(
        "sh",
        "-euc",
        example[1],
        env={**os.environ, "ADDRESS": address, "SECRET": secret},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("openssl")), reason="no curl")
async def test_the_example_of_the_guide_wakes_a_piped(start_plane: StartControlPlane) -> None:
    async with start_plane() as plane:
        cases = plane.running.cases
        made = await cases.pipeds.register("dev", "", by=plane.admin)
        site = ApplicationGitRepository(
            id="site", remote="https://git.example.com/shop/site", branch="main"
        )
        meta = ReportPipedMetaRequest(repositories=[site], config="{}")
        await cases.pipeds.report_meta(meta, by=PipedCaller("demo", made.id))
        await cases.webhooks.rotate(by=plane.admin)
        (secret,) = await cases.webhooks.secrets_of("demo")
        address = f"http://{plane.address}/webhooks/demo"
        assert await run_example(address, secret) == (0, '{"message":"accepted"}')
        settings = await cases.webhooks.settings(by=plane.admin)
        assert settings is not None
        assert settings.last is not None
        assert settings.last.woken == 1
        code, output = await run_example(address, "wrong")
        assert (code != 0, output) == (True, '{"message":"invalid signature"}')
