# SPDX-License-Identifier: Apache-2.0
"""View models of pipeds."""
# v0 pipeds report fields that the protobuf files call deprecated.
# pyright: reportDeprecated=false

from datetime import UTC, datetime, timedelta

import pytest

from pipecd.controlplane.console.piped_filters import piped_counts
from pipecd.controlplane.console.pipeds_view import (
    piped_row,
    piped_rows,
    piped_view,
    restart_notice,
)
from pipecd.controlplane.datastore.piped_leases import PipedLease
from pipecd.controlplane.usecases.pipeds import PipedActivity
from pipecd.proto.model import command_pb2 as pb
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
THEN = int(NOW.timestamp()) - 600
UNSEEN = PipedActivity(0, "")
ONLINE = Piped(
    id="p1", name="dev", version="v1.0.0", started_at=THEN, status=Piped.ONLINE, project_id="shop"
)
ONLINE.repositories.add(id="apps")
IDLE = Piped(id="p2", name="idle", started_at=THEN, status=Piped.ONLINE)


def with_(**fields: object) -> Piped:
    piped = Piped()
    piped.CopyFrom(ONLINE)
    for name, value in fields.items():
        setattr(piped, name, value)
    return piped


@pytest.mark.parametrize(
    ("piped", "restart", "word", "status_text", "disabled_reason"),
    [
        pytest.param(ONLINE, "", "Online", "connected and ready", "", id="online"),
        pytest.param(ONLINE, "c1", "Restarting", "restart is requested", "already", id="one to be restarted"),
        pytest.param(with_(desired_version="v1.1.0"), "", "Online", "to run version v1.1.0", "", id="one to be upgraded"),
        pytest.param(with_(desired_version="v1.0.0"), "", "Online", "connected and ready", "", id="runs the desired version"),
        pytest.param(IDLE, "", "Online", "watches no repository", "", id="one that has nothing to deploy"),
        pytest.param(with_(status=Piped.OFFLINE), "", "Offline", "until it is back", "offline", id="offline"),
        pytest.param(with_(status=Piped.OFFLINE), "c1", "Offline", "until it is back", "offline", id="offline before its restart"),
        pytest.param(with_(status=Piped.OFFLINE, started_at=0), "", "Not started yet", "waiting for its first start", "not started yet", id="a new one"),
        pytest.param(with_(disabled=True), "c1", "Disabled", "Disabled:", "receives no commands", id="disabled"),
    ],
)  # fmt: skip
def test_status_and_restart(
    piped: Piped, restart: str, word: str, status_text: str, disabled_reason: str
) -> None:
    page = piped_view(piped, PipedActivity(THEN, restart), PipedLease(), NOW)
    assert page.row.badge.text == word
    assert status_text in page.status_text
    assert disabled_reason in page.restart_disabled_reason
    assert bool(disabled_reason) == bool(page.restart_disabled_reason)


@pytest.mark.parametrize(
    ("fields", "generation", "platforms"),
    [
        pytest.param({}, "", [], id="not reported yet"),
        pytest.param(
            {"plugins": [Piped.Plugin(name="kubernetes", deploy_targets=["a", "b"])]},
            "v1",
            [("kubernetes", "a, b")],
            id="a plugin with targets",
        ),
        pytest.param(
            {
                "platform_providers": [Piped.PlatformProvider(name="dev", type="KUBERNETES")],
                "plugins": [Piped.Plugin(name="kubernetes")],
            },
            "v0",
            [("dev", "Kubernetes")],
            id="a provider and the plugin behind it",
        ),
        pytest.param(
            {"cloud_providers": [Piped.CloudProvider(name="old", type="ECS")]},
            "v0",
            [("old", "ECS")],
            id="a provider of the oldest form",
        ),
    ],
)
def test_plugins_and_providers(
    fields: dict[str, object], generation: str, platforms: list[tuple[str, str]]
) -> None:
    page = piped_view(Piped(id="p1", name="dev", **fields), UNSEEN, PipedLease(), NOW)  # type: ignore[arg-type]
    assert page.row.generation == generation
    assert [(platform.name, platform.details) for platform in page.platforms] == platforms


def test_the_newest_key_is_marked() -> None:
    keys = [PipedKey(creator="ann", created_at=5), PipedKey(creator="bob", created_at=9)]
    page = piped_view(Piped(id="p1", name="dev", keys=keys), UNSEEN, PipedLease(), NOW)
    assert [(key.creator, key.is_newest) for key in page.keys] == [("ann", False), ("bob", True)]
    assert not page.can_add_key
    # Two of one moment: the first of them is what the use case keeps.
    keys = [PipedKey(creator="ann", created_at=5), PipedKey(creator="bob", created_at=5)]
    page = piped_view(Piped(id="p1", name="dev", keys=keys), UNSEEN, PipedLease(), NOW)
    assert [key.is_newest for key in page.keys] == [True, False]


def test_enabled_pipeds_come_first_and_are_summarised() -> None:
    pipeds = [
        with_(id="p1", name="b", disabled=True),
        with_(id="p2", name="c", status=Piped.OFFLINE),
        with_(id="p3", name="A"),
    ]
    rows = piped_rows(pipeds, {piped.id: UNSEEN for piped in pipeds}, NOW)
    assert [row.name for row in rows] == ["A", "c", "b"]
    counts = [(count.value, count.count) for count in piped_counts(rows)]
    assert counts == [("online", 1), ("offline", 1), ("disabled", 1)]
    assert piped_counts(()) == ()


def test_when_it_was_last_seen() -> None:
    row = piped_row(with_(status=Piped.OFFLINE), PipedActivity(THEN, ""), NOW)
    assert row.seen is not None
    assert row.seen.relative == "10 min ago"
    assert piped_row(ONLINE, UNSEEN, NOW).seen is None


@pytest.mark.parametrize(
    ("status", "piped", "text", "is_pending"),
    [
        pytest.param(pb.COMMAND_NOT_HANDLED_YET, ONLINE, "picks it up in a moment", True, id="requested"),
        pytest.param(pb.COMMAND_NOT_HANDLED_YET, with_(status=Piped.OFFLINE), "when that piped is back", True, id="requested while offline"),
        pytest.param(pb.COMMAND_SUCCEEDED, ONLINE, "is starting again", False, id="begun"),
        pytest.param(pb.COMMAND_SUCCEEDED, with_(status=Piped.OFFLINE), "has not come back", False, id="begun and never ended"),
        pytest.param(pb.COMMAND_SUCCEEDED, with_(started_at=THEN + 60), "has restarted and runs v1.0.0", False, id="done"),
        pytest.param(pb.COMMAND_FAILED, ONLINE, "failed", False, id="failed"),
        pytest.param(pb.COMMAND_TIMEOUT, ONLINE, "did not handle the restart in time", False, id="dropped"),
    ],
)  # fmt: skip
def test_the_notice_of_a_restart(
    status: pb.CommandStatus.ValueType, piped: Piped, text: str, *, is_pending: bool
) -> None:
    command = Command(id="c1", type=Command.RESTART_PIPED, status=status, updated_at=THEN + 30)
    notice = restart_notice(command, piped)
    assert text in notice.text
    assert notice.is_pending == is_pending


def test_the_page_shows_the_host_and_the_last_takeover() -> None:
    lease = PipedLease(epoch=3, host="worker-2", taken_over_at=THEN, taken_over_from="worker-1")
    page = piped_view(ONLINE, UNSEEN, lease, NOW)
    assert (page.host, page.taken_over_from) == ("worker-2", "worker-1")
    assert page.taken_over is not None
    assert page.is_takeover_recent
    without = piped_view(ONLINE, UNSEEN, PipedLease(), NOW)
    assert (without.taken_over, without.is_takeover_recent) == (None, False)
    later = piped_view(ONLINE, UNSEEN, lease, NOW + timedelta(hours=1))
    assert (later.taken_over is not None, later.is_takeover_recent) == (True, False)


def test_what_does_not_run_is_listed_once_with_its_reason() -> None:
    failures = (
        PluginFailure(plugin="greeter", reason="it ended with exit code 3", since=THEN),
        PluginFailure(plugin="ecs", target="a", reason="no region", since=THEN),
        PluginFailure(plugin="ecs", target="b", reason="no profile", since=THEN),
        # Without a deploy target the plugin does not run for the same reasons.
        PluginFailure(plugin="ecs", reason="no region\nno profile", since=THEN),
        PluginFailure(plugin="vm", target="c", reason="no zone", since=THEN),
        PluginFailure(plugin="vm", reason="it ended", since=THEN),
    )
    page = piped_view(ONLINE, UNSEEN, PipedLease(), NOW, failures)
    assert [(each.name, each.reason) for each in page.failures] == [
        ("greeter", "it ended with exit code 3"),
        ("a (ecs)", "no region"),
        ("b (ecs)", "no profile"),
        ("c (vm)", "no zone"),
        ("vm", "it ended"),
    ]
    assert all(each.since is not None for each in page.failures)
    assert page.status_text == ("It is connected, but part of its configuration cannot be used.")
    offline = piped_view(with_(status=Piped.OFFLINE), UNSEEN, PipedLease(), NOW, failures)
    assert not offline.failures
