# SPDX-License-Identifier: Apache-2.0
"""Live state, reported by our piped to upstream's control plane, and by our plugin to upstream's piped."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.errors import NotFound
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.proto.service import web_pb2
from servers.directory_plugin import CART_ON_SHELF, piped_entry
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPED
from servers.upstream import UpstreamInstallation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

FILES = {"cart/app.pipecd.yaml": CART_ON_SHELF, "cart/files/a": "1"}


@pytest.fixture
def plugin(tmp_path: Path, free_port: Callable[[], int]) -> str:
    """The lines about the plugin in the file of a piped."""
    return f"  plugins: {json.dumps([piped_entry(tmp_path, free_port())])}\n"


def cart(piped_id: str) -> Application:
    targets = {"shelf": DeployTargets(deploy_targets=["here"])}
    return Application(name="cart", piped_id=piped_id, deploy_targets_by_plugin=targets)


def resources_of(snapshot: ApplicationLiveStateSnapshot) -> list[tuple[str, str, str]]:
    """The resources that a console of the second generation reads."""
    return [
        (r.name, r.deploy_target, r.health_description)
        for r in snapshot.application_live_state.resources
    ]


async def test_our_piped_reports_live_state_to_upstreams_control_plane(
    upstream_installation: UpstreamInstallation,
    plugin: str,
    free_port: Callable[[], int],
    tmp_path: Path,
) -> None:
    installation = upstream_installation
    installation.origin.commit(FILES)
    agent = await installation.register_piped("ours", plugin)
    flags = (f"--config-file={agent.config}", "--insecure=true", f"--admin-port={free_port()}")
    async with installation.running(OUR_PIPED, "run", *flags) as piped:
        await installation.eventually(lambda: installation.introduced(agent.id), piped)
        id_ = await installation.add_application("cart", cart(agent.id))

        async def is_in(status: SyncStatus) -> Any:
            request = web_pb2.GetApplicationRequest(application_id=id_)
            state = (
                await installation.admin.call("GetApplication", request)
            ).application.sync_state
            return state if state.status == status else None

        async def runs(content: str) -> Any:
            request = web_pb2.GetApplicationLiveStateRequest(application_id=id_)
            try:
                snapshot = (
                    await installation.admin.call("GetApplicationLiveState", request)
                ).snapshot
            except grpc.aio.AioRpcError:
                return None
            return snapshot if resources_of(snapshot) == [("a", "here", content)] else None

        await installation.eventually(lambda: is_in(SyncStatus.SYNCED), piped)
        await installation.eventually(lambda: runs("1"), piped)
        (tmp_path / "shelf" / "cart" / "a").write_text("by hand")
        state = await installation.eventually(lambda: is_in(SyncStatus.OUT_OF_SYNC), piped)
        assert "- a: by hand\n+ a: 1" in state.reason
        await installation.eventually(lambda: runs("by hand"), piped)


async def test_our_plugin_reports_live_state_to_upstreams_piped(
    open_installation: OpenInstallation,
    plugin: str,
    upstream_pipedv1: Path,
    free_port: Callable[[], int],
) -> None:
    async with open_installation() as installation:
        installation.origin.commit(FILES)
        agent = await installation.register_piped("theirs", plugin)
        id_ = await installation.add_application("cart", cart(agent.id))
        ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
        flags = (f"--config-file={agent.config}", "--insecure=true", *ports)
        async with installation.running(upstream_pipedv1, "run", *flags) as piped:

            async def runs() -> Any:
                try:
                    return resources_of(
                        await installation.cases.livestate.get(id_, by=installation.admin)
                    )
                except NotFound:
                    return None

            async def is_synced() -> bool:
                application = await installation.cases.applications.get(id_, by=installation.admin)
                return application.sync_state.status == SyncStatus.SYNCED

            assert await installation.eventually(runs, piped) == [("a", "here", "1")]
            await installation.eventually(is_synced, piped)
