# SPDX-License-Identifier: Apache-2.0
"""Signals over a channel of Redis."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError, RedisError

from pipecd.controlplane.bus.relay import BusDisconnected, end_if_cancelled

CHANNEL = "pipecd:signals"
# An idle connection is probed with PING after this time; the answer may take as long.
PROBE_SECONDS = 3.0


class SingleConnectionPubSub(PubSub):
    """A PubSub that fails when its connection is lost; the driver would silently reconnect."""

    async def on_connect(self, connection: Any) -> None:
        raise ConnectionError("the connection to Redis was lost")


class RedisTransport:
    """The channel that all processes on one Redis share; the caller closes `client`."""

    name = "redis"

    def __init__(self, client: "Redis", *, channel: str = CHANNEL) -> None:
        # The types of the driver are incomplete.
        self._client = cast("Any", client)
        self._channel = channel

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["RedisChannel", None]:
        pubsub: Any = SingleConnectionPubSub(self._client.connection_pool)
        try:
            try:
                await pubsub.subscribe(self._channel)
                # The first message confirms the subscription.
                await pubsub.get_message(timeout=PROBE_SECONDS)
            except (RedisError, OSError) as e:
                raise BusDisconnected(str(e)) from e
            yield RedisChannel(self._client, pubsub, self._channel)
        finally:
            await pubsub.aclose()


class RedisChannel:
    """A subscribed channel."""

    def __init__(self, client: Any, pubsub: Any, channel: str) -> None:
        self._client = client
        self._pubsub = pubsub
        self._channel = channel

    async def send(self, messages: Sequence[bytes]) -> None:
        try:
            async with self._client.pipeline(transaction=False) as pipeline:
                for message in messages:
                    pipeline.publish(self._channel, message)
                await pipeline.execute()
        except (RedisError, OSError) as e:
            raise BusDisconnected(str(e)) from e
        # The driver swallows a cancellation that arrives as a command ends.
        end_if_cancelled()

    async def received(self) -> AsyncIterator[bytes]:
        is_probed = False
        while True:
            try:
                message: Any = await self._pubsub.get_message(
                    ignore_subscribe_messages=True, timeout=PROBE_SECONDS
                )
                if message is None:
                    if is_probed:
                        raise BusDisconnected("no response")
                    await self._pubsub.ping()
            except (RedisError, OSError) as e:
                raise BusDisconnected(str(e)) from e
            end_if_cancelled()
            is_probed = message is None
            if message is not None and message["type"] == "message":
                yield message["data"]
