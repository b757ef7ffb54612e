# SPDX-License-Identifier: Apache-2.0
"""Telling others that something changed, without saying what: they look for themselves."""

import asyncio
from contextlib import suppress
from weakref import WeakSet


class Watch:
    """One waiter's view: remembers whether something changed since it last waited."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def mark(self) -> None:
        """Something changed."""
        self._changed.set()

    def taken(self) -> bool:
        """Whether something changed since this was last asked; does not wait."""
        changed = self._changed.is_set()
        self._changed.clear()
        return changed

    async def wait(self, at_most: float) -> bool:
        """Returns True after a change since the last wait, False when the time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._changed.wait()
        return self.taken()


class Changes:
    """Where changes of one thing are told; each waiter has a watch of its own."""

    def __init__(self) -> None:
        # A watch lives as long as the one who waits with it.
        self._watches: WeakSet[Watch] = WeakSet()

    def notify(self) -> None:
        for watch in tuple(self._watches):
            watch.mark()

    def watch(self) -> Watch:
        return watch_any(self)

    def add(self, watch: Watch) -> None:
        """Lets a watch also hear of these changes."""
        self._watches.add(watch)

    def remove(self, watch: Watch) -> None:
        """Forgets a watch whose owner has ended."""
        self._watches.discard(watch)


def watch_any(*changes: Changes) -> Watch:
    """A watch that hears of the changes of several things."""
    watch = Watch()
    for each in changes:
        each.add(watch)
    return watch
