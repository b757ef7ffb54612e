# SPDX-License-Identifier: Apache-2.0
"""Figures at the names that dashboards know."""

import grpc
import prometheus_client
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipecd.model.errors import Conflict
from pipecd.observe.metrics import ServerMetrics, Tallies, code_name

RPC = ("grpc.service.pipedservice.PipedService", "ReportStat")
LABELS = {"grpc_type": "unary", "grpc_service": RPC[0], "grpc_method": RPC[1]}


@pytest.fixture
def metrics() -> ServerMetrics:
    return ServerMetrics.new()


def samples(metrics: ServerMetrics) -> list[Sample]:
    """What the page of the admin port says, as Prometheus reads it."""
    page = generate_latest(metrics.registry).decode()
    return [s for family in text_string_to_metric_families(page) for s in family.samples]


def value(metrics: ServerMetrics, name: str, **labels: str) -> float | None:
    wanted = {**labels, "pipecd_component": "server"}
    found = [s.value for s in samples(metrics) if s.name == name and s.labels == wanted]
    assert len(found) < 2
    return found[0] if found else None


def test_every_rpc_is_there_before_its_first_call(metrics: ServerMetrics) -> None:
    metrics.rpc.offered(*RPC, streaming=False)
    metrics.rpc.offered(RPC[0], "WatchWakeups", streaming=True)
    for name in ("started", "msg_received", "msg_sent"):
        assert value(metrics, f"grpc_server_{name}_total", **LABELS) == 0
    assert value(metrics, "grpc_server_handled_total", **LABELS, grpc_code="OK") == 0
    stream = {**LABELS, "grpc_method": "WatchWakeups", "grpc_type": "server_stream"}
    assert value(metrics, "grpc_server_started_total", **stream) == 0


def test_calls_are_counted_by_how_they_ended(metrics: ServerMetrics) -> None:
    metrics.rpc.offered(*RPC, streaming=False)
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


def test_answers_of_the_web_are_counted_and_timed(metrics: ServerMetrics) -> None:
    metrics.http.answered("GET", "/applications/{id}", 200, 0.004)
    metrics.http.answered("BREW", "/", 405, 0.7)
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


def test_deployments_and_the_cache_are_counted(metrics: ServerMetrics) -> None:
    metrics.deployment_created("shop")
    metrics.cache_asked("inmemory", hit=True)
    metrics.cache_asked("inmemory", hit=False)
    assert value(metrics, "grpcapi_create_deployment_total", project="shop") == 1
    for status in ("hit", "miss"):
        asked = value(metrics, "cache_get_operation_total", status=status, source="inmemory")
        assert asked == 1


def test_every_figure_says_which_program_it_is_of_and_none_when_it_began(
    metrics: ServerMetrics,
) -> None:
    metrics.deployment_created("shop")
    found = samples(metrics)
    assert "process_resident_memory_bytes" in {s.name for s in found}
    assert {s.labels.get("pipecd_component") for s in found} == {"server"}
    assert not [s.name for s in found if s.name.endswith("_created")]


def test_two_programs_in_one_process_do_not_mix(metrics: ServerMetrics) -> None:
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
def test_codes_are_spelt_as_dashboards_do(code: grpc.StatusCode, name: str) -> None:
    assert code_name(code) == name


def test_plugins_that_name_the_same_figure_count_together() -> None:
    tallies = Tallies()
    for _ in ("one", "two"):
        tallies.tally("calls_total", "Calls.", ("code",)).add(code="200")
    tallies.tally("starts_total", "Starts.").add()
    assert tallies.value("calls_total", {"code": "200"}) == 2
    assert tallies.value("calls_total", {"code": "500"}) == 0
    assert tallies.value("starts_total", {}) == 1
    assert [family.name for family in tallies.collect()] == ["calls", "starts"]


def test_a_figure_has_the_same_labels_wherever_it_is_counted() -> None:
    tallies = Tallies()
    tallies.tally("calls_total", "Calls.", ("code",))
    with pytest.raises(Conflict, match="calls_total is counted by code already; count it by"):
        tallies.tally("calls_total", "Calls.", ("host",))


def test_a_label_without_a_value_is_refused() -> None:
    calls = Tallies().tally("calls_total", "Calls.", ("code", "host"))
    with pytest.raises(ValueError, match="label"):
        calls.add(code="200")
