# SPDX-License-Identifier: Apache-2.0
"""The one place where the kind of bus is chosen."""

from typing import Any, Protocol

from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.relay import RelayBus
from pipecd.controlplane.bus.signal import Bus


class RunningBus(Bus, Protocol):
    """A bus that has to be run to reach other processes."""

    async def run(self) -> None: ...


def choose_bus(*, redis: Any | None = None, postgres: str = "") -> RunningBus:
    """The bus over Redis when there is one, else over PostgreSQL, else within this process."""
    if redis is not None:
        from pipecd.controlplane.bus.redis import RedisWire  # noqa: PLC0415 - an extra.

        return RelayBus(RedisWire(redis))
    if postgres:
        from pipecd.controlplane.bus.postgres import PostgresWire  # noqa: PLC0415 - an extra.

        return RelayBus(PostgresWire(postgres))
    return MemoryBus()
