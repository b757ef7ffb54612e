# SPDX-License-Identifier: Apache-2.0
"""`piped run` is killed for real, again and again, amid what it does about each push."""

import asyncio
import base64
import sys
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pipecd.controlplane.stores.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  pipeline:
    stages:
      - {name: WAIT, with: {duration: 1ms}}
"""
# The calls at which piped is killed, one after the other.
AMID = (
    "ListApplications",
    "CreateDeployment",
    "ReportApplicationMostRecentDeployment",
    "ReportDeploymentPlanned",
    "ReportDeploymentCompleted",
)


@asynccontextmanager
async def piped_process(plane: Any, remote: str) -> AsyncGenerator[None]:
    """`piped run`, killed without warning at the end of the block."""
    config = plane.directory / "piped.yaml"
    config.write_text(
        f"""apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: shop
  pipedID: {plane.registered.id}
  pipedKeyData: {base64.b64encode(plane.registered.key.encode()).decode()}
  apiAddress: {plane.address}
  syncInterval: 1s
  repositories:
    - {{repoID: site, remote: "{remote}", branch: main}}
"""
    )
    command = "import sys; from pipecd.cli import piped_main; sys.argv[0] = 'piped'; piped_main()"
    flags = ["--insecure", "--admin-port", "0", "--config-file", str(config)]
    places = [f"--{what}-dir={plane.directory / what}" for what in ("tools", "workspace")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, "run", *flags, *places
    )
    try:
        yield
    finally:
        process.kill()
        await process.wait()


@pytest.mark.timeout(180)
async def test_each_push_is_deployed_once_by_whoever_is_alive(
    open_scene: Any, origin: Any, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": APP})
    async with open_scene() as scene:
        plane = scene.plane
        await plane.add_application("cart")

        async def made() -> list[Deployment]:
            wanted = DeploymentFilter(project="shop")
            return list((await plane.cases.deployments.listed(wanted, by=plane.admin)).items)

        for amid in AMID:
            origin.commit({"cart/x": amid})
            seen = plane.gate.count(amid)
            async with piped_process(plane, origin.remote):
                await eventually(lambda a=amid, n=seen: plane.gate.count(a) > n, 30)
        last = origin.commit({"cart/x": "the last one"})

        async def is_over() -> bool:
            found = await made()
            return all(DeploymentStatus(d.status).is_completed for d in found) and any(
                d.trigger.commit.hash == last for d in found
            )

        async with piped_process(plane, origin.remote):
            await eventually(is_over, 60)
        found = await made()
    twice = Counter(d.trigger.commit.hash for d in found)
    assert max(twice.values()) == 1
    ends = {d.trigger.commit.hash: DeploymentStatus(d.status) for d in found}
    assert ends[last] is DeploymentStatus.SUCCESS
    # One that a newer push made pointless may have been cancelled, but none failed.
    assert set(ends.values()) <= {DeploymentStatus.SUCCESS, DeploymentStatus.CANCELLED}
