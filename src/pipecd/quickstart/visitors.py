# SPDX-License-Identifier: Apache-2.0
"""Visitors of the web service, without whom nobody would notice a bad version."""

import asyncio

_INTERVAL = 0.1
_TIMEOUT = 5.0


class Visitors:
    """Sends requests all the time and counts the answers."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._requests = self._failed = 0
        self._has_opened = False

    async def run(self) -> None:
        """Visits the service until it is cancelled; what counts begins with its first success."""
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                async with asyncio.timeout(_TIMEOUT):
                    is_good = await self._visit()
            except (OSError, TimeoutError):
                is_good = False
            self._has_opened = self._has_opened or is_good
            self._requests += self._has_opened
            self._failed += self._has_opened and not is_good

    def take_counts(self) -> tuple[int, int]:
        """Returns how many requests there were since the last call, and how many failed."""
        counted = self._requests, self._failed
        self._requests = self._failed = 0
        return counted

    async def _visit(self) -> bool:
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            host = f"{self._host}:{self._port}"
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return (await reader.read()).startswith(b"HTTP/1.1 200 ")
        finally:
            writer.close()
