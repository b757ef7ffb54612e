# SPDX-License-Identifier: Apache-2.0
"""A stage with `readyWithin` waits for workloads, Jobs and custom resources."""

import asyncio
from typing import Any

import pytest

from pipecd.plugins.kubernetes import readiness as readiness_module
from pipecd.plugins.kubernetes.client import open_client
from pipecd.plugins.kubernetes.cluster import Cluster, Discovery
from pipecd.plugins.kubernetes.kubeconfig import load_connection
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.readiness import readiness
from pipecd.sdk import Health, StageStatus
from pipecd.sdk.config import Duration
from pipecd.sdk.testing import StageBench
from plugins.kubernetes.conftest import define
from plugins.kubernetes.testbed import Application, deployment, succeed
from servers.kubernetes import FAILS, NEVER_READY, Kubernetes

OK, NOT_YET, FAILED = (Health.HEALTHY, False), (Health.PROGRESSING, False), (Health.UNHEALTHY, True)
UNHEALTHY = (Health.UNHEALTHY, False)
UNKNOWN = (Health.UNKNOWN, False)
GROUP = "ready.example.com"


def job(labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """Returns a Job of one pod that is not tried again."""
    container = {"name": "work", "image": "work:v1"}
    template = {
        "metadata": {"labels": labels or {}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "migrate"},
        "spec": {"backoffLimit": 0, "template": template, **spec},
    }


def with_condition(kind: str, status: str, **more: Any) -> dict[str, Any]:
    """Returns a status with one condition."""
    condition = {"type": kind, "status": status, "message": "the reason", **more}
    return {"conditions": [condition]}


def body(api_version: str, kind: str, status: Any = None, **fields: Any) -> dict[str, Any]:
    """Returns a live object of generation 2."""
    metadata = {"name": "x", "generation": 2}
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": metadata,
        "status": status,
        **fields,
    }


def custom(status: Any) -> dict[str, Any]:
    """Returns a custom resource."""
    return body(f"{GROUP}/v1", "Widget", status)


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param(body("batch/v1", "Job", {"active": 1}), NOT_YET, id="a Job that runs"),
        pytest.param(body("batch/v1", "Job"), NOT_YET, id="a Job that has not started"),
        pytest.param(
            body("batch/v1", "Job", with_condition("Complete", "True")), OK, id="a Job that is done"
        ),
        pytest.param(
            body("batch/v1", "Job", with_condition("Failed", "True")),
            FAILED,
            id="a Job that failed",
        ),
        pytest.param(body("batch/v1", "Job", spec={"suspend": True}), OK, id="a suspended Job"),
        pytest.param(
            body("v1", "Pod", {"phase": "Running", **with_condition("Ready", "False")}),
            NOT_YET,
            id="a Pod that runs and is not ready",
        ),
        pytest.param(
            body("v1", "Pod", {"phase": "Succeeded", **with_condition("Ready", "False")}),
            OK,
            id="a Pod that is done",
        ),
        pytest.param(body("v1", "Pod", {"phase": "Failed"}), FAILED, id="a Pod that failed"),
        pytest.param(custom(with_condition("Ready", "True")), OK, id="Ready"),
        pytest.param(custom(with_condition("Available", "True")), OK, id="Available"),
        pytest.param(custom(with_condition("Ready", "False")), UNHEALTHY, id="not Ready"),
        pytest.param(custom(with_condition("Ready", "Unknown")), UNKNOWN, id="perhaps Ready"),
        pytest.param(custom(with_condition("Stalled", "True")), FAILED, id="Stalled"),
        pytest.param(
            custom({"conditions": [*with_condition("Reconciling", "True")["conditions"]]}),
            NOT_YET,
            id="still being worked on",
        ),
        pytest.param(
            custom({"observedGeneration": 1, **with_condition("Ready", "True")}),
            NOT_YET,
            id="Ready before the last change",
        ),
        pytest.param(
            custom(with_condition("Ready", "True", observedGeneration=1)),
            NOT_YET,
            id="a condition of before the last change",
        ),
        pytest.param(
            custom(with_condition("Stalled", "True", observedGeneration=1)),
            NOT_YET,
            id="Stalled before the last change",
        ),
        pytest.param(custom(None), None, id="no status"),
        pytest.param(custom(with_condition("Colourful", "True")), None, id="conditions of its own"),
        pytest.param(
            {**custom(None), "metadata": {"deletionTimestamp": "now"}},
            NOT_YET,
            id="being deleted",
        ),
    ],
)
def test_an_object_is_ready(live: Any, expected: tuple[Health, bool] | None) -> None:
    status = readiness(live)
    assert (status and (status.status, status.is_terminal)) == expected


async def test_a_stage_waits_until_a_job_is_complete(application: Application) -> None:
    bench = application.commit("c1", job())
    await succeed(bench, "K8S_SYNC", {"readyWithin": "30s"})
    conditions = application.live("jobs", "apis/batch/v1")["migrate"]["status"]["conditions"]
    assert "Complete" in {condition["type"] for condition in conditions}
    assert f"- Job migrate in {application.namespace}: ready" in bench.host.lines


async def test_a_failed_job_fails_the_stage_with_its_reason(
    application: Application,
) -> None:
    bench = application.commit("c1", deployment(**NEVER_READY), job(FAILS))
    async with asyncio.timeout(30):
        result = await bench.run("K8S_SYNC", {"readyWithin": "10m"})
    assert result.status is StageStatus.FAILURE
    assert result.message.startswith(f"Job migrate in {application.namespace} failed: ")
    assert "; pod migrate-" in result.message
    assert "container work exited with code 1: " in result.message
    assert "Deployment" not in result.message


async def test_a_job_deleted_after_its_ttl_is_ready(application: Application) -> None:
    """It may be completed and deleted before the first poll."""
    connection = load_connection("", str(application.kubernetes.kubeconfig))
    deleted, log = Manifest(job(ttlSecondsAfterFinished=0)), list[str]()
    async with asyncio.timeout(10), open_client(connection) as client:
        cluster = Cluster(client, Discovery(client), application.namespace)
        await readiness_module.wait_until_ready(cluster, [deleted], Duration(600), log.append)
    assert log[-1] == "- Job migrate: ready"


@pytest.fixture(scope="session")
def widgets(kubernetes: Kubernetes) -> None:
    """A kind that no controller cares for, so that the tests do."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"plural": "widgets", "kind": "Widget"}
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    metadata = {"name": f"widgets.{GROUP}"}
    define(
        kubernetes,
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": metadata,
            "spec": spec,
        },
    )


def widget() -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {}}


async def write_conditions(application: Application, bench: StageBench, *states: str) -> None:
    """Writes one condition after the other, as a controller does."""
    async with asyncio.timeout(30):
        await bench.host.until(lambda: any("applied Widget" in line for line in bench.host.lines))
    for state in states:
        status = {"status": with_condition(*state.split("="))}
        await asyncio.to_thread(application.patch, f"apis/{GROUP}/v1", "widgets/w/status", status)


@pytest.mark.usefixtures("widgets")
async def test_a_stage_waits_for_a_custom_resource_with_conditions(
    application: Application,
) -> None:
    bench = application.commit("c1", widget())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_conditions(application, bench, "Ready=False", "Ready=True"))
        await succeed(bench, "K8S_SYNC", {"readyWithin": "30s"})
    assert f"- Widget w in {application.namespace}: ready" in bench.host.lines


@pytest.mark.usefixtures("widgets")
async def test_a_stalled_custom_resource_fails_the_stage(application: Application) -> None:
    bench = application.commit("c1", widget())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_conditions(application, bench, "Stalled=True"))
        result = await bench.run("K8S_SYNC", {"readyWithin": "10m"})
    assert result.message == f"Widget w in {application.namespace} failed: the reason"


@pytest.mark.usefixtures("widgets")
async def test_a_custom_resource_without_conditions_is_ready_when_applied(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_module, "_FIRST_CONDITION_TIMEOUT", 0.05)
    bench = application.commit("c1", widget())
    await succeed(bench, "K8S_SYNC", {"readyWithin": "10m"})
    assert f"- Widget w in {application.namespace}: ready" in bench.host.lines
