# SPDX-License-Identifier: Apache-2.0
"""Which events are acted on now, and what became of them; everything here is pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pipecd.model.clock import from_unix
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event

TOO_OLD = timedelta(hours=1)

Status = pb.EventStatus.ValueType


@dataclass(frozen=True)
class Arrival:
    """An event, how many had arrived before it, and whether nobody had acted on it by then."""

    event: Event
    number: int
    was_open: bool = True

    @property
    def rank(self) -> tuple[int, int]:
        """What orders events of one second, as the control plane tells no more, by arrival."""
        return self.event.created_at, self.number


@dataclass(frozen=True)
class Outcome:
    """What became of an event, and the sentence that people read about it."""

    status: Status
    description: str


@dataclass(frozen=True)
class Turn:
    """Events to act on, oldest first, and those that are too late by their id."""

    chosen: tuple[Arrival, ...] = ()
    outdated: Mapping[str, Outcome] = field(default_factory=dict[str, Outcome])


def choose(pending: Iterable[Arrival], newest: Mapping[str, Arrival], now: datetime) -> Turn:
    """Takes the newest event of every key, unless it is too old.

    `newest` are the newest events by their key, pending or acted on.
    """
    chosen: list[Arrival] = []
    outdated: dict[str, Outcome] = {}
    for arrival in sorted(pending, key=lambda arrival: arrival.rank):
        event, newer = arrival.event, newest.get(arrival.event.event_key, arrival).event
        if newer.id != event.id:
            description = f'The new event "{newer.id}" has been created'
        elif now - from_unix(event.created_at) > TOO_OLD:
            description = f'Too much time has passed since the event "{event.id}" was created'
        else:
            chosen.append(arrival)
            continue
        outdated[event.id] = Outcome(pb.EVENT_OUTDATED, description)
    return Turn(tuple(chosen), outdated)


_WORST_FIRST = (pb.EVENT_FAILURE, pb.EVENT_SUCCESS, pb.EVENT_OUTDATED)


def together(outcomes: Iterable[Outcome]) -> Outcome:
    """What became of an event that several places had to act on: the worst of it."""
    told = list(outcomes)
    status = min((outcome.status for outcome in told), key=_WORST_FIRST.index)
    sentences = dict.fromkeys(o.description for o in told if o.status == status)
    return Outcome(status, "; ".join(sentences))
