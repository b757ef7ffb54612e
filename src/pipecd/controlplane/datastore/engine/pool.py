# SPDX-License-Identifier: Apache-2.0
"""The connections of one process to a database server."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pipecd.controlplane.datastore.engine.link import Link
from pipecd.model.errors import PipecdError, StoreAway

# Networks forget connections over which nothing goes; servers move while old ones stay open.
LONGEST_IDLE = 240.0
LONGEST_LIFE = 1800.0
# How long a server that could not be reached is left alone.
PAUSE = 0.5


@dataclass
class Held:
    """A connection, the generation and the moments it belongs to."""

    link: Link
    generation: int
    opened_at: float
    used_at: float


class Pool:
    """Opens connections when they are needed and keeps those that are in order.

    Its threads bound their number: each of them takes one at a time.
    """

    def __init__(
        self, connect: Callable[[], Link], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._generation = 0
        self._idle: list[Held] = []
        self._busy: dict[Link, Held] = {}
        self._refused_until = 0.0
        self._refusal = ""

    def take(self) -> Link:
        """A connection for one thread; Unavailable at once while the server is known to be away."""
        held = self._take_idle()
        if held is None:
            held = self._open()
        with self._lock:
            self._busy[held.link] = held
        return held.link

    def give_back(self, link: Link) -> None:
        with self._lock:
            held = self._busy.pop(link)
            held.used_at = self._clock()
            is_current = held.generation == self._generation
            if is_current:
                self._idle.append(held)
        if not is_current:
            link.close()

    def discard(self, link: Link) -> None:
        """Closes a broken connection and all that were opened with it: their server is gone."""
        with self._lock:
            held = self._busy.pop(link)
            stale: list[Held] = []
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

    def _take_idle(self) -> Held | None:
        old: list[Held] = []
        found: Held | None = None
        with self._lock:
            now = self._clock()
            while self._idle and found is None:
                held = self._idle.pop()
                if now - held.used_at > LONGEST_IDLE or now - held.opened_at > LONGEST_LIFE:
                    old.append(held)
                else:
                    found = held
                    held.used_at = now
        for held in old:
            held.link.close()
        return found

    def _open(self) -> Held:
        with self._lock:
            if self._clock() < self._refused_until:
                raise StoreAway(self._refusal)
            generation = self._generation
        try:
            link = self._connect()
        except PipecdError as e:
            with self._lock:
                self._refused_until = self._clock() + PAUSE
                self._refusal = e.message
            # Whoever asks for data cannot help it, whatever the reason.
            raise StoreAway(e.message, hint=e.hint) from e
        now = self._clock()
        return Held(link, generation, now, now)
