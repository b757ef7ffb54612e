# SPDX-License-Identifier: Apache-2.0
"""Selects the events to handle, and combines their outcomes; everything here is pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event

MAX_EVENT_AGE_SECONDS = 3600.0

Status = pb.EventStatus.ValueType


@dataclass(frozen=True)
class ReceivedEvent:
    """An event, its number in the order of arrival, and whether it was unhandled on arrival.

    `sequence` is the number that the control plane gave it, 0 if it gives none. `created` is when
    the event was created, by the monotonic clock of this piped.
    """

    event: Event
    number: int
    was_unhandled: bool = True
    sequence: int = 0
    created: float = 0.0

    @property
    def rank(self) -> tuple[int, int, int]:
        """Orders events as they were registered.

        Without sequence numbers the time of creation decides; of one second, which is its
        precision, the order of arrival.
        """
        at = 0 if self.sequence else self.event.created_at
        return self.sequence, at, self.number


@dataclass(frozen=True)
class EventOutcome:
    """The status of a handled event, and its description for people."""

    status: Status
    description: str


@dataclass(frozen=True)
class Selection:
    """The events to handle, oldest first, and the outdated ones by their id."""

    selected: tuple[ReceivedEvent, ...] = ()
    outdated: Mapping[str, EventOutcome] = field(default_factory=dict[str, EventOutcome])


def select_events(
    pending: Iterable[ReceivedEvent], newest: Mapping[str, ReceivedEvent], now: float
) -> Selection:
    """Selects the newest event of every key, unless it is too old.

    `newest` are the newest events by their key, pending or handled; `now` is monotonic.
    """
    selected: list[ReceivedEvent] = []
    outdated: dict[str, EventOutcome] = {}
    for received in sorted(pending, key=lambda each: each.rank):
        event = received.event
        newer = newest.get(event.event_key, received).event
        if newer.id != event.id:
            description = f'The new event "{newer.id}" has been created'
        elif now - received.created > MAX_EVENT_AGE_SECONDS:
            description = f'Too much time has passed since the event "{event.id}" was created'
        else:
            selected.append(received)
            continue
        outdated[event.id] = EventOutcome(pb.EVENT_OUTDATED, description)
    return Selection(tuple(selected), outdated)


_WORST_FIRST = (pb.EVENT_FAILURE, pb.EVENT_SUCCESS, pb.EVENT_OUTDATED)


def combine_outcomes(outcomes: Iterable[EventOutcome]) -> EventOutcome:
    """The worst outcome of an event that several definitions or repositories handled."""
    outcomes = list(outcomes)
    status = min((outcome.status for outcome in outcomes), key=_WORST_FIRST.index)
    sentences = dict.fromkeys(o.description for o in outcomes if o.status == status)
    return EventOutcome(status, "; ".join(sentences))
