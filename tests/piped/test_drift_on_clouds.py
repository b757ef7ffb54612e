# SPDX-License-Identifier: Apache-2.0
"""Live state, drift and plan preview of the clouds through a whole piped."""

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from pipecd.commandline.main import run
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.pipectl.cli import tree
from pipecd.proto.model.livestate_pb2 import ResourceState
from servers.amazon import Amazon
from servers.clouds import SECONDS, Cloud, add_application, open_cloud
from servers.control_plane import StartControlPlane
from servers.deployment_watch import DeploymentWatch
from servers.environment import matching_sync_state
from servers.origin import Origin
from servers.piped import killed_piped
from servers.polling import eventually


@pytest.fixture(params=["cloudrun", "ecs", "lambda"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path, amazon: Amazon) -> Cloud:
    return open_cloud(request.param, tmp_path, amazon, request)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("generation", ["first", "second"])
async def test_a_branch_is_previewed_and_a_change_by_others_is_a_drift_until_it_is_ignored(
    start_plane: StartControlPlane,
    origin: Origin,
    cloud: Cloud,
    generation: str,
    tmp_path: Path,
) -> None:
    origin.commit(cloud.files("v1"))
    async with start_plane() as plane:
        config, application = await add_application(plane, origin, cloud, generation, tmp_path)
        has_status = partial(matching_sync_state, plane, application)
        async with killed_piped(config, "--log-level=error"):
            done = await DeploymentWatch(plane).ended(1, seconds=SECONDS)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            await eventually(partial(has_status, SyncStatus.SYNCED), SECONDS)
            live = await eventually(partial(plane.live_state, application), SECONDS)
            branch, head = origin.branch(cloud.files("v2"))
            out = tmp_path / "preview.json"
            line = ["plan-preview", "--repo-remote-url", origin.remote, "--base-branch", "main"]
            line += ["--head-branch", branch, "--head-commit", head, "--out", str(out)]
            line += ["--address", plane.address, "--api-key", plane.api_key, "--insecure"]
            assert await asyncio.to_thread(run, tree(), line) == 0
        cloud.drift()
        async with killed_piped(config, "--log-level=error"):
            state = await eventually(partial(has_status, SyncStatus.OUT_OF_SYNC), SECONDS)
            ignoring = cloud.application(
                generation,
                driftDetection={"ignoreFields": [cloud.drifted_field]},
                trigger={"onCommit": {"disabled": True}},
            )
            origin.commit({"shop/app.pipecd.yaml": json.dumps(ignoring)})
            await eventually(partial(has_status, SyncStatus.SYNCED), SECONDS)
        assert len(await plane.completed_deployments()) == 1
    assert cloud.drifted in state.reason
    resources = live.application_live_state.resources
    assert sorted({each.resource_type for each in resources}) == sorted(cloud.live_kinds)
    assert {each.health_status for each in resources} == {ResourceState.HEALTHY}
    [previewed] = json.loads(out.read_text())["Applications"]
    text = json.dumps(previewed)
    assert "shop:v1" in text
    assert "shop:v2" in text
