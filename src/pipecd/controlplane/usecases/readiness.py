# SPDX-License-Identifier: Apache-2.0
"""Whether the stores answer, which is what a probe wants to know."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import NotFound, PipecdError, Unavailable

# A name that nothing has, so that a store says no at once.
_NOTHING = "no-such-thing"
PATIENCE_SECONDS = 2.0
# However many probes there are, the stores are asked this often at most.
FRESH_SECONDS = 1.0

Ask = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Found:
    """How the stores are: what is wrong with each of them, or nothing."""

    faults: dict[str, str]

    @property
    def is_ready(self) -> bool:
        """Without the cache everything goes on, only slower."""
        return not self.faults["datastore"] and not self.faults["filestore"]

    def __str__(self) -> str:
        return "".join(f"{store}: {fault or 'ok'}\n" for store, fault in self.faults.items())


class Readiness:
    """Asks the stores something small, and keeps the answer for a moment."""

    def __init__(
        self,
        stores: Stores,
        cache: Ask | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._asks: dict[str, Ask] = {
            "datastore": lambda: stores.projects.get(_NOTHING),
            "filestore": lambda: stores.files.get(_NOTHING),
        }
        if cache is not None:
            self._asks["cache"] = cache
        self._patience, self._clock = patience, clock
        self._asking = asyncio.Lock()
        self._found: Found | None = None
        self._until = 0.0

    async def found(self) -> Found:
        """How the stores are now, or were a moment ago."""
        async with self._asking:
            if self._found is None or self._clock() >= self._until:
                faults = await asyncio.gather(*(self._fault(ask) for ask in self._asks.values()))
                self._found = Found(dict(zip(self._asks, faults, strict=True)))
                self._until = self._clock() + FRESH_SECONDS
            return self._found

    async def is_ready(self) -> bool:
        return (await self.found()).is_ready

    async def page(self) -> bytes:
        """One line for each store; Unavailable when the control plane cannot do its work."""
        found = await self.found()
        if not found.is_ready:
            raise Unavailable(str(found).rstrip())
        return str(found).encode()

    async def _fault(self, ask: Ask) -> str:
        try:
            async with asyncio.timeout(self._patience):
                with suppress(NotFound):
                    await ask()
        except TimeoutError:
            return f"no answer in {self._patience:g} s"
        except PipecdError as e:
            return e.message
        return ""
