# SPDX-License-Identifier: Apache-2.0
"""Deliveries arrive in order, are retried after errors, and never delay other receivers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from pipecd.config.piped_notifications import DiscordSpec, WebhookSpec
from pipecd.model.backoff import Backoff
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.outbox import (
    Delivery,
    NotificationMetrics,
    Outbox,
    Receiver,
    RetryAfter,
    RetryPolicy,
)
from pipecd.piped.notify.receivers.discord import DiscordReceiver
from pipecd.piped.notify.receivers.webhook import WebhookReceiver
from pipecd.piped.notify.template import MessageRenderer
from pipecd.proto.model.notification_pb2 import NotificationEventPipedStarted
from servers.polling import eventually
from servers.receivers import DISCORD, WEBHOOK, Answer, Receivers

# Nothing is given up because the machine is busy.
QUICK = RetryPolicy(backoff=Backoff(0.01, 0.05), shutdown_backoff=0.01)


def event(name: str = "dev") -> NotificationEvent:
    return NotificationEvent(
        EventType.PIPED_STARTED, NotificationEventPipedStarted(id="p", name=name)
    )


@dataclass
class TrackedOutbox:
    """An outbox, and the ids of the deliveries that have left it."""

    outbox: Outbox
    done: list[str] = field(default_factory=list[str])

    def put(self, *names: str) -> None:
        for name in names:
            self.outbox.put(Delivery(event(name)))


def new_outbox(receiver: Receiver, name: str = "team", **settings: Any) -> TrackedOutbox:
    done: list[str] = []
    retry = settings.pop("retry", QUICK)
    return TrackedOutbox(Outbox(name, receiver, on_done=done.append, retry=retry, **settings), done)


@asynccontextmanager
async def delivering(*outboxes: TrackedOutbox) -> AsyncGenerator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each.outbox.run()) for each in outboxes]
        yield
        for each in outboxes:
            each.outbox.close()
        await asyncio.wait(tasks, timeout=5)
        for task in tasks:
            task.cancel()


@asynccontextmanager
async def webhook(receivers: Receivers, path: str = WEBHOOK) -> AsyncGenerator[WebhookReceiver]:
    async with httpx2.AsyncClient() as client:
        yield WebhookReceiver(WebhookSpec(url=receivers.url(path)), client)


def names(receivers: Receivers, path: str = WEBHOOK) -> list[str]:
    return [delivery.json["Metadata"]["name"] for delivery in receivers.at(path)]


async def test_deliveries_arrive_in_order(receivers: Receivers) -> None:
    async with webhook(receivers) as receiver:
        team = new_outbox(receiver)
        async with delivering(team):
            team.put(*"abc")
    assert names(receivers) == ["a", "b", "c"]
    assert len(team.done) == 3
    assert team.outbox.pending == 0


@pytest.mark.parametrize("status", [500, 502, 503, 429])
async def test_transient_errors_are_retried(receivers: Receivers, status: int) -> None:
    receivers.answers[WEBHOOK] = [Answer(status), Answer(status)]
    async with webhook(receivers) as receiver:
        team = new_outbox(receiver)
        async with delivering(team):
            team.put("a", "b")
    assert names(receivers) == ["a", "a", "a", "b"]


@pytest.mark.parametrize("status", [400, 401, 404, 410])
async def test_permanent_errors_are_not_retried(receivers: Receivers, status: int) -> None:
    receivers.answers[WEBHOOK] = [Answer(status)]
    async with webhook(receivers) as receiver:
        team = new_outbox(receiver)
        with capture_logs() as logs:
            async with delivering(team):
                team.put("a", "b")
    assert names(receivers) == ["a", "b"]
    assert [line["event"] for line in logs] == ["notification was not delivered"]
    assert len(team.done) == 2


async def test_deliveries_are_counted(receivers: Receivers) -> None:
    receivers.answers[WEBHOOK] = [Answer(503), Answer(200), Answer(404)]
    registry = CollectorRegistry()

    def counted(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"receiver": "team", **labels})

    async with webhook(receivers) as receiver:
        team = new_outbox(receiver, max_queued=3, metrics=NotificationMetrics(registry))
        assert counted("pipecd_notifications_total", result="sent") == 0
        team.put("dropped", "a", "b", "c")
        assert counted("pipecd_notifications_waiting") == 3
        async with delivering(team):
            pass
    assert counted("pipecd_notifications_waiting") == 0
    assert counted("pipecd_notifications_total", result="sent") == 2
    # One was refused, and one dropped before.
    assert counted("pipecd_notifications_total", result="given up") == 2
    assert counted("pipecd_notification_retries_total") == 1


@pytest.mark.slow
async def test_retry_after_is_respected(receivers: Receivers) -> None:
    receivers.answers[WEBHOOK] = [Answer(429, headers={"Retry-After": "1"})]
    async with webhook(receivers) as receiver:
        team = new_outbox(receiver, retry=RetryPolicy(backoff=Backoff(0.01, 60)))
        async with asyncio.TaskGroup() as group:
            task = group.create_task(team.outbox.run())
            team.put("a")
            await eventually(lambda: team.done)
            task.cancel()
    first, second = receivers.at(WEBHOOK)
    assert second.at - first.at >= 1


async def test_deliveries_to_an_unavailable_receiver_are_given_up_one_by_one() -> None:
    tried: list[str] = []

    class UnavailableReceiver:
        async def send(self, delivery: Delivery) -> None:
            tried.append(str(delivery.event.metadata.name))  # type: ignore[attr-defined]
            if tried[-1] == "a":
                raise Unavailable("not available")

    team = new_outbox(
        UnavailableReceiver(), retry=RetryPolicy(give_up_after=0.1, backoff=Backoff(0.001, 0.001))
    )
    with capture_logs() as logs:
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            task = group.create_task(team.outbox.run())
            team.put("a", "b")
            await eventually(lambda: len(team.done) == 2)
            task.cancel()
    assert tried.count("a") > 2
    assert tried[-1] == "b"
    assert logs[-1] == {
        "event": "notification was not delivered",
        "log_level": "warning",
        "receiver": "team",
        "event_type": "PIPED_STARTED",
        "error": "not available",
    }


async def test_a_hanging_receiver_delays_no_other(receivers: Receivers) -> None:
    receivers.hanging.add("/hangs")
    async with webhook(receivers, "/hangs") as hanging, webhook(receivers) as well:
        # However long the others take, it hangs for longer.
        stuck, team = new_outbox(hanging, retry=RetryPolicy(attempt_timeout=60)), new_outbox(well)
        async with asyncio.TaskGroup() as group:
            stuck.put("a")
            tasks = [group.create_task(each.outbox.run()) for each in (stuck, team)]
            await eventually(lambda: receivers.at("/hangs"))
            team.put(*"abcdefgh")
            await eventually(lambda: len(team.done) == 8)
            for task in tasks:
                task.cancel()
    assert not stuck.done
    assert names(receivers) == list("abcdefgh")


async def test_a_hanging_attempt_times_out_and_is_retried(receivers: Receivers) -> None:
    receivers.hanging.add("/hangs")
    async with webhook(receivers, "/hangs") as hanging:
        stuck = new_outbox(
            hanging, retry=RetryPolicy(attempt_timeout=0.05, backoff=Backoff(0.01, 0.01))
        )
        with capture_logs() as logs:
            async with asyncio.TaskGroup() as group:
                task = group.create_task(stuck.outbox.run())
                stuck.put("a")
                await eventually(lambda: len(receivers.at("/hangs")) > 2)
                task.cancel()
    assert {line["event"] for line in logs} == {"notification failed, retrying"}
    assert {line["error"] for line in logs} == {"no response within 0.05 seconds"}


async def test_a_full_queue_drops_the_oldest_and_logs_it(receivers: Receivers) -> None:
    async with webhook(receivers) as receiver:
        team = new_outbox(receiver, max_queued=3)
        with capture_logs() as logs:
            team.put(*"abcdefgh")
            assert team.outbox.pending == 3
            async with delivering(team):
                pass
    assert names(receivers) == ["f", "g", "h"]
    assert [(line["event"], line.get("count")) for line in logs] == [
        ("notification queue is full, dropping the oldest", None),
        ("notifications were dropped", 5),
    ]
    assert len(team.done) == 8


async def test_pending_deliveries_are_retried_at_once_during_shutdown(receivers: Receivers) -> None:
    receivers.answers[WEBHOOK] = [Answer(503)]
    async with webhook(receivers) as receiver:
        team = new_outbox(
            receiver, retry=RetryPolicy(backoff=Backoff(30, 60), shutdown_backoff=0.01)
        )
        async with asyncio.timeout(5), asyncio.TaskGroup() as group:
            group.create_task(team.outbox.run())
            team.put("a")
            await eventually(lambda: receivers.at(WEBHOOK))
            team.outbox.close()
    assert names(receivers) == ["a", "a"]


async def test_ten_thousand_deliveries_are_queued_without_waiting(receivers: Receivers) -> None:
    count = 0

    class CountingReceiver:
        async def send(self, delivery: Delivery) -> None:
            nonlocal count
            count += 1

    team = new_outbox(CountingReceiver())
    clock = asyncio.get_running_loop().time
    deliveries = [Delivery(event(str(n))) for n in range(10_000)]
    began = clock()
    for delivery in deliveries:
        team.outbox.put(delivery)
    assert clock() - began < 1
    async with delivering(team):
        pass
    assert count == 10_000


async def test_secrets_of_urls_are_not_logged(
    receivers: Receivers, capfd: pytest.CaptureFixture[str]
) -> None:
    receivers.answers[DISCORD] = [Answer(500, DISCORD.encode()), Answer(404, DISCORD.encode())]
    async with httpx2.AsyncClient() as client:
        spec = DiscordSpec(hook_url=receivers.url(DISCORD))
        team = new_outbox(DiscordReceiver(spec, MessageRenderer(ConsoleLinks("", "")), client))
        nowhere = DiscordSpec(hook_url="http://127.0.0.1:1/discord-hook-secret")
        unreachable = new_outbox(
            DiscordReceiver(nowhere, MessageRenderer(ConsoleLinks("", "")), client),
            retry=RetryPolicy(give_up_after=0.1, backoff=Backoff(0.01, 0.05)),
        )
        with capture_logs() as logs:
            async with delivering(team, unreachable):
                team.put("a")
                unreachable.put("b")
                await eventually(lambda: team.done and unreachable.done)
    assert len(logs) >= 3
    out = capfd.readouterr()
    assert "discord-hook-secret" not in f"{logs}{out.out}{out.err}"


def test_retry_after_is_a_kind_of_unavailable() -> None:
    assert isinstance(RetryAfter("busy", seconds=3), Unavailable)
    assert not isinstance(RetryAfter("busy", seconds=3), UserMistake)
