# SPDX-License-Identifier: Apache-2.0
"""Opens the stores of a control plane and the bus between its replicas."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.relay import RelayBus
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.copy import refuse_unfinished_copy
from pipecd.controlplane.datastore.open import notify_address, open_datastore
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.open import open_filestore
from pipecd.controlplane.usecases.readiness import Readiness
from pipecd.model.errors import NoDriver
from pipecd.observe.telemetry import Telemetry

log = structlog.get_logger()

_WITHOUT_REDIS = {
    "MYSQL": "without Redis replicas are not notified of each other's changes",
    "POSTGRESQL": "without Redis replicas do not share the status of pipeds",
}


@dataclass(frozen=True)
class OpenStores:
    """The open stores, the bus between replicas, and the readiness probe of the stores."""

    stores: Stores
    bus: Bus
    readiness: Readiness


@asynccontextmanager
async def open_stores(
    spec: ControlPlaneSpec, cache_address: str, telemetry: Telemetry
) -> AsyncGenerator[OpenStores, None]:
    """Opens datastore, filestore and cache, and chooses how replicas notify each other.

    With a Redis all replicas share the cache and the bus. Without one the cache belongs to this
    process; the bus uses PostgreSQL if that is the datastore, and else belongs to this process too.
    """
    # The drivers of Redis and PostgreSQL are optional dependencies.
    async with AsyncExitStack() as stack:
        observers, metrics = telemetry.store_observers, telemetry.metrics
        database = await stack.enter_async_context(
            open_datastore(spec.datastore, observers=observers)
        )
        await refuse_unfinished_copy(database)
        files = await stack.enter_async_context(open_filestore(spec.filestore, observers=observers))
        if cache_address:
            try:
                from pipecd.controlplane.bus.redis import RedisTransport  # noqa: PLC0415
                from pipecd.controlplane.cache.redis import RedisCache, open_redis  # noqa: PLC0415
            except ModuleNotFoundError as e:
                raise NoDriver("Redis", extra="redis") from e
            redis = await stack.enter_async_context(open_redis(cache_address))
            cache = RedisCache(redis, on_read=metrics.cache_reads("redis") if metrics else None)
            bus = RelayBus(RedisTransport(redis), metrics=telemetry.store_metrics)
            stores = create_stores(database, files, cache)
            yield OpenStores(stores, bus, Readiness(stores, cache.ping))
            return
        if (lack := _WITHOUT_REDIS.get(spec.datastore.type)) is not None:
            log.warning(lack, hint="set the same --cache-address for all, or run one replica")
        bus = MemoryBus(metrics=telemetry.store_metrics)
        if postgres := notify_address(spec.datastore):
            from pipecd.controlplane.bus.postgres import PostgresTransport  # noqa: PLC0415

            bus = RelayBus(PostgresTransport(postgres), metrics=telemetry.store_metrics)
        cache = MemoryCache(on_read=metrics.cache_reads("inmemory") if metrics else None)
        stores = create_stores(database, files, cache)
        yield OpenStores(stores, bus, Readiness(stores))
