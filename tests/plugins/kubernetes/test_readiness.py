# SPDX-License-Identifier: Apache-2.0
"""A stage with `readyWithin` waits for Jobs and custom resources as well, on a real cluster."""

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

OK, NOT_YET, LOST = (Health.HEALTHY, False), (Health.UNHEALTHY, False), (Health.UNHEALTHY, True)
UNSURE = (Health.UNKNOWN, False)
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


def told(kind: str, status: str, **more: Any) -> dict[str, Any]:
    """Returns a status with one condition."""
    condition = {"type": kind, "status": status, "message": "it says", **more}
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
    """Returns an object of a kind that nobody knows."""
    return body(f"{GROUP}/v1", "Widget", status)


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        pytest.param(body("batch/v1", "Job", {"active": 1}), NOT_YET, id="a Job that runs"),
        pytest.param(body("batch/v1", "Job"), NOT_YET, id="a Job that has not begun"),
        pytest.param(
            body("batch/v1", "Job", told("Complete", "True")), OK, id="a Job that is done"
        ),
        pytest.param(body("batch/v1", "Job", told("Failed", "True")), LOST, id="a Job that failed"),
        pytest.param(body("batch/v1", "Job", spec={"suspend": True}), OK, id="a suspended Job"),
        pytest.param(
            body("v1", "Pod", {"phase": "Running", **told("Ready", "False")}),
            NOT_YET,
            id="a Pod that runs and is not ready",
        ),
        pytest.param(
            body("v1", "Pod", {"phase": "Succeeded", **told("Ready", "False")}),
            OK,
            id="a Pod that is done",
        ),
        pytest.param(body("v1", "Pod", {"phase": "Failed"}), LOST, id="a Pod that failed"),
        pytest.param(custom(told("Ready", "True")), OK, id="Ready"),
        pytest.param(custom(told("Available", "True")), OK, id="Available"),
        pytest.param(custom(told("Ready", "False")), NOT_YET, id="not Ready"),
        pytest.param(custom(told("Ready", "Unknown")), UNSURE, id="perhaps Ready"),
        pytest.param(custom(told("Stalled", "True")), LOST, id="Stalled"),
        pytest.param(
            custom({"conditions": [*told("Reconciling", "True")["conditions"]]}),
            NOT_YET,
            id="still being worked on",
        ),
        pytest.param(
            custom({"observedGeneration": 1, **told("Ready", "True")}),
            NOT_YET,
            id="Ready before the last change",
        ),
        pytest.param(
            custom(told("Ready", "True", observedGeneration=1)),
            NOT_YET,
            id="a condition of before the last change",
        ),
        pytest.param(
            custom(told("Stalled", "True", observedGeneration=1)),
            NOT_YET,
            id="Stalled before the last change",
        ),
        pytest.param(custom(None), None, id="no status"),
        pytest.param(custom(told("Colourful", "True")), None, id="conditions of its own"),
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


async def test_a_job_is_waited_for(application: Application) -> None:
    bench = application.commit("c1", job())
    await succeed(bench, "K8S_SYNC", {"readyWithin": "30s"})
    conditions = application.live("jobs", "apis/batch/v1")["migrate"]["status"]["conditions"]
    assert "Complete" in {condition["type"] for condition in conditions}
    assert f"- Job migrate in {application.namespace}: ready" in bench.host.lines


async def test_a_job_that_failed_ends_the_stage_at_once_with_its_reason(
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


async def test_a_job_that_was_swept_away_is_done(application: Application) -> None:
    """It may be done and gone before it is looked at for the first time."""
    connection = load_connection("", str(application.kubernetes.kubeconfig))
    gone, said = Manifest(job(ttlSecondsAfterFinished=0)), list[str]()
    async with asyncio.timeout(10), open_client(connection) as client:
        cluster = Cluster(client, Discovery(client), application.namespace)
        await readiness_module.wait_until_ready(cluster, [gone], Duration(600), said.append)
    assert said[-1] == "- Job migrate: ready"


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


async def control(application: Application, bench: StageBench, *states: str) -> None:
    """Does what a controller would do: it writes one state after the other."""
    async with asyncio.timeout(30):
        await bench.host.until(lambda: any("applied Widget" in line for line in bench.host.lines))
    for state in states:
        status = {"status": told(*state.split("="))}
        await asyncio.to_thread(application.patch, f"apis/{GROUP}/v1", "widgets/w/status", status)


@pytest.mark.usefixtures("widgets")
async def test_a_custom_resource_is_waited_for_once_its_controller_speaks(
    application: Application,
) -> None:
    bench = application.commit("c1", widget())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(control(application, bench, "Ready=False", "Ready=True"))
        await succeed(bench, "K8S_SYNC", {"readyWithin": "30s"})
    assert f"- Widget w in {application.namespace}: ready" in bench.host.lines


@pytest.mark.usefixtures("widgets")
async def test_a_custom_resource_that_is_stalled_ends_the_stage(application: Application) -> None:
    bench = application.commit("c1", widget())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(control(application, bench, "Stalled=True"))
        result = await bench.run("K8S_SYNC", {"readyWithin": "10m"})
    assert result.message == f"Widget w in {application.namespace} failed: it says"


@pytest.mark.usefixtures("widgets")
async def test_a_custom_resource_that_nobody_speaks_of_is_ready_when_it_is_applied(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness_module, "_FIRST_CONDITION_TIMEOUT", 0.05)
    bench = application.commit("c1", widget())
    await succeed(bench, "K8S_SYNC", {"readyWithin": "10m"})
    assert f"- Widget w in {application.namespace}: ready" in bench.host.lines
