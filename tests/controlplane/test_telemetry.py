# SPDX-License-Identifier: Apache-2.0
"""The metrics and traces of a control plane."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx2
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families

from pipecd.controlplane.app import Ports
from pipecd.model.errors import UserMistake
from pipecd.observe import tracing
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import api_key, piped_token
from pipecd.wire.server import grpc_server
from servers.collector import TraceCollector
from servers.control_plane import ServedControlPlane, StartControlPlane
from servers.server import free_port

WATCH = "/grpc.service.pipedservice.PipedService/WatchWakeups"


async def status_of(call: Any) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return e.code()
    return grpc.StatusCode.OK


async def test_a_call_is_traced_down_to_the_stores(
    start_plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.05)
    collector = TraceCollector()
    async with (
        grpc_server([collector], host="127.0.0.1", port=0, grace=0) as port,
        start_plane(trace_collector=f"127.0.0.1:{port}", traces=True) as plane,
        open_channel(plane.address, authorization=api_key(plane.api_key), insecure=True) as channel,
    ):
        stub = APIServiceStub(channel)
        await stub.ListApplications(pb.ListApplicationsRequest())
        call = await collector.named("grpc.service.apiservice.APIService/ListApplications")
        store = await collector.named("datastore read")
        missing = pb.GetApplicationRequest(application_id="x")
        assert await status_of(stub.GetApplication(missing)) is grpc.StatusCode.NOT_FOUND
        failed = await collector.named("grpc.service.apiservice.APIService/GetApplication")
    assert collector.services == {"pipecd-server"}
    assert (len(call.trace_id), len(call.span_id), call.kind) == (16, 8, Span.SPAN_KIND_SERVER)
    assert (store.trace_id, store.parent_span_id) == (call.trace_id, call.span_id)
    assert call.start_time_unix_nano <= store.start_time_unix_nano
    assert store.end_time_unix_nano <= call.end_time_unix_nano
    about = {a.key: a.value.string_value for a in failed.attributes}
    assert about["rpc.method"] == "GetApplication"
    assert about["rpc.grpc.status_code"] == "5"
    # A request for a missing object is not an error of the server.
    assert failed.status.code == Status.STATUS_CODE_UNSET
    assert failed.trace_id != call.trace_id


TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("traceparent", "is_continued"),
    [
        pytest.param(f"00-{TRACE}-{CALLER}-01", True, id="a trace of the caller"),
        pytest.param(f"07-{TRACE}-{CALLER}-03-more", True, id="a later version with more fields"),
        pytest.param(f"00-{TRACE}-{CALLER}-01-more", False, id="this version with more fields"),
        pytest.param(f"ff-{TRACE}-{CALLER}-01", False, id="the invalid version"),
        pytest.param(f"00-{'0' * 32}-{CALLER}-01", False, id="an empty trace id"),
        pytest.param(f"00-{TRACE}-{'0' * 16}-01", False, id="an empty span id"),
        pytest.param(f"00-{TRACE.upper()}-{CALLER}-01", False, id="upper case"),
        pytest.param("nonsense", False, id="no traceparent"),
    ],
)
async def test_the_trace_of_a_caller_is_continued(
    start_plane: StartControlPlane,
    monkeypatch: pytest.MonkeyPatch,
    traceparent: str,
    is_continued: bool,
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.01)
    collector = TraceCollector()
    async with (
        grpc_server([collector], host="127.0.0.1", port=0, grace=0) as port,
        start_plane(trace_collector=f"127.0.0.1:{port}", traces=True) as plane,
        open_channel(plane.address, authorization=api_key(plane.api_key), insecure=True) as channel,
    ):
        stub = APIServiceStub(channel)
        # A trace that the caller does not sample is not sampled here either.
        unsampled = (("traceparent", f"00-{TRACE}-{CALLER}-00"),)
        missing = pb.GetApplicationRequest(application_id="x")
        code = await status_of(stub.GetApplication(missing, metadata=unsampled))
        assert code is grpc.StatusCode.NOT_FOUND
        sent = (("traceparent", traceparent),)
        await stub.ListApplications(pb.ListApplicationsRequest(), metadata=sent)
        span = await collector.named("grpc.service.apiservice.APIService/ListApplications")
        store = await collector.named("datastore read")
    parent = (bytes.fromhex(TRACE), bytes.fromhex(CALLER))
    assert ((span.trace_id, span.parent_span_id) == parent) is is_continued
    assert (len(span.trace_id), span.parent_span_id == b"") == (16, not is_continued)
    assert (store.trace_id, store.parent_span_id) == (span.trace_id, span.span_id)
    assert "grpc.service.apiservice.APIService/GetApplication" not in {
        s.name for s in collector.spans
    }


async def test_an_unavailable_collector_does_not_delay_calls(
    start_plane: StartControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.01)
    where = f"127.0.0.1:{free_port()}"
    async with (
        start_plane(trace_collector=where, traces=True) as plane,
        open_channel(plane.address, authorization=api_key(plane.api_key), insecure=True) as channel,
    ):
        for _ in range(20):
            await APIServiceStub(channel).ListApplications(pb.ListApplicationsRequest())


async def test_traces_need_a_collector(start_plane: StartControlPlane) -> None:
    with pytest.raises(UserMistake, match="add --trace-collector-address"):
        async with start_plane(traces=True):
            pass


def samples(page: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of_server(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted({"pipecd_component": "server", **labels}.items()))


@asynccontextmanager
async def wakeup_stream(plane: ServedControlPlane) -> AsyncIterator[None]:
    """The open wake-up stream of a piped."""
    piped = await plane.running.cases.pipeds.register("edge", "", by=plane.admin)
    token = piped_token("demo", piped.id, piped.key)
    async with open_channel(plane.address, authorization=token, insecure=True) as channel:
        assert PipedServiceStub(channel)
        call: Any = channel.unary_stream(WATCH, response_deserializer=Wakeup.FromString)(
            WatchWakeupsRequest().SerializeToString()
        )
        await call.read()
        yield
        call.cancel()


async def test_stores_bus_streams_and_jobs_are_counted(start_plane: StartControlPlane) -> None:
    ports = Ports(*(free_port() for _ in range(6)))
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(start_plane(ports=ports))
        http = await stack.enter_async_context(httpx2.AsyncClient())

        async def scrape() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
            response = await http.get(f"http://127.0.0.1:{ports.admin}/metrics")
            return samples(response.text)

        before = await scrape()
        async with wakeup_stream(plane):
            token = plane.running.cases.sessions.issue(plane.admin)
            page = f"http://{plane.address}/_/stream?t=apps"
            headers = {"cookie": f"token={token}"}
            async with http.stream("GET", page, headers=headers) as events:
                await anext(events.aiter_lines())
                during = await scrape()
    read = {"store": "datastore", "operation": "read"}
    assert during[of_server("pipecd_store_operations_total", **read, result="ok")] > 0
    assert during[of_server("pipecd_store_operation_seconds_count", **read)] > 0
    assert during[of_server("pipecd_bus_signals_total", topic="piped")] >= 1
    assert during[of_server("pipecd_streams", kind="wakeups")] == 1
    assert during[of_server("pipecd_streams", kind="console")] == 1
    subscribers = of_server("pipecd_bus_subscribers")
    assert during[subscribers] == before[subscribers] + 2
    ran = of_server("pipecd_job_runs_total", job="key-uses", result="success")
    assert during[ran] == 1
