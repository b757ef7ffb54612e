# SPDX-License-Identifier: Apache-2.0
"""A table authenticates, authorizes, validates and dispatches every RPC of its service."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipecd.model.errors import Denied, PipecdError, Unauthenticated, Unsupported, UserMistake
from pipecd.proto.service import api_pb2, api_pb2_grpc, wakeups_pb2
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import Metadata
from pipecd.wire.server import grpc_server
from pipecd.wire.status import INTERNAL
from pipecd.wire.table import RpcTable

SERVICE = api_pb2.DESCRIPTOR.services_by_name["APIService"]
EVERY_RPC = frozenset(SERVICE.methods_by_name)
KEY = (("authorization", "API-KEY key"),)
CODE = grpc.StatusCode


@asynccontextmanager
async def serving(
    table: RpcTable[str], *, grace: float = 1, key: str = "key"
) -> AsyncGenerator[grpc.aio.Channel, None]:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=grace) as port,
        open_channel(
            f"127.0.0.1:{port}", authorization=credentials.api_key(key), insecure=True
        ) as channel,
    ):
        yield channel


def get_command(id: str) -> api_pb2.GetCommandRequest:
    return api_pb2.GetCommandRequest(command_id=id)


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_a_call_reaches_its_part_with_the_caller(table: RpcTable[str], seen: Any) -> None:
    async with serving(table) as channel:
        answer = await api_pb2_grpc.APIServiceStub(channel).GetCommand(get_command("c1"))
    assert answer.command.id == "c1"
    assert seen.callers == ["key"]
    assert seen.calls == [("GetCommand", CODE.OK)]
    assert (seen.begun, seen.messages) == (["GetCommand"], ["GetCommand"])
    assert {("GetCommand", False), ("WatchWakeups", True)} < seen.offers


@pytest.mark.parametrize(
    ("id", "code", "text"),
    [
        pytest.param("missing", CODE.NOT_FOUND, "Command is not found", id="an expected failure"),
        pytest.param(
            "",
            CODE.INVALID_ARGUMENT,
            "invalid request: invalid GetCommandRequest.CommandId: "
            "value length must be at least 1 runes",
            id="a broken rule",
        ),
        pytest.param("bug", CODE.INTERNAL, INTERNAL, id="a bug is reported without its details"),
        pytest.param("wrong type", CODE.INTERNAL, INTERNAL, id="a part answers another message"),
    ],
)
async def test_failures_become_statuses(
    table: RpcTable[str], seen: Any, id: str, code: grpc.StatusCode, text: str
) -> None:
    async with serving(table) as channel:
        stub = api_pb2_grpc.APIServiceStub(channel)
        assert await failure(stub.GetCommand(get_command(id))) == (code, text)
        assert (await stub.GetCommand(get_command("still up"))).command.id == "still up"
    # Invalid requests never reach a handler, so they are not counted.
    counted = [] if code is CODE.INVALID_ARGUMENT else [("GetCommand", code)]
    assert seen.calls == [*counted, ("GetCommand", CODE.OK)]


async def test_the_traceback_of_a_bug_is_in_the_log(table: RpcTable[str]) -> None:
    with structlog.testing.capture_logs() as logs, pytest.raises(PipecdError, match=INTERNAL):
        await (await table.admit("GetCommand", KEY))(get_command("bug").SerializeToString())
    [line] = [entry for entry in logs if entry["log_level"] == "error"]
    assert (line["event"], line["rpc"], line["exc_info"]) == ("call failed", "GetCommand", True)


async def test_the_caller_is_authenticated_before_the_request_is_validated(
    table: RpcTable[str], seen: Any
) -> None:
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        open_channel(f"127.0.0.1:{port}", authorization="", insecure=True) as channel,
    ):
        stub = api_pb2_grpc.APIServiceStub(channel)
        code, text = await failure(stub.GetCommand(get_command("")))
    assert (code, text) == (CODE.UNAUTHENTICATED, "missing credentials in authorization")
    assert seen.callers == []


class Choosy(RpcTable[str]):
    """A table that denies one of its RPCs to every caller."""

    async def authorize(self, rpc: str, caller: str) -> None:
        if rpc == "EnablePiped":
            raise Denied(f"{caller} may not")


async def test_the_caller_is_authorized_before_the_request_is_validated(seen: Any) -> None:
    async def authenticate(metadata: Metadata) -> str:
        return credentials.parse_api_key(metadata)

    table = Choosy(SERVICE, [], authenticate, unimplemented=EVERY_RPC, observer=seen)
    for body in (b"", b"\xff", api_pb2.EnablePipedRequest(piped_id="p").SerializeToString()):
        with pytest.raises(Denied, match="key may not"):
            await (await table.admit("EnablePiped", KEY))(body)
        with pytest.raises(Unauthenticated):
            await (await table.admit("EnablePiped", ()))(body)
        with pytest.raises(Unsupported):
            await (await table.admit("GetPiped", KEY))(body)
    assert (seen.begun, seen.calls) == ([], [])


async def test_a_method_not_offered_yet_is_unimplemented(table: RpcTable[str]) -> None:
    async with serving(table) as channel:
        stub = api_pb2_grpc.APIServiceStub(channel)
        code, _ = await failure(stub.Encrypt(api_pb2.EncryptRequest()))
        unknown = channel.unary_unary("/grpc.service.apiservice.APIService/Nothing")
        assert code is CODE.UNIMPLEMENTED
        assert (await failure(unknown(b"")))[0] is CODE.UNIMPLEMENTED


async def test_old_clients_reach_the_service_by_its_former_name(table: RpcTable[str]) -> None:
    async with serving(table) as channel:
        former = channel.unary_unary(
            "/pipe.api.service.apiservice.APIService/GetCommand",
            request_serializer=api_pb2.GetCommandRequest.SerializeToString,
            response_deserializer=api_pb2.GetCommandResponse.FromString,
        )
        assert (await former(get_command("c1"))).command.id == "c1"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"\xff\xff\xff", id="no message at all"),
        pytest.param(b"\x0a\x02\xff\xfe", id="a text that is not UTF-8"),
        pytest.param(b"\x0a\x7fshort", id="a cut message"),
    ],
)
async def test_bytes_that_are_no_message_are_refused(table: RpcTable[str], body: bytes) -> None:
    async with serving(table) as channel:
        raw = channel.unary_unary("/grpc.service.apiservice.APIService/GetCommand")
        code, text = await failure(raw(body))
    assert code is CODE.INVALID_ARGUMENT
    assert text == "invalid request: the bytes are not a GetCommandRequest message"


async def test_a_cancelled_call_cancels_its_handler(table: RpcTable[str], seen: Any) -> None:
    async with serving(table) as channel:
        call = api_pb2_grpc.APIServiceStub(channel).GetCommand(get_command("slow"))
        await seen.entered.wait()
        call.cancel()
        await asyncio.wait_for(seen.cancelled.wait(), 5)
    assert ("GetCommand", CODE.CANCELLED) in seen.calls


def watch(channel: grpc.aio.Channel) -> Any:
    return channel.unary_stream(
        "/grpc.service.apiservice.APIService/WatchWakeups",
        request_serializer=wakeups_pb2.WatchWakeupsRequest.SerializeToString,
        response_deserializer=wakeups_pb2.Wakeup.FromString,
    )(wakeups_pb2.WatchWakeupsRequest())


async def test_a_stream_ends_with_the_server_and_not_after_the_grace(
    table: RpcTable[str], seen: Any
) -> None:
    async with asyncio.timeout(10), serving(table, grace=60) as channel:
        stream = watch(channel)
        kinds = [(await stream.read()).kind for _ in range(2)]
        assert kinds == [wakeups_pb2.Wakeup.CONNECTED, wakeups_pb2.Wakeup.COMMANDS]
        assert seen.streams_open == 1
        ending = asyncio.ensure_future(failure(stream.read()))
        await asyncio.sleep(0)
        table.drain()
        await asyncio.sleep(0)
        # The server repeats it until no stream is left.
        table.drain()
        assert await ending == (CODE.UNAVAILABLE, "the server is going away")
        watch(channel)
    assert seen.streams_open == 0


async def test_a_client_that_leaves_a_stream_closes_it(table: RpcTable[str], seen: Any) -> None:
    async with serving(table) as channel:
        stream = watch(channel)
        await stream.read()
        stream.cancel()
        await asyncio.wait_for(seen.closed.wait(), 5)
    assert seen.streams_open == 0
    assert ("WatchWakeups", CODE.CANCELLED) in seen.calls


async def test_a_stream_is_guarded_like_any_call(table: RpcTable[str]) -> None:
    async with serving(table, key="broken") as channel:
        stream = watch(channel)
        await stream.read()
        await stream.read()
        assert await failure(stream.read()) == (CODE.INTERNAL, INTERNAL)
    async with serving(table, key="late") as channel:
        stream = watch(channel)
        await stream.read()
        await stream.read()
        assert await failure(stream.read()) == (CODE.INTERNAL, INTERNAL)
    async with (
        grpc_server([table], host="127.0.0.1", port=0, grace=0) as port,
        open_channel(f"127.0.0.1:{port}", authorization="", insecure=True) as channel,
    ):
        assert (await failure(watch(channel).read()))[0] is CODE.UNAUTHENTICATED


@pytest.mark.parametrize(
    "method",
    [
        "GetCommand",
        "/grpc.service.apiservice.APIService/GetCommand",
        "/pipe.api.service.apiservice.APIService/GetCommand",
    ],
)
async def test_dispatch_answers_bytes_with_bytes(table: RpcTable[str], method: str) -> None:
    answer = await (await table.admit(method, KEY))(get_command("c1").SerializeToString())
    assert api_pb2.GetCommandResponse.FromString(answer).command.id == "c1"


@pytest.mark.parametrize(
    ("method", "body", "metadata", "error"),
    [
        pytest.param("GetCommand", b"", KEY, UserMistake, id="a broken rule"),
        pytest.param("GetCommand", b"", (), Unauthenticated, id="no credentials"),
        pytest.param("Encrypt", b"", KEY, Unsupported, id="not registered yet"),
        pytest.param("/other.Service/GetCommand", b"", KEY, Unsupported, id="another service"),
        pytest.param("Nothing", b"", KEY, Unsupported, id="an unknown method"),
        pytest.param("WatchWakeups", b"", KEY, Unsupported, id="a stream"),
    ],
)
async def test_dispatch_fails_with_our_errors(
    table: RpcTable[str], method: str, body: bytes, metadata: Any, error: type[PipecdError]
) -> None:
    with pytest.raises(error):
        await (await table.admit(method, metadata))(body)


@given(
    method=st.sampled_from([*SERVICE.methods_by_name, "Nothing", "", "/"]) | st.text(max_size=8),
    body=st.binary(max_size=64),
    authorization=st.text(st.characters(codec="latin-1"), max_size=16) | st.just("API-KEY k"),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_no_input_gets_past_the_gate_unguarded(
    table: RpcTable[str], method: str, body: bytes, authorization: str
) -> None:
    try:
        answer = await (await table.admit(method, (("authorization", authorization),)))(body)
    except PipecdError as e:
        assert e.message != INTERNAL
    else:
        assert isinstance(answer, bytes)


class One:
    """A part with one RPC."""

    async def GetCommand(self, request: Any, caller: str) -> Any: ...


class Odd:
    """A part with a method that is no RPC."""

    async def GetComand(self, request: Any, caller: str) -> Any: ...


class Blocking:
    """A part with a plain function."""

    def GetCommand(self, request: Any, caller: str) -> Any: ...


async def nobody(metadata: credentials.Metadata) -> str:
    return ""


@pytest.mark.parametrize(
    ("parts", "unimplemented", "error_text"),
    [
        pytest.param(
            [One()], EVERY_RPC - {"GetCommand", "Encrypt"}, "Encrypt is missing", id="gap"
        ),
        pytest.param(
            [One(), One()], EVERY_RPC - {"GetCommand"}, "GetCommand has two handlers", id="double"
        ),
        pytest.param(
            [Odd()], EVERY_RPC, "GetComand is not an RPC of the service", id="typing error"
        ),
        pytest.param(
            [One()],
            EVERY_RPC,
            "GetCommand is in unimplemented and exists",
            id="stale unimplemented",
        ),
        pytest.param(
            [], EVERY_RPC | {"Nope"}, "Nope is in unimplemented but no RPC", id="no such RPC"
        ),
        pytest.param(
            [Blocking()], EVERY_RPC - {"GetCommand"}, "GetCommand is not an async method", id="sync"
        ),
    ],
)
def test_an_incomplete_table_is_refused_at_start(
    parts: Sequence[object], unimplemented: frozenset[str], error_text: str
) -> None:
    with pytest.raises(TypeError, match=error_text):
        RpcTable(SERVICE, parts, nobody, unimplemented=unimplemented)


def test_a_streaming_rpc_of_the_service_must_be_given() -> None:
    wakeups = wakeups_pb2.DESCRIPTOR.services_by_name["Wakeups"]
    with pytest.raises(TypeError, match="WatchWakeups is missing in streams"):
        RpcTable(wakeups, [], nobody)


def test_a_stream_cannot_replace_an_rpc() -> None:
    stream: Any = (api_pb2.GetCommandRequest, None)
    with pytest.raises(TypeError, match="GetCommand is a unary RPC"):
        RpcTable(SERVICE, [], nobody, unimplemented=EVERY_RPC, streams={"GetCommand": stream})
