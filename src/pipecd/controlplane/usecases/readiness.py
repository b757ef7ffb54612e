# SPDX-License-Identifier: Apache-2.0
"""The readiness probe: whether datastore, filestore and cache respond."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import NotFound, PipecdError, Unavailable

# The key of a probe; no object has it.
_PROBE_KEY = "no-such-thing"
TIMEOUT_SECONDS = 2.0
# However many probes there are, the stores are checked at most this often.
CACHE_SECONDS = 1.0

Check = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class StoreStatus:
    """The error of each store; empty if it responds."""

    errors: dict[str, str]

    @property
    def is_ready(self) -> bool:
        """The cache is optional: without it requests are only slower."""
        return not self.errors["datastore"] and not self.errors["filestore"]

    def __str__(self) -> str:
        return "".join(f"{store}: {error or 'ok'}\n" for store, error in self.errors.items())


class Readiness:
    """Checks the stores with a small read, and caches the result for a moment."""

    def __init__(
        self,
        stores: Stores,
        cache: Check | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._checks: dict[str, Check] = {
            "datastore": lambda: stores.projects.get(_PROBE_KEY),
            "filestore": lambda: stores.files.get(_PROBE_KEY),
        }
        if cache is not None:
            self._checks["cache"] = cache
        self._timeout, self._clock = timeout, clock
        self._lock = asyncio.Lock()
        self._status: StoreStatus | None = None
        self._expires_at = 0.0
        self._is_listening = False

    def ports_are_open(self) -> None:
        """Until this is called the page says that the program is starting."""
        self._is_listening = True

    async def status(self) -> StoreStatus:
        """The status of the stores, at most a moment old."""
        async with self._lock:
            if self._status is None or self._clock() >= self._expires_at:
                errors = await asyncio.gather(
                    *(self._error(check) for check in self._checks.values())
                )
                self._status = StoreStatus(dict(zip(self._checks, errors, strict=True)))
                self._expires_at = self._clock() + CACHE_SECONDS
            return self._status

    async def is_ready(self) -> bool:
        return (await self.status()).is_ready

    async def page(self) -> bytes:
        """One line per store; Unavailable if the control plane is not ready."""
        if not self._is_listening:
            raise Unavailable("starting: not all ports are open yet")
        status = await self.status()
        if not status.is_ready:
            raise Unavailable(str(status).rstrip())
        return str(status).encode()

    async def _error(self, check: Check) -> str:
        try:
            async with asyncio.timeout(self._timeout):
                with suppress(NotFound):
                    await check()
        except TimeoutError:
            return f"no answer in {self._timeout:g} s"
        except PipecdError as e:
            return e.message
        return ""
