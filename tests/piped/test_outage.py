# SPDX-License-Identifier: Apache-2.0
"""A whole piped survives an outage of its control plane, a new key and being disabled."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import WAITING_CART


def has_deployed(plane: Any, *commits: str) -> Any:
    """A question for `eventually`: was each of the commits deployed once, and nothing else?"""

    async def ask() -> bool:
        listed = await plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        assert len(listed.items) <= len(commits)
        done = [
            deployment.trigger.commit.hash
            for deployment in listed.items
            if DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        ]
        return sorted(done) == sorted(commits)

    return ask


async def test_a_push_during_an_outage_is_deployed_after_it(
    start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with AsyncExitStack() as life, AsyncExitStack() as other:
        plane = await life.enter_async_context(start_plane())
        port = int(plane.address.rpartition(":")[2])
        piped = await other.enter_async_context(whole_piped(plane, origin.remote))
        await piped.add_application("cart")
        await eventually(has_deployed(plane, first), 20)
        await life.aclose()
        second = origin.commit({"cart/x": "1"})
        # Long enough for every part of piped to notice.
        await asyncio.sleep(0.05)
        async with start_plane(port=port) as back:
            await eventually(has_deployed(back, first, second), 40)


async def test_a_disabled_piped_logs_it_and_resumes_once_it_is_enabled(
    start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    with capture_logs() as logs:
        async with start_plane() as plane, whole_piped(plane, origin.remote) as piped:
            await piped.add_application("cart")
            pipeds = plane.cases.pipeds
            await eventually(has_deployed(plane, first), 20)
            await pipeds.disable(piped.id, by=plane.admin)
            second = origin.commit({"cart/x": "1"})
            rejected = "server rejects the key, retrying with backoff"
            await eventually(lambda: [e for e in logs if e["event"] == rejected], 20)
            await pipeds.enable(piped.id, by=plane.admin)
            await eventually(has_deployed(plane, first, second), 40)
    refused = [entry for entry in logs if entry["event"] == rejected]
    assert len(refused) == 1
    assert "the piped was disabled there or its key replaced" in refused[0]["error"]


async def test_a_piped_whose_key_is_replaced_reads_it_from_its_file(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
) -> None:
    key_file = tmp_path / "key"
    first = origin.commit({"cart/app.pipecd.yaml": WAITING_CART})
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, key_file=key_file) as piped,
    ):
        await piped.add_application("cart")
        pipeds = plane.cases.pipeds
        await eventually(has_deployed(plane, first), 20)
        key_file.write_text(await pipeds.add_key(piped.id, by=plane.admin))
        await pipeds.delete_old_keys(piped.id, by=plane.admin)
        second = origin.commit({"cart/x": "1"})
        await eventually(has_deployed(plane, first, second), 20)
