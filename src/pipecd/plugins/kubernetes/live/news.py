# SPDX-License-Identifier: Apache-2.0
"""Tells for which applications something on a cluster changed, many changes at once."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

from pipecd.plugins.kubernetes.live.sighting import Sighting

Tell: TypeAlias = Callable[[Collection[str]], None]

# Changes come in flocks: a rollout touches its workload, a set and many pods.
_PAUSE = 0.1


class News:
    """Changes that were not told yet; `applications_of` says whom a change concerns.

    That is asked when it is told: what owns an object may become known after it.
    """

    def __init__(self, applications_of: Callable[[Sighting], Iterable[str]], tell: Tell) -> None:
        self._applications_of, self._tell = applications_of, tell
        self._changed: dict[str, Sighting] = {}
        self._some = asyncio.Event()

    def note(self, seen: Sighting) -> None:
        """Remembers that an object came, changed or went."""
        self._changed[seen.uid] = seen
        self._some.set()

    async def run(self) -> None:
        """Tells of changes soon after the first of them, until it is cancelled."""
        while True:
            await self._some.wait()
            await asyncio.sleep(_PAUSE)
            self._some.clear()
            changed, self._changed = self._changed, {}
            concerned = {each for seen in changed.values() for each in self._applications_of(seen)}
            if concerned:
                self._tell(concerned)
