# SPDX-License-Identifier: Apache-2.0
"""Listens for changes of what is desired, so that nobody waits for the next check."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

import structlog

from pipecd.launcher.identity import Identity
from pipecd.model.backoff import STREAM_UNSUPPORTED_RETRY_SECONDS
from pipecd.model.errors import PipecdError, Unsupported

log = structlog.get_logger()

_PAUSE = 30.0


class Listener:
    """Keeps a stream of changes and passes each of them on."""

    def __init__(
        self,
        piped: Callable[[], Awaitable[Identity]],
        changes: Callable[[Identity], AsyncGenerator[None]],
        tell: Callable[[], None],
        *,
        pause: float = _PAUSE,
    ) -> None:
        self._piped, self._changes, self._tell, self._pause = piped, changes, tell, pause

    async def run(self) -> None:
        while True:
            pause = self._pause
            try:
                # Who the piped is may have changed with its configuration.
                async with aclosing(self._changes(await self._piped())) as changes:
                    async for _ in changes:
                        self._tell()
            except Unsupported:
                pause = STREAM_UNSUPPORTED_RETRY_SECONDS
            except PipecdError as e:
                log.debug("changes are not heard of, checking at every interval", error=str(e))
            await asyncio.sleep(pause)
