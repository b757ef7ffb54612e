# SPDX-License-Identifier: Apache-2.0
"""Deployments that wait say for what, and those that became pointless are passed over."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from pipecd.model.deployment import WAITING_FOR, DeploymentStatus

OpenStand = Callable[[], AbstractAsyncContextManager[Any]]

HANG = "  pipeline: {stages: [{name: ACT, with: {do: hang}}]}\n"


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


def waits_for(deployment: Any) -> str:
    return deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")


async def test_what_waits_says_for_what_until_it_is_planned(open_stand: OpenStand) -> None:
    async with open_stand() as stand, stand.piped():
        commit = stand.push(HANG)
        first = await stand.trigger(commit, when=1_700_000_000)
        await stand.told("act 0 begins")
        second = await stand.trigger(commit, when=1_700_000_001)
        reason = f"Waiting for deployment {first} of the same application to end"
        waiting = await stand.until(second, lambda d: waits_for(d) == reason)
        assert status(waiting) == "PENDING"
        stand.let_go("act 0")
        done = await stand.finished(second)
        assert (status(done), waits_for(done)) == ("SUCCESS", "")


async def test_of_many_commits_behind_a_deployment_only_the_last_is_deployed(
    open_stand: OpenStand,
) -> None:
    async with open_stand() as stand, stand.piped():
        first = await stand.trigger(stand.push(HANG), when=1_700_000_000)
        await stand.told("act 0 begins")
        commits = [stand.push(HANG, code=str(n)) for n in range(3)]
        queued = [
            await stand.trigger(commit, when=1_700_000_001 + n) for n, commit in enumerate(commits)
        ]
        passed_over = [await stand.finished(id) for id in queued[:2]]
        assert [status(d) for d in passed_over] == ["CANCELLED", "CANCELLED"]
        last = f"Superseded by deployment {queued[2]} of the newer commit {commits[2][:7]}"
        assert passed_over[0].status_reason.startswith("Superseded by deployment ")
        assert passed_over[1].status_reason == last
        assert status(await stand.deployment(first)) == "RUNNING"
        stand.let_go("act 0")
        assert status(await stand.finished(queued[2])) == "SUCCESS"
        assert stand.begun == ["act 0", "act 0"]


async def test_what_piled_up_while_no_piped_was_there_is_passed_over(open_stand: OpenStand) -> None:
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
