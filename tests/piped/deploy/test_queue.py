# SPDX-License-Identifier: Apache-2.0
"""Pending deployments report what they wait for, and are superseded by later commits."""

from typing import Any

from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from servers.deployer import OpenDeployer
from servers.polling import eventually

HANG = "  pipeline: {stages: [{name: ACT, with: {do: hang}}]}\n"


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


def waits_for(deployment: Any) -> str:
    return deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")


async def test_a_pending_deployment_reports_what_it_waits_for(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        commit = setup.push(HANG)
        first = await setup.trigger(commit, when=1_700_000_000)
        await setup.trace.wait_for("act 0 begins")
        second = await setup.trigger(commit, when=1_700_000_001)
        reason = f"Waiting for deployment {first} of the same application to end"
        waiting = await setup.until(second, lambda d: waits_for(d) == reason)
        assert status(waiting) == "PENDING"
        setup.release_stage("act 0")
        done = await setup.finished(second)
        assert (status(done), waits_for(done)) == ("SUCCESS", "")


async def test_only_the_last_of_many_queued_commits_is_deployed(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped():
        first = await setup.trigger(setup.push(HANG), when=1_700_000_000)
        await setup.trace.wait_for("act 0 begins")
        commits = [setup.push(HANG, code=str(n)) for n in range(3)]
        queued = [
            await setup.trigger(commit, when=1_700_000_001 + n) for n, commit in enumerate(commits)
        ]
        passed_over = [await setup.finished(id) for id in queued[:2]]
        assert [status(d) for d in passed_over] == ["CANCELLED", "CANCELLED"]
        last = f"Superseded by deployment {queued[2]} of the newer commit {commits[2][:7]}"
        assert passed_over[0].status_reason.startswith("Superseded by deployment ")
        assert passed_over[1].status_reason == last
        assert status(await setup.plane.deployment(first)) == "RUNNING"
        setup.release_stage("act 0")
        assert status(await setup.finished(queued[2])) == "SUCCESS"
        assert setup.started == ["act 0", "act 0"]


async def test_deployments_queued_while_piped_was_stopped_are_superseded(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        commits = [setup.push(HANG, code=str(n)) for n in range(3)]
        # A force push may bring a commit that was made before the ones it replaces.
        ids = [
            await setup.trigger(commit, when=1_700_000_001 + n) for n, commit in enumerate(commits)
        ]
        setup.release_stage("act 0")
        async with setup.piped():
            done = [await setup.finished(id) for id in ids]
        assert [status(d) for d in done] == ["CANCELLED", "CANCELLED", "SUCCESS"]
        assert setup.started == ["act 0"]


async def test_a_superseded_deployment_is_over_before_the_next_poll(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped() as deployer:
        gate, cache = setup.plane.gate, deployer.context.deployments
        first = await setup.trigger(setup.push(HANG), when=1_700_000_000)
        await setup.trace.wait_for("act 0 begins")
        gate.close("ReportDeploymentCompleted")
        commits = [setup.push(HANG, code=str(n)) for n in range(2)]
        superseded, last = [
            await setup.trigger(commit, when=1_700_000_001 + n) for n, commit in enumerate(commits)
        ]

        def not_completed() -> frozenset[str]:
            return cache.not_completed_of(setup.application.id)

        await eventually(lambda: len(not_completed()) == 3)
        gate.close("ListDeploymentsInOrder")
        del gate.refusals["ReportDeploymentCompleted"]
        await eventually(lambda: superseded not in not_completed())
        assert not_completed() == {first, last}
        gate.open()
        setup.release_stage("act 0")
        assert status(await setup.finished(last)) == "SUCCESS"
