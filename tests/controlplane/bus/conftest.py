# SPDX-License-Identifier: Apache-2.0
"""Every kind of bus, as one process or as several."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import pytest

from pipecd.controlplane.bus.open import RunningBus, choose_bus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.cache.open import open_redis
from servers.databases import Postgres, Redis

EVERYTHING = Signal(Topic.EVERYTHING, "", "")

OpenBus = Callable[[], AbstractAsyncContextManager[RunningBus]]


@pytest.fixture(params=["redis", "postgres"])
def wire(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def wire_server(wire: str, request: pytest.FixtureRequest) -> Redis | Postgres:
    return request.getfixturevalue(wire)


@pytest.fixture
def open_bus(wire_server: Redis | Postgres) -> OpenBus:
    """Opens the bus of one more process, and waits until it is connected."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[RunningBus]:
        async with AsyncExitStack() as stack:
            if isinstance(wire_server, Postgres):
                bus = choose_bus(postgres=wire_server.url("postgres"))
            else:
                address = f"127.0.0.1:{wire_server.port}"
                redis = await stack.enter_async_context(open_redis(address))
                bus = choose_bus(redis=redis)
            async with bus.subscribe() as signals:
                running = asyncio.create_task(bus.run())
                try:
                    # Whoever connects is told to look at everything.
                    async with asyncio.timeout(10):
                        assert await anext(signals) == EVERYTHING
                    yield bus
                finally:
                    assert not running.done()
                    running.cancel()
                    await asyncio.wait({running})
                    assert running.cancelled()

    return opened
