# SPDX-License-Identifier: Apache-2.0
"""Signals over LISTEN and NOTIFY of PostgreSQL."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg

from pipecd.controlplane.bus.relay import BusDisconnected

CHANNEL = "pipecd_signals"
SEND = f"SELECT pg_notify('{CHANNEL}', %s)"
# The server rejects a longer message.
MAX_MESSAGE_BYTES = 7900
# An idle connection is probed after this time.
PROBE_SECONDS = 3.0
# How long the server may take to connect or to execute a statement.
RESPONSE_TIMEOUT_SECONDS = 5.0

Connection = psycopg.AsyncConnection[Any]


class PostgresTransport:
    """The channel that all processes on one database share."""

    name = "postgresql"

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["PostgresChannel", None]:
        """Opens two connections: one that listens all the time, one that sends."""
        async with self._connect() as listening, self._connect() as sending:
            try:
                async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                    await listening.execute(f"LISTEN {CHANNEL}")
            except (psycopg.Error, TimeoutError) as e:
                raise BusDisconnected(str(e) or "no response") from e
            yield PostgresChannel(listening, sending)

    @asynccontextmanager
    async def _connect(self) -> AsyncGenerator[Connection, None]:
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
        except (psycopg.Error, TimeoutError) as e:
            message = str(e).strip().rpartition("\n")[2]
            raise BusDisconnected(message or "no response") from e
        try:
            yield connection
        finally:
            await connection.close()


class PostgresChannel:
    """The channel over one listening and one sending connection."""

    def __init__(self, listening: Connection, sending: Connection) -> None:
        self._listening = listening
        self._sending = sending

    async def send(self, messages: Sequence[bytes]) -> None:
        try:
            async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                # One statement each: quoting an array of them would take longer.
                for message in messages:
                    # Receivers read a truncated message as EVERYTHING.
                    text = message[:MAX_MESSAGE_BYTES].decode(errors="ignore")
                    await self._sending.execute(SEND, (text,))
        except (psycopg.Error, TimeoutError) as e:
            raise BusDisconnected(str(e) or "no response") from e

    async def received(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for notification in self._listening.notifies(timeout=PROBE_SECONDS):
                    yield notification.payload.encode()
                async with asyncio.timeout(RESPONSE_TIMEOUT_SECONDS):
                    await self._listening.execute("SELECT 1")
            except (psycopg.Error, TimeoutError) as e:
                raise BusDisconnected(str(e) or "no response") from e
