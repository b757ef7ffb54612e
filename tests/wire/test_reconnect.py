# SPDX-License-Identifier: Apache-2.0
"""A connection that falls silent is replaced; one whose server is slow is not."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from faults.network import LinkState, TcpProxy
from pipecd.model.backoff import Backoff
from pipecd.model.errors import Unavailable
from pipecd.proto.service import api_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire import channel as channel_module
from pipecd.wire import reconnect
from pipecd.wire.channel import read_wakeups
from pipecd.wire.reconnect import (
    ConnectionReplaced,
    ReconnectingChannel,
    open_reconnecting_channel,
)
from pipecd.wire.server import grpc_server
from pipecd.wire.table import RpcTable
from wire.conftest import Seen

LATE = 0.1
WATCH = "/grpc.service.apiservice.APIService/WatchWakeups"


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect, "_PROBE_TIMEOUT", Backoff(first=0.3, longest=30))
    monkeypatch.setattr(reconnect, "_PROBE_PAUSE", 0.05)
    monkeypatch.setattr(channel_module, "_LATE_HEARTBEAT", 0.1)


@asynccontextmanager
async def connected(
    table: RpcTable[str], key: str = "k"
) -> AsyncGenerator[tuple[TcpProxy, ReconnectingChannel]]:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        TcpProxy([port]).serve() as proxy,
        open_reconnecting_channel(
            f"127.0.0.1:{proxy.port}", authorization=f"API-KEY {key}", insecure=True
        ) as channel,
    ):
        yield proxy, channel


async def get_command(channel: ReconnectingChannel, id_: str) -> str:
    with channel.expect_response(LATE):
        response = await APIServiceStub(channel).GetCommand(
            api_pb2.GetCommandRequest(command_id=id_), timeout=20
        )
    return response.command.id


async def outlive_a_cancellation() -> None:
    """As a TaskGroup leaves its parent in which a task failed while it was being left."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert task.cancelling()


@pytest.mark.parametrize("state", [LinkState.SILENT, LinkState.HALF_OPEN])
async def test_a_connection_that_falls_silent_is_replaced(
    table: RpcTable[str], state: LinkState
) -> None:
    async with connected(table) as (proxy, channel):
        assert await get_command(channel, "a") == "a"
        proxy.silence(state)
        with capture_logs() as logs:
            calls = [asyncio.create_task(get_command(channel, "b")) for _ in range(3)]
            async with asyncio.timeout(5):
                results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionReplaced] * 3
        assert [entry["event"] for entry in logs] == ["connection fell silent, reconnecting"]
        async with asyncio.timeout(5):
            assert await get_command(channel, "c") == "c"
        assert proxy.accepted == 2


async def test_a_call_that_is_only_slow_keeps_its_connection(
    table: RpcTable[str], seen: Seen
) -> None:
    async with connected(table) as (proxy, channel):
        call = asyncio.create_task(get_command(channel, "slow"))
        await seen.entered.wait()
        # Several probes long.
        await asyncio.sleep(1)
        assert not call.done()
        assert await get_command(channel, "a") == "a"
        assert proxy.accepted == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_cancelled_caller_is_cancelled_also_while_the_connection_is_replaced(
    table: RpcTable[str],
) -> None:
    async with connected(table) as (proxy, channel):
        await get_command(channel, "a")
        proxy.silence()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(LATE * 2):
                await get_command(channel, "b")


async def test_an_earlier_cancellation_of_a_task_is_not_taken_for_a_new_one(
    table: RpcTable[str],
) -> None:
    async with connected(table) as (proxy, channel):
        assert await get_command(channel, "a") == "a"

        async def call() -> str:
            await outlive_a_cancellation()
            proxy.silence()
            return await get_command(channel, "b")

        with pytest.raises(ConnectionReplaced):
            await asyncio.create_task(call())


class RecordedBackoff(Backoff):
    """The time of the probes, which records how many replacements there were."""

    replacements: ClassVar[list[int]]

    def after(self, failures: int) -> float:
        self.replacements.append(failures - 1)
        return self.first


@pytest.mark.parametrize(
    ("is_in_time", "replacements"), [pytest.param(False, [0, 1, 2]), pytest.param(True, [0, 0, 0])]
)
async def test_a_probe_may_take_longer_after_each_replacement_in_vain(
    table: RpcTable[str],
    monkeypatch: pytest.MonkeyPatch,
    is_in_time: bool,
    replacements: list[int],
) -> None:
    RecordedBackoff.replacements = []
    monkeypatch.setattr(reconnect, "_PROBE_TIMEOUT", RecordedBackoff(first=0.3, longest=0.3))
    async with connected(table) as (proxy, channel):
        for _ in range(3):
            await channel.channel_ready()
            if is_in_time:
                with channel.expect_response(within=20):
                    await APIServiceStub(channel).GetCommand(
                        api_pb2.GetCommandRequest(command_id="a")
                    )
            proxy.silence()
            with pytest.raises(ConnectionReplaced):
                await get_command(channel, "b")
    assert RecordedBackoff.replacements == replacements


async def test_a_server_that_is_away_is_not_taken_for_silent(table: RpcTable[str]) -> None:
    async with connected(table) as (proxy, channel):
        await get_command(channel, "a")
        proxy.cut()
        await channel.wait_for_state_change(grpc.ChannelConnectivity.READY)
        with (
            capture_logs() as logs,
            pytest.raises(grpc.aio.AioRpcError) as failed,
            channel.expect_response(0.01),
        ):
            await APIServiceStub(channel).GetCommand(
                api_pb2.GetCommandRequest(command_id="b"), timeout=1, wait_for_ready=True
            )
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert logs == []
        proxy.heal()
        async with asyncio.timeout(10):
            await channel.channel_ready()
            assert await get_command(channel, "c") == "c"


def watch(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamCall[WatchWakeupsRequest, Wakeup]:
    return channel.unary_stream(
        WATCH,
        request_serializer=WatchWakeupsRequest.SerializeToString,
        response_deserializer=Wakeup.FromString,
    )(WatchWakeupsRequest(heartbeat_seconds=0.2))


async def test_a_stream_of_a_server_without_heartbeats_may_be_silent(
    table: RpcTable[str],
) -> None:
    async with connected(table) as (_, channel):
        stream = read_wakeups(watch(channel), expect_response=channel.expect_response)
        assert (await anext(stream)).kind == Wakeup.CONNECTED
        assert (await anext(stream)).kind == Wakeup.COMMANDS
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(stream)
        await stream.aclose()


async def heartbeats(count: int) -> AsyncGenerator[Wakeup]:
    yield Wakeup(kind=Wakeup.CONNECTED, heartbeat_seconds=0.1)
    for _ in range(count):
        yield Wakeup(kind=Wakeup.HEARTBEAT)
    await asyncio.Event().wait()


@asynccontextmanager
async def beating(count: int) -> AsyncGenerator[tuple[TcpProxy, ReconnectingChannel]]:
    """A server whose stream sends so many heartbeats, each at once."""

    async def serve(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        async for wakeup in heartbeats(count):
            await context.write(wakeup.SerializeToString())

    handlers = {"WatchWakeups": grpc.unary_stream_rpc_method_handler(serve)}  # type: ignore[arg-type]
    handler = grpc.method_handlers_generic_handler("grpc.service.apiservice.APIService", handlers)
    async with (
        grpc_server([handler], host="127.0.0.1", port=0, grace=0) as port,
        TcpProxy([port]).serve() as proxy,
        open_reconnecting_channel(
            f"127.0.0.1:{proxy.port}", authorization="", insecure=True
        ) as channel,
    ):
        yield proxy, channel


async def test_a_stream_whose_heartbeats_stop_fails_although_its_connection_works() -> None:
    async with beating(3) as (proxy, channel):
        stream = read_wakeups(watch(channel), expect_response=channel.expect_response)
        received: list[int] = []
        with pytest.raises(Unavailable, match=r"the wake-up stream was silent for 0\.2s"):
            async for wakeup in stream:
                received.append(wakeup.kind)
        assert received == [Wakeup.CONNECTED, *[Wakeup.HEARTBEAT] * 3]
        assert proxy.accepted == 1


async def test_a_late_heartbeat_starts_a_probe_of_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "_SILENT_HEARTBEATS", 1000)
    async with beating(3) as (proxy, channel):
        stream = read_wakeups(watch(channel), expect_response=channel.expect_response)
        for _ in range(4):
            await anext(stream)
        proxy.silence()
        with pytest.raises(ConnectionReplaced):
            async with asyncio.timeout(5):
                await anext(stream)
