# SPDX-License-Identifier: Apache-2.0
"""`piped run` is killed again and again while it handles pushes."""

from collections import Counter
from pathlib import Path

import pytest

from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import GatedControlPlane
from servers.origin import Origin
from servers.piped import killed_piped, piped_config
from servers.polling import eventually
from servers.samples import WAITING_CART
from servers.trigger import OpenTrigger

# The calls during which piped is killed, one after the other.
KILLED_DURING = (
    "ListApplications",
    "CreateDeploymentInOrder",
    "ReportApplicationMostRecentDeployment",
    "ReportDeploymentPlanned",
    "ReportDeploymentCompleted",
)


def write_config(plane: GatedControlPlane, remote: str) -> Path:
    file = plane.directory / "piped.yaml"
    piped, rest = plane.piped, "  syncInterval: 1s\n"
    text = piped_config(piped.id, piped.key, address=plane.address, remote=remote, rest=rest)
    file.write_text(text)
    return file


@pytest.mark.timeout(180)
async def test_each_push_is_deployed_once_by_any_process(
    open_trigger: OpenTrigger, origin: Origin
) -> None:
    origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with open_trigger() as env:
        plane = env.plane
        await plane.piped.add_application("cart")
        config = write_config(plane, origin.remote)

        for call in KILLED_DURING:
            origin.commit({"cart/x": call})
            count = plane.gate.count(call)
            async with killed_piped(config):
                await eventually(lambda c=call, n=count: plane.gate.count(c) > n, 30)
        last = origin.commit({"cart/x": "the last one"})

        async def is_completed() -> bool:
            deployments = await plane.deployments()
            return all(DeploymentStatus(d.status).is_completed for d in deployments) and any(
                d.trigger.commit.hash == last for d in deployments
            )

        async with killed_piped(config):
            await eventually(is_completed, 60)
        deployments = await plane.deployments()
    counts = Counter(d.trigger.commit.hash for d in deployments)
    assert max(counts.values()) == 1
    statuses = {d.trigger.commit.hash: DeploymentStatus(d.status) for d in deployments}
    assert statuses[last] is DeploymentStatus.SUCCESS
    # A deployment may be cancelled because of a newer push, but none fails.
    assert set(statuses.values()) <= {DeploymentStatus.SUCCESS, DeploymentStatus.CANCELLED}
