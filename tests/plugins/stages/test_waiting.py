# SPDX-License-Identifier: Apache-2.0
"""Waiting, for time and for people, goes on where a killed piped left off."""

import time
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied

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


async def test_a_killed_piped_does_not_wait_anew(installation: Any) -> None:
    async with installation() as own:
        async with own.piped() as piped:
            commit = own.push(APP.format(stage="{name: WAIT, with: {duration: 8s}}"))
            begun = time.time()
            found, stage = await own.running(commit, "WAIT")
            await own.deployment(commit, lambda d: "startTime" in d.stages[0].metadata)
            await piped.end()
        async with own.piped():
            done = await own.finished(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        lines = await own.lines(found, stage)
        assert "Resuming the wait after a restart" in lines
        assert lines[-1] == "Waited for 8s"
        started = int(done.stages[0].metadata["startTime"])
        assert begun - 1 <= started
        assert done.stages[0].completed_at - started >= 8
        again = next(line for line in lines[1:] if line.startswith("Waiting for"))
        assert again != lines[0], "only the rest is waited for"


async def test_enough_people_must_approve_whatever_happens_to_piped(installation: Any) -> None:
    stage = "{name: WAIT_APPROVAL, with: {approvers: [ann, bob], minApproverNum: 2}}"
    async with installation() as own:
        async with own.piped() as piped:
            commit = own.push(APP.format(stage=stage))
            found, stage = await own.running(commit, "WAIT_APPROVAL")
            with pytest.raises(Denied, match="not in the approver list: ann, bob"):
                await own.cases.deployments.approve(found.id, stage.id, by=own.person("eve"))
            await own.cases.deployments.approve(found.id, stage.id, by=own.person("ann"))
            key = "pipecd/stage-approved-users"
            await own.deployment(commit, lambda d: d.stages[0].metadata.get(key) == "ann")
            await piped.end()
        async with own.piped():
            await own.cases.deployments.approve(found.id, stage.id, by=own.person("bob"))
            done = await own.finished(commit)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert done.stages[0].metadata[key] == "ann, bob"
        assert (await own.lines(done, stage))[-1] == "Approved by: ann, bob"


async def test_an_older_file_gives_people_its_own_time(installation: Any) -> None:
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
    async with installation() as own, own.piped():
        done = await own.finished(own.push(app))
        assert DeploymentStatus(done.status) is DeploymentStatus.FAILURE
        assert own.statuses(done) == ["WAIT_APPROVAL FAILURE"]
        lines = await own.lines(done, done.stages[0])
        assert lines == ["Waiting for 1 approval(s) from: anyone", "Timed out after 1s"]
