# SPDX-License-Identifier: Apache-2.0
"""The proxies do what the faults say, and count only what happened."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from faults.network import LinkState, RpcProxy, TcpProxy
from pipecd.proto.service.batch_pb2 import BatchedCall, CallBatchRequest

METHOD = "/service/Report"


class Upstream(grpc.GenericRpcHandler):
    """A control plane that counts its calls and the connections that they came by."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def serve(request: bytes, context: Any) -> bytes:
            self.calls.append(context.peer())
            return request

        return grpc.unary_unary_rpc_method_handler(serve)


@asynccontextmanager
async def proxied() -> AsyncGenerator[tuple[Upstream, TcpProxy, RpcProxy], None]:
    upstream, server = Upstream(), grpc.aio.server()
    server.add_generic_rpc_handlers([upstream])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with TcpProxy([port]).serve() as balancer, RpcProxy(balancer.port).serve() as calls:
        yield upstream, balancer, calls
    await server.stop(0)


async def call(
    proxy: RpcProxy, piped: str, method: str = METHOD, request: bytes = b"x"
) -> grpc.StatusCode:
    """One call of a piped, which waits until the proxy serves."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{proxy.port}") as channel:
        try:
            await channel.unary_unary(method)(
                request, metadata=(("authorization", f"shop,{piped},key"),), wait_for_ready=True
            )
        except grpc.aio.AioRpcError as e:
            return e.code()
    return grpc.StatusCode.OK


async def test_every_piped_has_a_connection_of_its_own_to_the_balancer() -> None:
    async with proxied() as (upstream, balancer, proxy):
        for piped in ("a", "b", "a", "c"):
            assert await call(proxy, piped) is grpc.StatusCode.OK
        assert balancer.accepted == 3
        assert len(set(upstream.calls)) == 3


@pytest.mark.parametrize(("when", "arrived"), [("before", 0), ("after", 1)])
async def test_a_piped_that_dies_before_a_call_does_not_make_it(when: str, arrived: int) -> None:
    killed: list[str] = []

    def kill(piped: str) -> bool:
        killed.append(piped)
        return piped == "a"

    async with proxied() as (upstream, _, proxy):
        proxy.at_call["Report", when] = kill
        assert await call(proxy, "b") is grpc.StatusCode.OK
        upstream.calls.clear()
        await call(proxy, "a")
        assert len(upstream.calls) == arrived
        assert await call(proxy, "a") is grpc.StatusCode.OK
    assert killed == ["b", "a"]


async def test_what_happens_during_a_call_leaves_the_call_and_its_answer_alone() -> None:
    reached: list[str] = []

    def kill(piped: str) -> bool:
        reached.append(piped)
        return True

    async with proxied() as (upstream, _, proxy):
        proxy.at_call["Report", "during"] = kill
        for _ in range(2):
            assert await call(proxy, "a") is grpc.StatusCode.OK
        assert len(upstream.calls) == 2
    assert reached == ["a"]


async def test_new_connections_are_half_open_until_everything_is_healed() -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.put_nowait(await reader.readline())
        writer.write(b"answer\n")
        await writer.drain()
        writer.close()

    async def ask(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"question\n")
            return await reader.readline()
        finally:
            writer.close()

    arrived = asyncio.Queue[bytes]()
    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, TcpProxy([port]).serve() as link:
        link.state_of_new = LinkState.HALF_OPEN
        unanswered = asyncio.create_task(ask(link.port))
        assert await arrived.get() == b"question\n"
        link.heal()
        assert await ask(link.port) == b"answer\n"
        assert not unanswered.done()
        unanswered.cancel()
        await asyncio.wait({unanswered})


async def test_effects_are_counted_when_they_happen() -> None:
    async with proxied() as (upstream, _, proxy):
        proxy.losing["Report"], proxy.doubling = 1, {"Report"}
        assert not proxy.effects
        assert await call(proxy, "a") is grpc.StatusCode.UNAVAILABLE
        assert proxy.effects == {"lost": 1, "doubled": 1}
        assert len(upstream.calls) == 2


async def test_a_response_is_lost_to_a_batch_that_carries_the_call() -> None:
    batch = CallBatchRequest(calls=[BatchedCall(rpc="Report")])
    async with proxied() as (_, _, proxy):
        proxy.losing["Report"] = 1
        code = await call(proxy, "a", "/service/CallBatch", batch.SerializeToString())
        assert code is grpc.StatusCode.UNAVAILABLE
        assert proxy.effects == {"lost": 1}
