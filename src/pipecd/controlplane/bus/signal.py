# SPDX-License-Identifier: Apache-2.0
"""A signal says that something changed; its receiver reads the new state from the stores."""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, cast


class Topic(Enum):
    """What kind of object changed."""

    APPLICATION = "application"
    DEPLOYMENT = "deployment"
    STAGE_LOG = "stage_log"
    COMMAND = "command"
    PIPED = "piped"
    LEASE = "lease"
    EVENT = "event"
    CHAIN = "chain"
    PROJECT = "project"
    API_KEY = "api_key"
    SESSION = "session"
    REPOSITORY = "repository"
    # The subscriber was too slow or the connection was lost: anything may have changed.
    EVERYTHING = "everything"


@dataclass(frozen=True)
class Signal:
    """`id` names the changed object, `piped` the agent it concerns, if any.

    For STAGE_LOG the id is `<deployment>/<stage>`; for REPOSITORY it is the repository id of the
    piped configuration; for SESSION it is that of the session that ended, or empty for several.
    """

    topic: Topic
    id: str
    project: str
    piped: str = ""


EVERYTHING = Signal(Topic.EVERYTHING, id="", project="")


def encode_signal(signal: Signal) -> bytes:
    """Encodes a signal for a transport between processes."""
    fields = [signal.topic.value, signal.id, signal.project, signal.piped]
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_signal(message: bytes) -> Signal:
    """Decodes a signal; an invalid one, perhaps of a newer replica, becomes EVERYTHING."""
    try:
        fields: object = json.loads(message)
    except (ValueError, RecursionError):
        return EVERYTHING
    if not isinstance(fields, list):
        return EVERYTHING
    texts = [field for field in cast("list[object]", fields) if isinstance(field, str)]
    if len(texts) != 4 or texts[0] not in {topic.value for topic in Topic}:
        return EVERYTHING
    return Signal(Topic(texts[0]), id=texts[1], project=texts[2], piped=texts[3])


class Bus(Protocol):
    """Publish and subscribe between the parts and replicas of one control plane."""

    async def run(self) -> None:
        """Keeps the bus connected to other processes until it is cancelled."""
        ...

    async def publish(self, signal: Signal) -> None:
        """Never fails and never blocks on a slow subscriber."""
        ...

    def subscribe(
        self,
        *,
        project: str = "",
        piped: str = "",
        shared: frozenset[Topic] = frozenset(),
        only: frozenset[Topic] = frozenset(),
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        """Signals from now on, those of a project or piped only when one is given.

        Beside those of its piped, a subscriber may receive the `shared` topics of its project. One
        that names `only` some topics, of a project or of all, is not woken for others.
        A subscriber that falls behind gets one EVERYTHING instead of the signals it missed.
        """
        ...
