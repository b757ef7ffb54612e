# SPDX-License-Identifier: Apache-2.0
"""A whole piped is killed amid a stage and another one goes on where it stood."""

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

OpenStand = Callable[[], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def piped_process(stand: Any) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """`piped run`, killed without warning at the end of the block."""
    config = stand.directory / "piped.yaml"
    config.write_text(
        f"""apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: {stand.registered.id}
  pipedKeyData: {base64.b64encode(stand.registered.key.encode()).decode()}
  apiAddress: {stand.address}
  syncInterval: 1s
  repositories:
    - {{repoID: site, remote: "file://{stand.remote}", branch: main}}
"""
    )
    command = "import sys; from pipecd.cli import piped_main; sys.argv[0] = 'piped'; piped_main()"
    flags = ["--insecure", "--admin-port", "0", "--config-file", str(config)]
    places = [f"--{what}-dir={stand.directory / what}" for what in ("tools", "workspace")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, "run", *flags, *places
    )
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def the_deployment(stand: Any, is_so: Callable[[Deployment], bool]) -> Deployment:
    """The one deployment that the piped triggered by itself, once it is so."""

    async def look() -> Deployment | None:
        listed = await stand.cases.deployment_reports.not_completed(by=stand.caller)
        return next(iter(listed), None)

    found = await stand.seen(look, lambda d: d is not None)
    return await stand.until(found.id, is_so)


@pytest.mark.slow
async def test_a_killed_piped_is_succeeded_by_the_next(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        trace = stand.directory / "trace"
        first = f"echo first >> {trace}"
        # The second script hangs until it is run once more.
        second = f"echo second >> {trace}; test $(grep -c second {trace}) = 2 || sleep 10"
        stand.push(
            "  pipeline:\n    stages:\n"
            f"      - {{name: SCRIPT_RUN, with: {{run: {first!r}}}}}\n"
            f"      - {{name: SCRIPT_RUN, with: {{run: {second!r}}}}}\n"
        )
        async with piped_process(stand):
            left = await the_deployment(
                stand, lambda d: stand.statuses(d)[1:] == ["SCRIPT_RUN RUNNING"] and trace.exists()
            )
            while "second" not in trace.read_text():  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.02)
        assert DeploymentStatus(left.status) is DeploymentStatus.RUNNING
        async with piped_process(stand):
            done = await stand.finished(left.id)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert trace.read_text().split() == ["first", "second", "second"]
