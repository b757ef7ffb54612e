# SPDX-License-Identifier: Apache-2.0
"""Notifications that something changed; they carry no data, the receiver reads it itself."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from weakref import WeakSet


class Watch:
    """Remembers whether something changed since its owner last waited."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def mark(self) -> None:
        """Records a change."""
        self._changed.set()

    def taken(self) -> bool:
        """Returns whether something changed since the last call or wait, without waiting."""
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    async def wait(self, at_most: float) -> bool:
        """Returns True after a change since the last wait, False after `at_most` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._changed.wait()
        return self.taken()


class Changes:
    """Notifies all its watches of changes to one thing."""

    def __init__(self) -> None:
        # A watch lives as long as its owner.
        self._watches: WeakSet[Watch] = WeakSet()

    def notify(self) -> None:
        for watch in tuple(self._watches):
            watch.mark()

    def watch(self) -> Watch:
        return watch_any(self)

    def add(self, watch: Watch) -> None:
        """Lets an existing watch follow these changes too."""
        self._watches.add(watch)

    def remove(self, watch: Watch) -> None:
        self._watches.discard(watch)


def watch_any(*changes: Changes) -> Watch:
    """Returns a watch that follows the changes of several things."""
    watch = Watch()
    for each in changes:
        each.add(watch)
    return watch


class ChangedIds:
    """Notifies its watches of changes to some of many things, with the ids of these."""

    def __init__(self) -> None:
        self._watches: WeakSet[ChangedIdsWatch] = WeakSet()

    def notify(self, ids: Iterable[str]) -> None:
        changed = frozenset(ids)
        for watch in tuple(self._watches) if changed else ():
            watch.mark(changed)

    def watch(self, wakeup: Watch) -> "ChangedIdsWatch":
        """Returns a watch that collects ids; each change also marks `wakeup`."""
        watch = ChangedIdsWatch(wakeup)
        self._watches.add(watch)
        return watch


class ChangedIdsWatch:
    """Collects the ids of what changed since its owner last took them."""

    def __init__(self, wakeup: Watch) -> None:
        self._wakeup = wakeup
        self._ids: set[str] = set()

    def mark(self, ids: Iterable[str]) -> None:
        self._ids.update(ids)
        self._wakeup.mark()

    def taken(self) -> set[str]:
        """Returns the ids that changed since the last call."""
        ids, self._ids = self._ids, set()
        return ids
