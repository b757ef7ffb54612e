# SPDX-License-Identifier: Apache-2.0
"""Metrics under the names that dashboards use."""

from contextlib import suppress

import grpc
import prometheus_client
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipecd.model.errors import Conflict, NotFound, Unavailable, UserMistake
from pipecd.observe.metrics import PluginMetrics, ServerMetrics, StoreMetrics, code_name
from pipecd.observe.operations import ObservedOperation

RPC = ("grpc.service.pipedservice.PipedService", "ReportStat")
LABELS = {"grpc_type": "unary", "grpc_service": RPC[0], "grpc_method": RPC[1]}


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics.new()


def samples(metrics: ServerMetrics) -> list[Sample]:
    """The samples of the metrics page, as Prometheus parses them."""
    page = generate_latest(metrics.registry).decode()
    return [s for family in text_string_to_metric_families(page) for s in family.samples]


def value(metrics: ServerMetrics, name: str, **labels: str) -> float | None:
    expected = {**labels, "pipecd_component": "server"}
    found = [s.value for s in samples(metrics) if s.name == name and s.labels == expected]
    assert len(found) < 2
    return found[0] if found else None


def test_every_rpc_has_counters_before_its_first_call(metrics: ServerMetrics) -> None:
    metrics.rpc.registered(*RPC, streaming=False)
    metrics.rpc.registered(RPC[0], "WatchWakeups", streaming=True)
    for name in ("started", "msg_received", "msg_sent"):
        assert value(metrics, f"grpc_server_{name}_total", **LABELS) == 0
    assert value(metrics, "grpc_server_handled_total", **LABELS, grpc_code="OK") == 0
    stream = {**LABELS, "grpc_method": "WatchWakeups", "grpc_type": "server_stream"}
    assert value(metrics, "grpc_server_started_total", **stream) == 0


def test_rpcs_are_counted_by_status_code(metrics: ServerMetrics) -> None:
    metrics.rpc.registered(*RPC, streaming=False)
    for code in (grpc.StatusCode.OK, grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND):
        metrics.rpc.started(*RPC, ())
        if code is grpc.StatusCode.OK:
            metrics.rpc.sent(*RPC)
        metrics.rpc.observed(*RPC, code, 0.1)
    assert value(metrics, "grpc_server_started_total", **LABELS) == 3
    assert value(metrics, "grpc_server_msg_received_total", **LABELS) == 3
    assert value(metrics, "grpc_server_msg_sent_total", **LABELS) == 2
    assert value(metrics, "grpc_server_handled_total", **LABELS, grpc_code="OK") == 2
    assert value(metrics, "grpc_server_handled_total", **LABELS, grpc_code="NotFound") == 1


def test_http_responses_are_counted_and_timed(metrics: ServerMetrics) -> None:
    metrics.http.responded("GET", "/applications/{id}", 200, 0.004)
    metrics.http.responded("BREW", "/", 405, 0.7)
    labels = {"code": "200", "method": "get", "path": "/applications/{id}"}
    assert value(metrics, "http_requests_total", **labels) == 1
    assert value(metrics, "http_requests_total", code="405", method="other", path="/") == 1
    name = "http_request_duration_milliseconds"
    assert value(metrics, f"{name}_sum", **labels) == 4
    buckets = {
        float(s.labels["le"]): s.value
        for s in samples(metrics)
        if s.name == f"{name}_bucket" and s.labels["code"] == "200"
    }
    infinity = float("inf")
    assert buckets == dict.fromkeys((5, 25, 125, 625, 3125, 15625, infinity), 1) | {1: 0}


def test_created_deployments_and_cache_reads_are_counted(metrics: ServerMetrics) -> None:
    metrics.deployment_created("shop")
    count_read = metrics.cache_reads("inmemory")
    for hit in (True, False):
        count_read(hit)
    assert value(metrics, "grpcapi_create_deployment_total", project="shop") == 1
    for status in ("hit", "miss"):
        reads = value(metrics, "cache_get_operation_total", status=status, source="inmemory")
        assert reads == 1


def test_every_sample_names_its_component_and_none_is_a_creation_time(
    metrics: ServerMetrics,
) -> None:
    metrics.deployment_created("shop")
    found = samples(metrics)
    assert "process_resident_memory_bytes" in {s.name for s in found}
    assert {s.labels.get("pipecd_component") for s in found} == {"server"}
    assert not [s.name for s in found if s.name.endswith("_created")]


def test_two_servers_in_one_process_do_not_share_metrics(metrics: ServerMetrics) -> None:
    metrics.deployment_created("shop")
    name = "grpcapi_create_deployment_total"
    assert value(ServerMetrics.new(), name, project="shop") is None
    assert name not in generate_latest(prometheus_client.REGISTRY).decode()


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (grpc.StatusCode.OK, "OK"),
        (grpc.StatusCode.CANCELLED, "Canceled"),
        (grpc.StatusCode.INVALID_ARGUMENT, "InvalidArgument"),
        (grpc.StatusCode.UNAUTHENTICATED, "Unauthenticated"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "ResourceExhausted"),
    ],
)
def test_status_codes_are_spelled_as_in_grpc_go(code: grpc.StatusCode, name: str) -> None:
    assert code_name(code) == name


def test_plugins_that_name_the_same_counter_share_it() -> None:
    plugin_metrics = PluginMetrics()
    for _ in ("one", "two"):
        plugin_metrics.counter("calls_total", "Calls.", ("code",)).add(code="200")
    plugin_metrics.counter("starts_total", "Starts.").add()
    assert plugin_metrics.value("calls_total", {"code": "200"}) == 2
    assert plugin_metrics.value("calls_total", {"code": "500"}) == 0
    assert plugin_metrics.value("starts_total", {}) == 1
    assert [family.name for family in plugin_metrics.collect()] == ["calls", "starts"]


def test_a_counter_with_other_labels_is_refused() -> None:
    plugin_metrics = PluginMetrics()
    plugin_metrics.counter("calls_total", "Calls.", ("code",))
    with pytest.raises(
        Conflict, match="metric calls_total already has the labels code; use the same labels"
    ):
        plugin_metrics.counter("calls_total", "Calls.", ("host",))


def test_a_missing_label_value_is_refused() -> None:
    calls = PluginMetrics().counter("calls_total", "Calls.", ("code", "host"))
    with pytest.raises(ValueError, match="label"):
        calls.add(code="200")


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "ok"),
        (NotFound("x"), "ok"),
        (Unavailable("x"), "unavailable"),
        (UserMistake("x"), "refused"),
        (RuntimeError("x"), "failed"),
    ],
)
def test_store_operations_are_counted_by_result_and_timed(
    metrics: ServerMetrics, error: Exception | None, result: str
) -> None:
    stores = StoreMetrics(metrics.registry, "server")
    for _ in range(2):
        with suppress(Exception), ObservedOperation((stores,), "datastore", "read"):
            if error is not None:
                raise error
    labels = {"store": "datastore", "operation": "read"}
    assert value(metrics, "pipecd_store_operations_total", **labels, result=result) == 2
    assert value(metrics, "pipecd_store_operation_seconds_count", **labels) == 2
    bounds = [
        s.labels["le"]
        for s in samples(metrics)
        if s.name == "pipecd_store_operation_seconds_bucket"
    ]
    assert bounds == [
        "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "1.0", "5.0", "30.0",
        "+Inf",
    ]  # fmt: skip


def test_bus_signals_subscribers_and_streams_are_counted(metrics: ServerMetrics) -> None:
    stores = StoreMetrics(metrics.registry, "server")
    stores.signalled("piped")
    stores.signalled("piped")
    stores.subscribed(1)
    stores.streams("console", lambda: 3)
    assert value(metrics, "pipecd_bus_signals_total", topic="piped") == 2
    assert value(metrics, "pipecd_bus_subscribers") == 1
    assert value(metrics, "pipecd_streams", kind="console") == 3
    assert not [s.name for s in samples(metrics) if s.name.endswith("_created")]
