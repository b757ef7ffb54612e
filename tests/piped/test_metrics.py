# SPDX-License-Identifier: Apache-2.0
"""The metrics of a whole piped that deploys to a real cluster, watches it and previews."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from servers.control_plane import RunPiped, StartControlPlane
from servers.kubernetes import Kubernetes
from servers.origin import Origin
from servers.polling import eventually
from servers.server import free_port

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
"""
CALLS = "cloudprovider_kubernetes_tool_calls_total"
REQUESTS = "livestatestore_kubernetes_api_requests_total"
EVENTS = "livestatestore_kubernetes_resource_events_total"
PREVIEWS = "plan_preview_command"
MERGE = "application/merge-patch+json"


def config_map(value: str) -> str:
    metadata = {"name": "settings"}
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": value}}
    )


@dataclass(frozen=True)
class Page:
    """The metrics page of a piped, as Prometheus reads it."""

    http: httpx2.AsyncClient
    labels: Mapping[str, str]

    async def value(self, name: str, **labels: str) -> float:
        """The value of a sample with exactly these labels and those of the piped."""
        expected = {**self.labels, **labels}
        for family in text_string_to_metric_families((await self.http.get("/metrics")).text):
            for sample in family.samples:
                given = {k: v for k, v in sample.labels.items() if k != "piped_version"}
                if sample.name == name and given == expected:
                    return sample.value
        return 0

    def has(self, name: str, **labels: str) -> Any:
        """A question for `eventually`: was it counted?"""

        async def ask() -> float:
            return await self.value(name, **labels)

        return ask


@pytest.fixture
def shown(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    kubernetes: Kubernetes,
    namespace: str,
) -> Any:
    """A piped with an application on a cluster, its control plane and its page of figures."""

    @asynccontextmanager
    async def run() -> AsyncGenerator[tuple[Any, Page]]:
        targets = [{"name": "here", "config": {"kubeConfigPath": str(kubernetes.kubeconfig)}}]
        more = f"plugins: {json.dumps([{'name': 'kubernetes', 'deployTargets': targets}])}\n"
        app = APP.replace("NAMESPACE", namespace)
        origin.commit({"web/app.pipecd.yaml": app, "web/0.yaml": config_map("1")})
        place = {"admin_host": "127.0.0.1", "admin_port": free_port()}
        async with (
            start_plane() as plane,
            whole_piped(plane, origin.remote, more=more, **place) as piped,
            httpx2.AsyncClient(base_url=f"http://127.0.0.1:{place['admin_port']}") as http,
        ):
            there = {"kubernetes": DeployTargets(deploy_targets=["here"])}
            await piped.add_application("web", deploy_targets_by_plugin=there)
            names = {"pipecd_component": "piped", "project": "demo", "launcher_version": ""}
            yield plane, Page(http, {**names, "piped": piped.id})

    return run


@pytest.mark.slow
async def test_the_calls_of_a_piped_to_a_cluster_are_in_its_metrics(
    shown: Any, kubernetes: Kubernetes, namespace: str
) -> None:
    async with shown() as (_, page):
        call = {"tool": "apiserver", "version": "", "status": "success"}
        assert await eventually(page.has(CALLS, command="apply", **call), 40) == 1
        assert await page.value(CALLS, command="get", **call) > 0
        server = yaml.safe_load(kubernetes.kubeconfig.read_text())["clusters"][0]["cluster"]
        request = {"host": urlsplit(server["server"]).netloc, "method": "GET", "code": "200"}
        assert await eventually(page.has(REQUESTS, **request), 20) > 0
        changes = iter(range(1000))

        async def is_counted() -> float:
            """Changes an object until the watch, which starts at some moment, receives the event."""
            path = f"/api/v1/namespaces/{namespace}/configmaps/settings"
            kubernetes.ask("PATCH", path, {"data": {"b": str(next(changes))}}, form=MERGE)
            return await page.value(EVENTS, event="update", handled="true")

        assert await eventually(is_counted, 20) > 0


@pytest.mark.slow
async def test_the_plan_previews_of_a_piped_are_in_its_metrics(shown: Any, origin: Origin) -> None:
    async with shown() as (plane, page):
        origin.git("checkout", "-q", "-b", "feature")
        head = origin.commit({"web/0.yaml": config_map("2")})
        origin.git("checkout", "-q", "main")
        preview = RequestPlanPreviewRequest(
            repo_remote_url=origin.remote,
            base_branch="main",
            head_branch="feature",
            head_commit=head,
            timeout=60,
        )
        assert await page.value(f"{PREVIEWS}_handled_total", status="success") == 0
        assert len(await plane.cases.plan_previews.request(preview, by=plane.admin)) == 1
        assert await eventually(page.has(f"{PREVIEWS}_handled_total", status="success"), 40) == 1
        assert await page.value(f"{PREVIEWS}_received_total") == 1
        assert await page.value(f"{PREVIEWS}_handling_seconds_count", status="success") == 1
        seconds = f"{PREVIEWS}_handling_seconds_bucket"
        assert await page.value(seconds, status="success", le="600.0") == 1
