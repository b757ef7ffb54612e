# SPDX-License-Identifier: Apache-2.0
"""The connections of one process to a database server."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pipecd.model.errors import PipecdError, StorageUnavailable

# Networks forget connections over which nothing goes; servers move while old ones stay open.
LONGEST_IDLE = 240.0
LONGEST_LIFE = 1800.0
# How long a server that could not be reached is left alone.
PAUSE = 0.5


class Endable(Protocol):
    """What a pool has to know of a connection."""

    def close(self) -> None:
        """Never fails."""
        ...

    def abort(self) -> None:
        """Ends whatever is waited for on this connection; whoever waits sees Lost."""
        ...


L = TypeVar("L", bound=Endable)


@dataclass
class Held(Generic[L]):
    """A connection, the generation and the moments it belongs to."""

    link: L
    generation: int
    opened_at: float
    used_at: float


class Pool(Generic[L]):
    """Opens connections when they are needed and keeps those that are in order.

    Its users bound their number: each of them takes one at a time.
    """

    def __init__(
        self, connect: Callable[[], L], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._generation = 0
        self._idle: list[Held[L]] = []
        self._busy: dict[L, Held[L]] = {}
        self._refused_until = 0.0
        self._refusal = ""

    def take(self) -> L:
        """A connection for one user; Unavailable at once while the server is known to be away."""
        return self.take_idle() or self.take_new()

    def take_idle(self) -> L | None:
        """A connection that is open already, without waiting for anything."""
        old: list[Held[L]] = []
        found: L | None = None
        with self._lock:
            now = self._clock()
            while self._idle and found is None:
                held = self._idle.pop()
                if now - held.used_at > LONGEST_IDLE or now - held.opened_at > LONGEST_LIFE:
                    old.append(held)
                else:
                    found = held.link
                    held.used_at = now
                    self._busy[found] = held
        for held in old:
            held.link.close()
        return found

    def take_new(self) -> L:
        """A connection that is opened now."""
        held = self._open()
        with self._lock:
            self._busy[held.link] = held
        return held.link

    def give_back(self, link: L) -> None:
        with self._lock:
            held = self._busy.pop(link)
            held.used_at = self._clock()
            is_current = held.generation == self._generation
            if is_current:
                self._idle.append(held)
        if not is_current:
            link.close()

    def discard(self, link: L) -> None:
        """Closes a broken connection and all that were opened with it: their server is gone."""
        with self._lock:
            held = self._busy.pop(link)
            stale: list[Held[L]] = []
            if held.generation == self._generation:
                self._generation += 1
                stale, self._idle = self._idle, []
        link.close()
        for other in stale:
            other.link.close()

    def abort_stuck(self, seconds: float) -> None:
        """Frees the threads that have been waiting for an answer for so long."""
        since = self._clock() - seconds
        with self._lock:
            stuck = [held.link for held in self._busy.values() if held.used_at <= since]
        for link in stuck:
            link.abort()

    def close(self) -> None:
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, []
        for held in idle:
            held.link.close()

    def _open(self) -> Held[L]:
        with self._lock:
            if self._clock() < self._refused_until:
                raise StorageUnavailable(self._refusal)
            generation = self._generation
        try:
            link = self._connect()
        except PipecdError as e:
            with self._lock:
                self._refused_until = self._clock() + PAUSE
                self._refusal = e.message
            # Whoever asks for data cannot help it, whatever the reason.
            raise StorageUnavailable(e.message, hint=e.hint) from e
        now = self._clock()
        return Held(link, generation, now, now)
