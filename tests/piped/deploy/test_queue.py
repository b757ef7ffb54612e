# SPDX-License-Identifier: Apache-2.0
"""Pending deployments report what they wait for, and are superseded by later commits."""

from typing import Any

from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from servers.deployer import OpenStand

HANG = "  pipeline: {stages: [{name: ACT, with: {do: hang}}]}\n"


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


def waits_for(deployment: Any) -> str:
    return deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")


async def test_a_pending_deployment_reports_what_it_waits_for(open_stand: OpenStand) -> None:
    async with open_stand() as stand, stand.piped():
        commit = stand.push(HANG)
        first = await stand.trigger(commit, when=1_700_000_000)
        await stand.story.wait_for("act 0 begins")
        second = await stand.trigger(commit, when=1_700_000_001)
        reason = f"Waiting for deployment {first} of the same application to end"
        waiting = await stand.until(second, lambda d: waits_for(d) == reason)
        assert status(waiting) == "PENDING"
        stand.let_go("act 0")
        done = await stand.finished(second)
        assert (status(done), waits_for(done)) == ("SUCCESS", "")


async def test_only_the_last_of_many_queued_commits_is_deployed(
    open_stand: OpenStand,
) -> None:
    async with open_stand() as stand, stand.piped():
        first = await stand.trigger(stand.push(HANG), when=1_700_000_000)
        await stand.story.wait_for("act 0 begins")
        commits = [stand.push(HANG, code=str(n)) for n in range(3)]
        queued = [
            await stand.trigger(commit, when=1_700_000_001 + n) for n, commit in enumerate(commits)
        ]
        passed_over = [await stand.finished(id) for id in queued[:2]]
        assert [status(d) for d in passed_over] == ["CANCELLED", "CANCELLED"]
        last = f"Superseded by deployment {queued[2]} of the newer commit {commits[2][:7]}"
        assert passed_over[0].status_reason.startswith("Superseded by deployment ")
        assert passed_over[1].status_reason == last
        assert status(await stand.plane.deployment(first)) == "RUNNING"
        stand.let_go("act 0")
        assert status(await stand.finished(queued[2])) == "SUCCESS"
        assert stand.begun == ["act 0", "act 0"]


async def test_deployments_queued_while_piped_was_stopped_are_superseded(
    open_stand: OpenStand,
) -> None:
    async with open_stand() as stand:
        commits = [stand.push(HANG, code=str(n)) for n in range(3)]
        # A force push may bring a commit that was made before the ones it replaces.
        ids = [
            await stand.trigger(commit, when=1_700_000_001 + n) for n, commit in enumerate(commits)
        ]
        stand.let_go("act 0")
        async with stand.piped():
            done = [await stand.finished(id) for id in ids]
        assert [status(d) for d in done] == ["CANCELLED", "CANCELLED", "SUCCESS"]
        assert stand.begun == ["act 0"]
