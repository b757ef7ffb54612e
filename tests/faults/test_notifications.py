# SPDX-License-Identifier: Apache-2.0
"""Notifications about a deployment come in order, each of them once, whatever fault occurs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.installation import FaultyInstallation, open_installation
from pipecd.piped.notify.event import EventType
from servers.receivers import Receivers
from servers.web import Answer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOOK, OTHER_HOOK = "/hook", "/other"
CREATE = ("CreateDeployment", "CreateDeploymentInOrder")
COMPLETE = [
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_SUCCEEDED",
]  # fmt: skip


@pytest.fixture
def hooks() -> Iterator[Receivers]:
    server = Receivers()
    yield server
    server.close()


def notifications(hooks: Receivers) -> str:
    """Two receivers of everything about deployments."""
    routes = "".join(
        f"      - {{name: {name}, receiver: {name}, groups: [DEPLOYMENT, STAGE]}}\n"
        for name in ("one", "two")
    )
    return (
        f"  notifications:\n    routes:\n{routes}    receivers:\n"
        f"      - {{name: one, webhook: {{url: '{hooks.url(HOOK)}', signatureValue: s}}}}\n"
        f"      - {{name: two, webhook: {{url: '{hooks.url(OTHER_HOOK)}', signatureValue: s}}}}\n"
    )


def events(hooks: Receivers, commit: str, path: str = HOOK) -> list[str]:
    """The events that a receiver got about the deployment of a commit, in their order."""
    return [
        EventType(delivery.json["Type"]).name
        for delivery in hooks.at(path)
        if delivery.json["Metadata"]["deployment"]["trigger"]["commit"]["hash"] == commit
    ]


async def expect(
    installed: FaultyInstallation,
    hooks: Receivers,
    commit: str,
    expected: list[str],
    *,
    with_repetitions: bool = False,
) -> None:
    """Waits for the last of the expected events; all of them must be there, in this order.

    A piped that is killed at the moment of a delivery repeats that one.
    """
    for path in (HOOK, OTHER_HOOK):

        async def is_notified(path: str = path) -> bool:
            return expected[-1] in events(hooks, commit, path)

        await installed.eventually(is_notified, what=f"{expected[-1]} was not sent to {path}")
        received = events(hooks, commit, path)
        assert (list(dict.fromkeys(received)) if with_repetitions else received) == expected


def lose_responses(installed: FaultyInstallation, count: int) -> None:
    for rpc in CREATE:
        installed.calls.losing[rpc] = count


@pytest.mark.parametrize("lost", [1, 3, 1000])
async def test_in_order_although_the_response_to_the_creation_is_lost(
    tmp_path: Path, hooks: Receivers, lost: int
) -> None:
    async with open_installation(tmp_path) as installed:
        await installed.start_piped(rest=notifications(hooks))
        for _ in range(3):
            lose_responses(installed, lost)
            head = installed.push("cart")
            await expect(installed, hooks, head, COMPLETE)


async def test_in_order_although_piped_is_killed_before_it_notifies(
    tmp_path: Path, hooks: Receivers
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped(rest=notifications(hooks))
        await expect(installed, hooks, installed.push("cart"), COMPLETE)
        for _ in range(3):
            # The deployment is created, but this piped gets to know neither that nor the deployment.
            lose_responses(installed, 1000)
            installed.calls.holding.update({"GetDeployment", "ListNotCompletedDeployments"})
            head = installed.push("cart")
            await installed.eventually(lambda head=head: installed.deployment_of(head))
            await piped.kill()
            assert events(hooks, head) == []
            lose_responses(installed, 0)
            installed.calls.holding.clear()
            installed.calls.held.clear()
            piped = await installed.start_piped(rest=notifications(hooks))
            await expect(installed, hooks, head, COMPLETE)


@pytest.mark.parametrize("rpc", ["ReportDeploymentPlanned", "ReportDeploymentStatusChanged"])
async def test_in_order_although_piped_is_killed_while_it_reports(
    tmp_path: Path, hooks: Receivers, rpc: str
) -> None:
    async with open_installation(tmp_path) as installed:
        lose_responses(installed, 1)
        installed.calls.holding.add(rpc)
        head = installed.push("cart")
        piped = await installed.start_piped(rest=notifications(hooks))

        async def is_held() -> bool:
            return bool(installed.calls.held)

        await installed.eventually(is_held)
        await piped.kill()
        installed.calls.holding.clear()
        await installed.start_piped(rest=notifications(hooks))
        await expect(installed, hooks, head, COMPLETE, with_repetitions=True)


async def test_a_superseded_deployment_was_triggered_before(
    tmp_path: Path, hooks: Receivers
) -> None:
    async with open_installation(tmp_path) as installed:
        await installed.start_piped(rest=notifications(hooks))
        first = installed.push("cart", seconds=4)
        await installed.eventually(lambda: installed.running(first))
        lose_responses(installed, 3)
        second = installed.push("cart")
        await installed.eventually(lambda: installed.deployment_of(second))
        third = installed.push("cart")
        await expect(installed, hooks, third, COMPLETE)
        await expect(installed, hooks, second, ["DEPLOYMENT_TRIGGERED", "DEPLOYMENT_CANCELLED"])
        await expect(installed, hooks, first, COMPLETE)


async def test_in_order_after_a_restart_although_one_receiver_got_them_before(
    tmp_path: Path, hooks: Receivers
) -> None:
    async with open_installation(tmp_path) as installed:
        hooks.answers[OTHER_HOOK] = [Answer(status=503) for _ in range(100)]
        piped = await installed.start_piped(rest=notifications(hooks))
        head = installed.push("cart")

        async def is_notified() -> bool:
            return len(events(hooks, head)) == 4

        await installed.eventually(is_notified)
        await piped.kill()
        hooks.deliveries[:] = [each for each in hooks.deliveries if each.path == HOOK]
        hooks.answers.clear()
        await installed.start_piped(rest=notifications(hooks))
        await expect(installed, hooks, head, COMPLETE, with_repetitions=True)
