# SPDX-License-Identifier: Apache-2.0
"""Signals over LISTEN and NOTIFY of PostgreSQL."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from pipecd.controlplane.bus.relay import WireLost

CHANNEL = "pipecd_signals"
SEND = f"SELECT pg_notify('{CHANNEL}', %s)"
# The server refuses a longer message.
LONGEST = 7900
# A silent connection is tried after this time, and an answer waited for as long.
OFFLINE_AFTER_SECONDS = 10.0

Connection = psycopg.AsyncConnection[Any]


class PostgresWire:
    """The channel that all processes on one database share."""

    name = "postgresql"

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["PostgresChannel", None]:
        """Two connections: one that listens all the time, one to speak."""
        async with self._connected() as listening, self._connected() as speaking:
            try:
                await listening.execute(f"LISTEN {CHANNEL}")
            except psycopg.Error as e:
                raise WireLost(str(e)) from e
            yield PostgresChannel(listening, speaking)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Connection, None]:
        try:
            connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        except psycopg.Error as e:
            raise WireLost(str(e).strip().rpartition("\n")[2]) from e
        try:
            yield connection
        finally:
            await connection.close()


class PostgresChannel:
    """A channel that is listened to."""

    def __init__(self, listening: Connection, speaking: Connection) -> None:
        self._listening = listening
        self._speaking = speaking

    async def send(self, messages: Sequence[bytes]) -> None:
        try:
            async with asyncio.timeout(OFFLINE_AFTER_SECONDS):
                # As an array they would go together, but quoting one takes longer than all of this.
                for message in messages:
                    await self._speaking.execute(SEND, (_short(message),))
        except (psycopg.Error, TimeoutError) as e:
            raise WireLost(str(e) or "no answer") from e

    async def received(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for heard in self._listening.notifies(timeout=OFFLINE_AFTER_SECONDS):
                    yield heard.payload.encode()
                async with asyncio.timeout(OFFLINE_AFTER_SECONDS):
                    await self._listening.execute("SELECT 1")
            except (psycopg.Error, TimeoutError) as e:
                raise WireLost(str(e) or "no answer") from e


def _short(message: bytes) -> str:
    """What is too long is cut, which whoever hears it takes for EVERYTHING."""
    return message[:LONGEST].decode(errors="ignore")
