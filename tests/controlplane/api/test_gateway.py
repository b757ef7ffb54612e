# SPDX-License-Identifier: Apache-2.0
"""External authorization for Envoy, and traces that pipeds send to the API address."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from pipecd.controlplane.api.gateway import TraceCollector, TraceForwarder, authz_table
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from pipecd.proto.gateway.authz_pb2 import CheckRequest, CheckResponse
from pipecd.wire.server import grpc_server

CODE = grpc.StatusCode
CHECK = "/envoy.service.auth.v3.Authorization/Check"
Bearer = Callable[..., str]


@pytest.fixture
def bearer(registered: RegisteredPiped) -> Bearer:
    """The header of the registered piped, with parts replaced."""

    def made(project: str = "shop", id: str = registered.id, key: str = registered.key) -> str:
        return f"Bearer {project},{id},{key}"

    return made


@pytest.fixture
async def check(cases: UseCases) -> AsyncIterator[Callable[..., Any]]:
    """Sends a check request as Envoy does."""
    async with (
        grpc_server([authz_table(cases)], host="127.0.0.1", port=0, grace=0) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        call: Any = channel.unary_unary(CHECK, response_deserializer=CheckResponse.FromString)

        async def send_check(**headers: str) -> tuple[int, str]:
            request = CheckRequest()
            request.attributes.request.http.path = OTLP_EXPORT_METHOD
            request.attributes.request.http.headers.update(headers)
            # A field that Envoy sends and the service ignores.
            status = (await call(request.SerializeToString() + b"\xfa\x07\x01x")).status
            return status.code, status.message

        yield send_check


async def test_a_piped_is_accepted_with_its_key(check: Callable[..., Any], bearer: Bearer) -> None:
    assert await check(authorization=bearer()) == (0, "OK")


@pytest.mark.parametrize(
    ("header", "verdict"),
    [
        pytest.param(None, (16, "missing authorization header"), id="no header"),
        pytest.param("Basic abc", (7, "invalid authorization header"), id="another scheme"),
        pytest.param(
            "bearer a,b,c", (7, "invalid authorization header"), id="a scheme in lower case"
        ),
        pytest.param("Bearer a,b", (7, "malformed piped token"), id="two parts"),
        pytest.param("Bearer a,,c", (7, "malformed piped token"), id="an empty part"),
        pytest.param("Bearer a,b,c", (7, "Unauthenticated"), id="an unknown piped"),
    ],
)
async def test_a_request_is_refused_with(
    check: Callable[..., Any], header: str | None, verdict: tuple[int, str]
) -> None:
    assert await check(**({} if header is None else {"authorization": header})) == verdict


async def test_wrong_keys_other_projects_and_disabled_pipeds_are_refused(
    check: Callable[..., Any],
    bearer: Bearer,
    cases: UseCases,
    registered: RegisteredPiped,
    admin: User,
) -> None:
    refused = (7, "Unauthenticated")
    assert await check(authorization=bearer(key="wrong")) == refused
    assert await check(authorization=bearer(project="declared")) == refused
    assert await check(authorization=bearer()) == (0, "OK")
    await cases.pipeds.disable(registered.id, by=admin)
    assert await check(authorization=bearer()) == refused


class OtherCollector(grpc.GenericRpcHandler):
    """A trace collector that stores the requests."""

    def __init__(self) -> None:
        self.got: list[tuple[bytes, list[str]]] = []

    def service(self, handler_call_details: Any) -> Any:
        assert handler_call_details.method == OTLP_EXPORT_METHOD
        serve: Any = self._serve
        return grpc.unary_unary_rpc_method_handler(serve)

    async def _serve(self, request: bytes, context: Any) -> bytes:
        names = [name for name, _ in context.invocation_metadata()]
        self.got.append((request, names))
        if request == b"bad":
            await context.abort(CODE.INVALID_ARGUMENT, "what is this")
        return b"answer of " + request


Exporting = Callable[..., AbstractAsyncContextManager[Callable[..., Any]]]


@pytest.fixture
def exporting(cases: UseCases) -> Exporting:
    """Starts the trace service, with or without a collector."""

    @asynccontextmanager
    async def opened(export: Any = None) -> AsyncIterator[Callable[..., Any]]:
        forwarder = TraceForwarder(cases.credentials, export)
        async with (
            grpc_server([forwarder], host="127.0.0.1", port=0, grace=0) as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call: Any = channel.unary_unary(OTLP_EXPORT_METHOD)

            async def sent(body: bytes, header: str) -> bytes:
                return await call(body, metadata=(("authorization", header),))

            yield sent

    return opened


async def test_traces_are_accepted_and_dropped_without_a_collector(
    exporting: Exporting, bearer: Bearer
) -> None:
    async with exporting() as send:
        assert await send(b"\x0a\x00", bearer()) == b""


async def test_traces_are_forwarded_unchanged_without_the_key(
    exporting: Exporting, bearer: Bearer
) -> None:
    other = OtherCollector()
    async with (
        grpc_server([other], host="127.0.0.1", port=0, grace=0) as port,
        TraceCollector.connect(f"127.0.0.1:{port}") as collector,
        exporting(collector.export) as send,
    ):
        assert await send(b"\xff\x00spans", bearer()) == b"answer of \xff\x00spans"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send(b"bad", bearer())
    assert (refused.value.code(), refused.value.details()) == (
        CODE.INVALID_ARGUMENT,
        "what is this",
    )
    ((body, names), _) = other.got
    assert body == b"\xff\x00spans"
    assert "authorization" not in names


@pytest.mark.parametrize(
    ("header", "code"),
    [
        pytest.param("", CODE.UNAUTHENTICATED, id="no key"),
        pytest.param("Bearer shop,x,y", CODE.PERMISSION_DENIED, id="a wrong key"),
    ],
)
async def test_traces_are_refused_with(
    exporting: Exporting, header: str, code: grpc.StatusCode
) -> None:
    async with exporting() as send:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send(b"", header)
    assert refused.value.code() is code


async def test_an_unreachable_collector_is_reported_as_unavailable(
    exporting: Exporting, bearer: Bearer
) -> None:
    # Nothing listens on the reserved port 1.
    async with (
        TraceCollector.connect("127.0.0.1:1") as collector,
        exporting(collector.export) as send,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await send(b"spans", bearer())
    assert refused.value.code() is CODE.UNAVAILABLE
