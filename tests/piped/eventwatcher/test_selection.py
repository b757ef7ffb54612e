# SPDX-License-Identifier: Apache-2.0
"""Which events are handled, and how the outcomes of several files become one status."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.piped.eventwatcher.selection import (
    EventOutcome,
    ReceivedEvent,
    Selection,
    combine_outcomes,
    select_events,
)
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event

NOW = 1_000_000


def arrival(
    id_: str, key: str = "k", *, age: int = 0, number: int = 0, sequence: int = 0
) -> ReceivedEvent:
    event = Event(id=id_, event_key=key, created_at=NOW - age)
    return ReceivedEvent(event, number, sequence=sequence, created=float(NOW - age))


def newest_of(arrivals: list[ReceivedEvent]) -> dict[str, ReceivedEvent]:
    return {each.event.event_key: each for each in sorted(arrivals, key=lambda each: each.rank)}


def ids(selection: Selection) -> tuple[list[str], dict[str, str]]:
    outdated = {id_: outcome.description for id_, outcome in selection.outdated.items()}
    assert all(outcome.status == pb.EVENT_OUTDATED for outcome in selection.outdated.values())
    return [each.event.id for each in selection.selected], outdated


NEW_B = 'The new event "b" has been created'
OLD_A = 'Too much time has passed since the event "a" was created'


@pytest.mark.parametrize(
    ("pending", "latest", "selected", "outdated"),
    [
        pytest.param([], [], [], {}, id="no events"),
        pytest.param([arrival("a", age=2), arrival("b", age=1)], [], ["b"], {"a": NEW_B}, id="the newest of a key"),
        pytest.param([arrival("b", number=2), arrival("a", number=1)], [], ["b"], {"a": NEW_B}, id="of one second the one that arrived last"),
        pytest.param([arrival("b", "x", age=1), arrival("a", "y", age=2)], [], ["a", "b"], {}, id="each key, oldest first"),
        pytest.param([arrival("a", age=3600)], [], ["a"], {}, id="an hour is not too old"),
        pytest.param([arrival("a", age=3601)], [], [], {"a": OLD_A}, id="more than an hour is"),
        pytest.param([arrival("a", age=5)], [arrival("b", age=4)], [], {"a": NEW_B}, id="one that comes late"),
        pytest.param([arrival("a", age=2, sequence=1), arrival("b", age=9, sequence=2)], [], ["b"], {"a": NEW_B}, id="the later number, whatever the clock said"),
        pytest.param([arrival("a", age=4, number=2)], [arrival("b", age=4, number=1)], ["a"], {}, id="one that comes in the same second"),
    ],
)  # fmt: skip
def test_choice(
    pending: list[ReceivedEvent],
    latest: list[ReceivedEvent],
    selected: list[str],
    outdated: dict[str, str],
) -> None:
    selection = select_events(pending, newest_of([*latest, *pending]), NOW)
    assert ids(selection) == (selected, outdated)


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 7200)), max_size=20))
def test_every_event_is_selected_or_outdated_and_of_a_key_at_most_one_is_selected(
    given_: list[tuple[str, int]],
) -> None:
    pending = [arrival(str(n), key, age=age, number=n) for n, (key, age) in enumerate(given_)]
    selection = select_events(pending, newest_of(pending), NOW)
    selected, outdated = ids(selection)
    assert sorted([*selected, *outdated]) == sorted(each.event.id for each in pending)
    keys = [each.event.event_key for each in selection.selected]
    assert len(keys) == len(set(keys))
    for each in selection.selected:
        rivals = [p for p in pending if p.event.event_key == each.event.event_key]
        assert each.rank == max(rival.rank for rival in rivals)


GOOD, BAD = EventOutcome(pb.EVENT_SUCCESS, "done"), EventOutcome(pb.EVENT_FAILURE, "broken")
LATE = EventOutcome(pb.EVENT_OUTDATED, "late")


@pytest.mark.parametrize(
    ("outcomes", "whole"),
    [
        pytest.param([GOOD], GOOD, id="a single outcome"),
        pytest.param([GOOD, BAD, GOOD], BAD, id="a failure counts"),
        pytest.param([LATE, GOOD], GOOD, id="a success outweighs an outdated outcome"),
        pytest.param([GOOD, GOOD], GOOD, id="equal descriptions are written once"),
        pytest.param([GOOD, EventOutcome(pb.EVENT_SUCCESS, "too")], EventOutcome(pb.EVENT_SUCCESS, "done; too"), id="all that count are reported"),
    ],
)  # fmt: skip
def test_outcomes_together(outcomes: list[EventOutcome], whole: EventOutcome) -> None:
    assert combine_outcomes(outcomes) == whole
