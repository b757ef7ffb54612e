# SPDX-License-Identifier: Apache-2.0
"""Metrics, traces and profiles of a piped."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.observe import debug, tracing
from pipecd.observe.deployments import trace_id
from pipecd.piped.reporting import heartbeat
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.wire.server import grpc_server
from servers.collector import TraceCollector
from servers.control_plane import LocalPiped, RunPiped, ServedControlPlane, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually
from servers.server import free_port

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  labels: {{env: dev, team: shop}}
  pipeline:
    stages:
      - {{name: WAIT, with: {{duration: 10ms}}}}
      - {{name: SCRIPT_RUN, with: {{run: {script!r}, onRollback: 'true'}}}}
"""


@dataclass(frozen=True)
class TracedPiped:
    """A control plane that exports spans to a collector, and a piped with one application."""

    plane: ServedControlPlane
    piped: LocalPiped
    collector: TraceCollector

    async def deployment(self) -> Deployment | None:
        """The deployment, once it is completed."""
        completed = await self.plane.completed_deployments()
        return completed[0] if completed else None


RunTraced = Callable[[str], AbstractAsyncContextManager[TracedPiped]]


@pytest.fixture
def run_traced(start_plane: StartControlPlane, whole_piped: RunPiped, origin: Origin) -> RunTraced:
    """Runs a piped with an application whose pipeline has a script."""

    @asynccontextmanager
    async def run(script: str) -> AsyncGenerator[TracedPiped]:
        origin.commit({"cart/app.pipecd.yaml": APP.format(script=script)})
        collector = TraceCollector()
        async with (
            grpc_server([collector], host="127.0.0.1", port=0) as port,
            start_plane(trace_collector=f"127.0.0.1:{port}") as plane,
            whole_piped(plane, origin.remote) as piped,
        ):
            labels = {"team": "shop", "env": "dev"}
            await piped.add_application("cart", platform_provider="p", labels=labels)
            yield TracedPiped(plane, piped, collector)

    return run


def attributes(span: Span) -> dict[str, str]:
    return {a.key: a.value.string_value for a in span.attributes}


async def test_a_deployment_is_one_trace_through_the_control_plane(
    run_traced: RunTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.05)
    async with run_traced("true") as traced:
        deployment = await eventually(traced.deployment, 20)
        whole = await traced.collector.named("Deploy")
        plan, stages = (
            await traced.collector.named("Plan"),
            [await traced.collector.named(name) for name in ("WAIT", "SCRIPT_RUN")],
        )
    everything = (plan, whole, *stages)
    assert {span.trace_id for span in everything} == {trace_id(deployment.id)}
    assert [span.parent_span_id for span in everything] == [b"", b"", whole.span_id, whole.span_id]
    assert {span.status.code for span in everything} == {Status.STATUS_CODE_UNSET}
    assert [attributes(span).get("stage-id") for span in stages] == [
        s.id for s in deployment.stages[:2]
    ]
    assert attributes(whole) == {
        "application-id": deployment.application_id,
        "deployment-id": deployment.id,
        "kind": "KUBERNETES",
        "labels": "env=dev,team=shop",
    }
    scopes = {span.name: traced.collector.scopes[span.span_id] for span in everything}
    assert scopes["Plan"] == "controller/planner"
    assert scopes["Deploy"] == scopes["WAIT"] == "controller/scheduler"
    resource = traced.collector.resources[whole.span_id]
    assert resource.pop("service.version")
    assert resource == {
        "service.name": "piped",
        "service.namespace": "demo",
        "service.instance.id": traced.piped.id,
        "project-id": "demo",
        "piped-id": traced.piped.id,
    }


async def test_a_failure_is_an_error_in_the_trace(
    run_traced: RunTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 0.05)
    async with run_traced("exit 3") as traced:
        deployment = await eventually(traced.deployment, 20)
        whole = await traced.collector.named("Deploy")
        stage = await traced.collector.named("SCRIPT_RUN")
        rollback = await traced.collector.named("SCRIPT_RUN_ROLLBACK")
    assert whole.status.code == stage.status.code == Status.STATUS_CODE_ERROR
    assert whole.status.message == deployment.status_reason
    assert rollback.status.code == Status.STATUS_CODE_UNSET
    assert rollback.parent_span_id == whole.span_id


async def test_queued_spans_are_exported_when_piped_ends(
    run_traced: RunTraced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "FLUSH_SECONDS", 3600)
    async with run_traced("sleep 30") as traced:

        async def is_running() -> bool:
            listed = await traced.plane.cases.deployments.list(
                DeploymentFilter(project="demo"), by=traced.plane.admin
            )
            return any(s.name == "SCRIPT_RUN" and s.status for d in listed.items for s in d.stages)

        await eventually(is_running, 20)
        assert traced.collector.spans == []
    names = [span.name for span in traced.collector.spans]
    assert sorted(names) == ["Deploy", "Plan", "SCRIPT_RUN", "WAIT"]


@pytest.mark.parametrize(
    ("deployment", "trace"),
    [
        pytest.param("", "6c62272e07bb014262b821756295c58d", id="nothing"),
        pytest.param("a", "d228cb696f1a8caf78912b704e4a8964", id="one letter"),
        pytest.param("foobar", "343e1662793c64bf6f0d3597ba446f18", id="a word"),
    ],
)
def test_the_trace_id_follows_from_the_deployment_id(deployment: str, trace: str) -> None:
    assert trace_id(deployment).hex() == trace


def statuses(text: str) -> dict[str, set[str]]:
    """The status of each deployment, by the id of the deployment."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.name == "deployment_status" and sample.value == 1:
                found.setdefault(sample.labels["deployment"], set()).add(sample.labels["status"])
    return found


async def test_deployment_statuses_are_metrics_until_their_end_is_reported(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "_INTERVAL", 0.3)
    gate = tmp_path / "gate"
    script = f"until [ -e {gate} ]; do sleep 0.02; done"
    origin.commit({"cart/app.pipecd.yaml": APP.format(script=script)})
    port = free_port()
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, admin_host="127.0.0.1", admin_port=port) as piped,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        await piped.add_application("cart")

        async def shown() -> set[str]:
            found = statuses((await http.get("/metrics")).text)
            return next(iter(found.values()), set())

        await eventually(lambda: _is(shown(), {"DEPLOYMENT_RUNNING"}), 20)
        text = (await http.get("/metrics")).text
        # It has been reported several times and is exported while the deployment runs.
        await asyncio.sleep(0.05)
        assert await shown() == {"DEPLOYMENT_RUNNING"}
        gate.touch()
        await eventually(lambda: _is(shown(), set()), 20)
    (labels,) = [
        sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("status") == "DEPLOYMENT_RUNNING"
    ]
    assert labels.keys() == {
        "deployment", "application_id", "application_name", "application_kind", "platform_provider",
        "status", "pipecd_component", "project", "piped", "piped_version", "launcher_version",
    }  # fmt: skip
    assert (labels["application_name"], labels["platform_provider"]) == ("cart", "p")
    assert (labels["pipecd_component"], labels["piped"]) == ("piped", piped.id)


async def _is(value: Awaitable[object], expected: object) -> bool:
    return await value == expected


async def test_the_process_can_be_profiled(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debug, "_SECONDS", 0.2)
    origin.commit({"readme": "nothing"})
    port = free_port()
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, admin_host="127.0.0.1", admin_port=port),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http,
    ):
        pages = {
            page: (await http.get(f"/debug/{page}")).text
            for page in ("pprof/", "tasks", "objects", "loop")
        }
        profiles = {
            name: gzip.decompress((await http.get(f"/debug/pprof/{name}")).content)
            for name in ("goroutine", "heap", "profile")
        }
    assert "/debug/pprof/profile" in pages["pprof/"]
    assert "task Deployer" in pages["tasks"]
    assert "pipecd.piped.deploy.deployer.Deployer.run" in pages["tasks"]
    assert "builtins.function" in pages["objects"]
    assert pages["loop"].startswith("p50: ")
    assert b"pipecd.piped.deploy.deployer.Deployer.run" in profiles["goroutine"]
    assert b"builtins.function" in profiles["heap"]
    assert b"nanoseconds" in profiles["profile"]
