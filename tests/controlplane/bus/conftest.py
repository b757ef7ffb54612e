# SPDX-License-Identifier: Apache-2.0
"""The bus of several processes, over each transport."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest

from pipecd.controlplane.bus.postgres import PostgresTransport
from pipecd.controlplane.bus.redis import RedisTransport
from pipecd.controlplane.bus.relay import RelayBus
from pipecd.controlplane.bus.signal import EVERYTHING, Bus
from pipecd.controlplane.cache.redis import open_redis
from servers.databases import Postgres, Redis

OpenBus = Callable[..., AbstractAsyncContextManager[Bus]]


@pytest.fixture(params=["redis", "postgres"])
def transport(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server(transport: str, request: pytest.FixtureRequest) -> Redis | Postgres:
    """The server that the transport uses."""
    return request.getfixturevalue(transport)


@pytest.fixture
def open_bus(server: Redis | Postgres) -> OpenBus:
    """Opens the bus of one more process, and waits until it is connected.

    With a `port` it connects to a proxy there instead of the server.
    """

    @asynccontextmanager
    async def opened(port: int = server.port) -> AsyncIterator[Bus]:
        async with AsyncExitStack() as stack:
            if isinstance(server, Postgres):
                bus = RelayBus(PostgresTransport(f"postgres://postgres@127.0.0.1:{port}/postgres"))
            else:
                address = f"127.0.0.1:{port}"
                redis = await stack.enter_async_context(open_redis(address))
                bus = RelayBus(RedisTransport(redis))
            async with bus.subscribe() as signals:
                running = asyncio.create_task(bus.run())
                try:
                    # A connected bus delivers EVERYTHING to its subscribers.
                    async with asyncio.timeout(10):
                        assert await anext(signals) == EVERYTHING
                    yield bus
                finally:
                    assert not running.done()
                    running.cancel()
                    await asyncio.wait({running})
                    assert running.cancelled()

    return opened
