# SPDX-License-Identifier: Apache-2.0
"""What is said about a piped."""
# Pipeds of the first generation carry their facts in fields that the wire calls deprecated.
# pyright: reportDeprecated=false

from datetime import UTC, datetime

import pytest

from pipecd.controlplane.console.pipeds_view import (
    piped_page,
    piped_row,
    piped_rows,
    restart_notice,
    summary,
)
from pipecd.controlplane.usecases.pipeds import Sight
from pipecd.proto.model import command_pb2 as pb
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped, PipedKey

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
THEN = int(NOW.timestamp()) - 600
UNSEEN = Sight(0, "")
ONLINE = Piped(
    id="p1", name="dev", version="v1.0.0", started_at=THEN, status=Piped.ONLINE, project_id="shop"
)


def with_(**fields: object) -> Piped:
    piped = Piped()
    piped.CopyFrom(ONLINE)
    for name, value in fields.items():
        setattr(piped, name, value)
    return piped


@pytest.mark.parametrize(
    ("piped", "restart", "word", "story", "why_not"),
    [
        pytest.param(ONLINE, "", "Online", "It is at work.", "", id="one at work"),
        pytest.param(ONLINE, "c1", "Restarting", "asked to start anew", "already", id="one to be restarted"),
        pytest.param(with_(desired_version="v1.1.0"), "", "Online", "to run v1.1.0", "", id="one to be upgraded"),
        pytest.param(with_(desired_version="v1.0.0"), "", "Online", "It is at work.", "", id="one that runs what is wanted"),
        pytest.param(with_(status=Piped.OFFLINE), "", "Offline", "until it is back", "offline", id="one away"),
        pytest.param(with_(status=Piped.OFFLINE), "c1", "Offline", "until it is back", "offline", id="one that went away before its restart"),
        pytest.param(with_(status=Piped.OFFLINE, started_at=0), "", "Offline", "never been started", "offline", id="a new one"),
        pytest.param(with_(disabled=True), "c1", "Disabled", "locked out", "hears of nothing", id="one locked out"),
    ],
)  # fmt: skip
def test_a_page_tells_how_it_is_with(
    piped: Piped, restart: str, word: str, story: str, why_not: str
) -> None:
    page = piped_page(piped, Sight(THEN, restart), NOW)
    assert page.row.mark.word == word
    assert story in page.story
    assert why_not in page.why_not_restart
    assert bool(why_not) == bool(page.why_not_restart)


@pytest.mark.parametrize(
    ("fields", "generation", "places"),
    [
        pytest.param({}, "", [], id="one that has not told"),
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
            [("dev", "KUBERNETES")],
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
def test_what_it_deploys_with_is(
    fields: dict[str, object], generation: str, places: list[tuple[str, str]]
) -> None:
    page = piped_page(Piped(id="p1", name="dev", **fields), UNSEEN, NOW)  # type: ignore[arg-type]
    assert page.row.generation == generation
    assert [(place.name, place.details) for place in page.places] == places


def test_the_newest_key_is_marked_wherever_it_stands() -> None:
    keys = [PipedKey(creator="ann", created_at=5), PipedKey(creator="bob", created_at=9)]
    page = piped_page(Piped(id="p1", name="dev", keys=keys), UNSEEN, NOW)
    assert [(key.creator, key.is_newest) for key in page.keys] == [("ann", False), ("bob", True)]
    assert not page.takes_key
    # Two of one moment: the first of them is what the use case keeps.
    keys = [PipedKey(creator="ann", created_at=5), PipedKey(creator="bob", created_at=5)]
    page = piped_page(Piped(id="p1", name="dev", keys=keys), UNSEEN, NOW)
    assert [key.is_newest for key in page.keys] == [True, False]


def test_those_in_use_come_first_and_are_summed_up() -> None:
    pipeds = [
        with_(id="p1", name="b", disabled=True),
        with_(id="p2", name="c", status=Piped.OFFLINE),
        with_(id="p3", name="A"),
    ]
    rows = piped_rows(pipeds, {piped.id: UNSEEN for piped in pipeds}, NOW)
    assert [row.name for row in rows] == ["A", "c", "b"]
    assert summary(rows) == "3 pipeds: 1 online, 1 offline and 1 disabled."
    assert summary(rows[:1]) == "1 piped: 1 online."
    assert summary(()) == ""


def test_when_it_was_seen_is_told() -> None:
    row = piped_row(with_(status=Piped.OFFLINE), Sight(THEN, ""), NOW)
    assert row.seen is not None
    assert row.seen.relative == "10 min ago"
    assert piped_row(ONLINE, UNSEEN, NOW).seen is None


@pytest.mark.parametrize(
    ("status", "piped", "told", "is_open"),
    [
        pytest.param(pb.COMMAND_NOT_HANDLED_YET, ONLINE, "picks it up in a moment", True, id="asked for"),
        pytest.param(pb.COMMAND_NOT_HANDLED_YET, with_(status=Piped.OFFLINE), "when that piped is back", True, id="asked for while it is away"),
        pytest.param(pb.COMMAND_SUCCEEDED, ONLINE, "is starting anew", False, id="begun"),
        pytest.param(pb.COMMAND_SUCCEEDED, with_(status=Piped.OFFLINE), "has not come back", False, id="begun and never ended"),
        pytest.param(pb.COMMAND_SUCCEEDED, with_(started_at=THEN + 60), "has restarted and runs v1.0.0", False, id="done"),
        pytest.param(pb.COMMAND_FAILED, ONLINE, "failed", False, id="failed"),
        pytest.param(pb.COMMAND_TIMEOUT, ONLINE, "did not answer in time", False, id="dropped"),
    ],
)  # fmt: skip
def test_a_restart_is(
    status: pb.CommandStatus.ValueType, piped: Piped, told: str, *, is_open: bool
) -> None:
    command = Command(id="c1", type=Command.RESTART_PIPED, status=status, updated_at=THEN + 30)
    notice = restart_notice(command, piped)
    assert told in notice.text
    assert notice.is_open == is_open
