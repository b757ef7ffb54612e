# SPDX-License-Identifier: Apache-2.0
"""Tells for which applications something on a cluster changed, many changes at once."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Protocol, TypeAlias

from pipecd.plugins.kubernetes.live.sighting import Sighting

Tell: TypeAlias = Callable[[Collection[str]], None]


class Count(Protocol):
    """Counts an event of a watch, handled when it concerns an application."""

    def __call__(self, event: str, *, is_handled: bool) -> None: ...


# Changes come in flocks: a rollout touches its workload, a set and many pods.
_PAUSE = 0.1


class News:
    """Changes that were not told yet; `applications_of` says whom a change concerns.

    That is asked when it is told: what owns an object may become known after it. Events are counted
    then as well, whether they changed something or not.
    """

    def __init__(
        self,
        applications_of: Callable[[Sighting], Iterable[str]],
        tell: Tell,
        count: Count,
    ) -> None:
        self._applications_of, self._tell, self._count = applications_of, tell, count
        self._changed: dict[str, Sighting] = {}
        self._heard: list[tuple[str, Sighting]] = []
        self._some = asyncio.Event()

    def note(self, seen: Sighting) -> None:
        """Remembers that an object came, changed or went."""
        self._changed[seen.uid] = seen
        self._some.set()

    def heard(self, event: str, seen: Sighting) -> None:
        """Remembers an event to count it."""
        self._heard.append((event, seen))
        self._some.set()

    async def run(self) -> None:
        """Tells of changes soon after the first of them, until it is cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_PAUSE)
            self._some.clear()
            changed, self._changed = self._changed, {}
            heard, self._heard = self._heard, []
            objects = {seen.uid: seen for _, seen in heard} | changed
            whose = {uid: set(self._applications_of(seen)) for uid, seen in objects.items()}
            for event, seen in heard:
                self._count(event, is_handled=bool(whose[seen.uid]))
            concerned = {each for uid in changed for each in whose[uid]}
            if concerned:
                self._tell(concerned)
