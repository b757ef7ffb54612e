# SPDX-License-Identifier: Apache-2.0
"""The stages WAIT and WAIT_APPROVAL resume after piped was killed."""

import time

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied
from plugins.stages.conftest import OpenScene
from servers.control_plane import stage_statuses

pytestmark = pytest.mark.slow

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: shop
  pipeline:
    stages:
      - {stage}
"""


async def test_a_wait_resumes_after_piped_was_killed(open_scene: OpenScene) -> None:
    async with open_scene() as scene:
        async with scene.piped(is_killed=True):
            commit = scene.push(APP.format(stage="{name: WAIT, with: {duration: 8s}}"))
            begun = time.time()
            deployment, stage = await scene.running(commit, "WAIT")
            await scene.deployment(commit, lambda d: "startTime" in d.stages[0].metadata)
        async with scene.piped():
            done = await scene.completed(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        lines = await scene.log_lines(deployment, stage)
        assert "Resuming the wait after a restart" in lines
        assert lines[-1] == "Waited for 8s"
        started = int(done.stages[0].metadata["startTime"])
        assert begun - 1 <= started
        assert done.stages[0].completed_at - started >= 8
        again = next(line for line in lines[1:] if line.startswith("Waiting for"))
        assert again != lines[0], "only the remaining time is waited for"


async def test_approvals_before_a_restart_of_piped_count(open_scene: OpenScene) -> None:
    stage = "{name: WAIT_APPROVAL, with: {approvers: [ann, bob], minApproverNum: 2}}"
    async with open_scene() as scene:
        async with scene.piped(is_killed=True):
            commit = scene.push(APP.format(stage=stage))
            deployment, stage = await scene.running(commit, "WAIT_APPROVAL")
            with pytest.raises(Denied, match="not in the approver list: ann, bob"):
                await scene.plane.cases.deployments.approve(
                    deployment.id, stage.id, by=scene.user("eve")
                )
            await scene.plane.cases.deployments.approve(
                deployment.id, stage.id, by=scene.user("ann")
            )
            key = "pipecd/stage-approved-users"
            await scene.deployment(commit, lambda d: d.stages[0].metadata.get(key) == "ann")
        async with scene.piped():
            await scene.plane.cases.deployments.approve(
                deployment.id, stage.id, by=scene.user("bob")
            )
            done = await scene.completed(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert done.stages[0].metadata[key] == "ann, bob"
        assert (await scene.log_lines(done, stage))[-1] == "Approved by: ann, bob"


async def test_a_v0_approval_has_its_own_timeout(open_scene: OpenScene) -> None:
    app = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: shop
  input: {autoRollback: false}
  pipeline:
    stages:
      - name: WAIT_APPROVAL
        with: {timeout: 1s}
"""
    async with open_scene() as scene, scene.piped():
        done = await scene.completed(scene.push(app))
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        assert stage_statuses(done) == ["WAIT_APPROVAL FAILURE"]
        lines = await scene.log_lines(done, done.stages[0])
        assert lines == ["Waiting for 1 approval from: anyone", "Timed out after 1s"]
