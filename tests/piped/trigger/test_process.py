# SPDX-License-Identifier: Apache-2.0
"""`piped run` is killed again and again while it handles pushes."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.origin import Origin
from servers.piped import killed_piped, piped_config
from servers.polling import eventually
from servers.samples import WAITING_CART

# The calls at which piped is killed, one after the other.
AMID = (
    "ListApplications",
    "CreateDeployment",
    "ReportApplicationMostRecentDeployment",
    "ReportDeploymentPlanned",
    "ReportDeploymentCompleted",
)


def write_config(plane: Any, remote: str) -> Path:
    file = plane.directory / "piped.yaml"
    made, rest = plane.piped, "  syncInterval: 1s\n"
    text = piped_config(made.id, made.key, address=plane.address, remote=remote, rest=rest)
    file.write_text(text)
    return file


@pytest.mark.timeout(180)
async def test_each_push_is_deployed_once_by_any_process(open_scene: Any, origin: Origin) -> None:
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with open_scene() as scene:
        plane = scene.plane
        await plane.piped.add_application("cart")
        config = write_config(plane, origin.remote)

        async def made() -> list[Deployment]:
            wanted = DeploymentFilter(project="shop")
            return list((await plane.cases.deployments.list(wanted, by=plane.admin)).items)

        for amid in AMID:
            origin.commit({"cart/x": amid})
            seen = plane.gate.count(amid)
            async with killed_piped(config):
                await eventually(lambda a=amid, n=seen: plane.gate.count(a) > n, 30)
        last = origin.commit({"cart/x": "the last one"})

        async def is_over() -> bool:
            found = await made()
            return all(DeploymentStatus(d.status).is_completed for d in found) and any(
                d.trigger.commit.hash == last for d in found
            )

        async with killed_piped(config):
            await eventually(is_over, 60)
        found = await made()
    twice = Counter(d.trigger.commit.hash for d in found)
    assert max(twice.values()) == 1
    ends = {d.trigger.commit.hash: DeploymentStatus(d.status) for d in found}
    assert ends[last] is DeploymentStatus.SUCCESS
    # One that a newer push made pointless may have been cancelled, but none failed.
    assert set(ends.values()) <= {DeploymentStatus.SUCCESS, DeploymentStatus.CANCELLED}
