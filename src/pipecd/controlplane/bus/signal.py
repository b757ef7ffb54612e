# SPDX-License-Identifier: Apache-2.0
"""A signal says that something changed; whoever hears it reads the truth from the store."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Topic(Enum):
    """What kind of thing changed."""

    APPLICATION = "application"
    DEPLOYMENT = "deployment"
    STAGE_LOG = "stage_log"
    COMMAND = "command"
    PIPED = "piped"
    EVENT = "event"
    CHAIN = "chain"
    PROJECT = "project"
    API_KEY = "api_key"
    REPOSITORY = "repository"
    # The subscriber was too slow or the connection was lost: anything may have changed.
    EVERYTHING = "everything"


@dataclass(frozen=True)
class Signal:
    """`id` names the changed thing, `piped` the agent it concerns, if any.

    For STAGE_LOG the id is `<deployment>/<stage>`; for REPOSITORY it is the repository id of the
    piped configuration.
    """

    topic: Topic
    id: str
    project: str
    piped: str = ""


class Bus(Protocol):
    """Publish and subscribe between the parts and replicas of one control plane."""

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

        Beside those of its piped, a subscriber may hear the `shared` topics of its project. One
        that names `only` some topics, of a project or of all, is not woken for others.
        A subscriber that falls behind gets one EVERYTHING instead of what it missed.
        """
        ...
