# SPDX-License-Identifier: Apache-2.0
"""The last deployment to run is that of the head commit, whatever commits and clocks say."""

from pathlib import Path

import pytest

from faults.installation import FaultyInstallation, open_installation
from pipecd.proto.service import api_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LONG_AGO = "2020-01-01T00:00:00Z"
EVENT_WATCHER = """\
  eventWatcher:
    - matcher: {name: image}
      handler:
        type: GIT_UPDATE
        config: {replacements: [{file: values.yaml, yamlField: $.tag}]}
"""


async def queue_behind_a_running_deployment(installed: FaultyInstallation) -> str:
    """A push and a user's sync of its commit wait for a running deployment; returns the commit."""
    blocking = installed.push("cart", seconds=4)
    await installed.eventually(lambda: installed.running(blocking))
    commit = installed.push("cart")
    await installed.eventually(lambda: installed.deployment_of(commit))
    await installed.sync("cart")
    await installed.eventually(lambda: installed.count_is(commit, 2))
    return commit


async def test_a_commit_with_an_older_author_date_runs_last(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        initial = installed.push("cart")
        await installed.start_piped()
        await installed.eventually(lambda: installed.completed(initial))
        await queue_behind_a_running_deployment(installed)
        # As a rebase or a cherry-pick leaves it.
        head = installed.push("cart", GIT_AUTHOR_DATE=LONG_AGO, GIT_COMMITTER_DATE=LONG_AGO)
        await installed.eventually(lambda: installed.deployment_of(head))
        await installed.eventually(installed.all_completed)
        assert installed.runs()[-1].commit == head


async def test_a_force_push_back_runs_last(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        before = installed.push("cart")
        await installed.start_piped()
        await installed.eventually(lambda: installed.completed(before))
        await queue_behind_a_running_deployment(installed)
        installed.origin.git("reset", "--hard", "--quiet", before)
        await installed.eventually(lambda: installed.count_is(before, 2))
        await installed.eventually(installed.all_completed)
        assert installed.runs()[-1].commit == before


@pytest.mark.parametrize("seconds", [-60, -7200, 7200], ids=["-60s", "-2h", "+2h"])
async def test_a_push_after_the_clock_of_piped_was_stepped_is_deployed(
    tmp_path: Path, seconds: int
) -> None:
    async with open_installation(tmp_path) as installed:
        initial = installed.push("cart")
        piped = await installed.start_piped()
        await installed.eventually(lambda: installed.completed(initial))
        blocking = installed.push("cart", seconds=4)
        await installed.eventually(lambda: installed.running(blocking))
        first = installed.push("cart")
        await installed.eventually(lambda: installed.deployment_of(first))
        piped.step_clock(seconds)
        head = installed.push("cart")
        await installed.eventually(lambda: installed.deployment_of(head))
        await installed.eventually(installed.all_completed)
        assert installed.runs()[-1].commit == head
        # The next one too, with the clock as it was before.
        piped.step_clock(0)
        head = installed.push("cart")
        await installed.eventually(lambda: installed.completed(head))
        assert installed.runs()[-1].commit == head


async def register_event(installed: FaultyInstallation, value: str) -> None:
    async with installed.api() as api:
        await api.RegisterEvent(pb.RegisterEventRequest(name="image", data=value), timeout=10)


def tag(installed: FaultyInstallation) -> str:
    return installed.origin.git("show", "main:cart/values.yaml")


async def watch_events(installed: FaultyInstallation) -> None:
    installed.origin.git("config", "receive.denyCurrentBranch", "updateInstead")
    (installed.origin.path / "cart").mkdir()
    (installed.origin.path / "cart" / "values.yaml").write_text("tag: v0\n")
    installed.push("cart", more=EVENT_WATCHER)


async def test_an_event_is_not_overwritten_by_an_older_one_of_a_clock_that_was_ahead(
    tmp_path: Path,
) -> None:
    async with open_installation(tmp_path) as installed:
        await watch_events(installed)
        piped = await installed.start_piped()
        installed.replicas[0].step_clock(7200)
        await register_event(installed, "v1")
        installed.replicas[0].step_clock(0)
        await register_event(installed, "v2")
        await installed.eventually(lambda: installed.value_is(lambda: tag(installed), "tag: v2"))
        # A restarted piped reads the events again.
        await piped.kill()
        await piped.start()
        await register_event(installed, "v3")
        await installed.eventually(lambda: installed.value_is(lambda: tag(installed), "tag: v3"))


@pytest.mark.parametrize("seconds", [-7200, 7200], ids=["-2h", "+2h"])
async def test_a_piped_with_a_wrong_clock_handles_events(tmp_path: Path, seconds: int) -> None:
    async with open_installation(tmp_path) as installed:
        await watch_events(installed)
        piped = await installed.start_piped()
        piped.step_clock(seconds)
        await register_event(installed, "v1")
        await installed.eventually(lambda: installed.value_is(lambda: tag(installed), "tag: v1"))
        await register_event(installed, "v2")
        await installed.eventually(lambda: installed.value_is(lambda: tag(installed), "tag: v2"))
