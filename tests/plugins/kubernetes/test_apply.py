# SPDX-License-Identifier: Apache-2.0
"""Objects are applied to a cluster, and taken over from kubectl."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from pipecd.plugins.kubernetes.apply import apply_all, create_namespaces
from pipecd.plugins.kubernetes.client import open_client
from pipecd.plugins.kubernetes.cluster import Cluster, Discovery, open_cluster
from pipecd.plugins.kubernetes.config import KubernetesTarget
from pipecd.plugins.kubernetes.kubeconfig import Connection
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import with_value
from plugins.kubernetes.testbed import manifest
from servers.kubernetes import Kubernetes


@dataclass
class Bench:
    """A namespace of a cluster, and the log of applying."""

    cluster: Cluster
    kubernetes: Kubernetes
    namespace: str
    kubectl_path: str
    log: list[str] = field(default_factory=list[str])

    async def apply(self, *manifests: Manifest) -> None:
        await apply_all(self.cluster, manifests, self.log.append)

    def get(self, plural: str, name: str, group: str = "api/v1") -> Any:
        return self.kubernetes.ask("GET", f"/{group}/namespaces/{self.namespace}/{plural}/{name}")

    def kubectl(self, *arguments: str, body: Any = None) -> str:
        command = [self.kubectl_path, f"--kubeconfig={self.kubernetes.kubeconfig}"]
        return subprocess.run(
            [*command, f"--namespace={self.namespace}", *arguments],
            input=json.dumps(body) if body else None,
            text=True,
            check=True,
            capture_output=True,
        ).stdout


@pytest.fixture
async def bench(kubernetes: Kubernetes, namespace: str, kubectl: str) -> AsyncIterator[Bench]:
    target = KubernetesTarget(kube_config_path=str(kubernetes.kubeconfig))
    async with open_cluster(target, namespace=namespace) as cluster:
        yield Bench(cluster, kubernetes, namespace, kubectl)


def deployment(image: str = "web:v1", **spec: Any) -> Manifest:
    """Returns a Deployment."""
    pod = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": image}]},
    }
    selector = {"matchLabels": {"app": "web"}}
    return manifest(
        "Deployment", "web", "apps/v1", spec={"selector": selector, "template": pod, **spec}
    )


async def test_a_field_that_is_removed_from_git_is_removed_from_the_cluster(bench: Bench) -> None:
    await bench.apply(manifest("ConfigMap", "c", data={"a": "1", "b": "2"}))
    await bench.apply(manifest("ConfigMap", "c", data={"a": "3"}))
    assert bench.get("configmaps", "c")["data"] == {"a": "3"}
    assert bench.log == ["- applied ConfigMap c"] * 2


async def test_objects_applied_by_kubectl_are_taken_over_without_a_restart(bench: Bench) -> None:
    before = deployment(replicas=2, minReadySeconds=1)
    annotated = before.annotated({"pipecd.dev/managed-by": "piped", "gone": "soon"})
    bench.kubectl("apply", "-f", "-", body=annotated.body)
    bench.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    pods = bench.kubectl("get", "pods", "-o", "name").split()
    await bench.apply(deployment(replicas=2))
    live = bench.get("deployments", "web", "apis/apps/v1")
    assert "minReadySeconds" not in live["spec"]
    assert "gone" not in live["metadata"]["annotations"]
    managers = {entry["manager"] for entry in live["metadata"]["managedFields"]}
    assert "kubectl-client-side-apply" not in managers
    assert bench.kubectl("get", "pods", "-o", "name").split() == pods
    await bench.apply(deployment(replicas=2))
    assert (
        bench.get("deployments", "web", "apis/apps/v1")["metadata"]["generation"]
        == (live["metadata"]["generation"])
    )


@pytest.mark.parametrize("others", [0, 520], ids=["a small namespace", "a large namespace"])
async def test_the_first_sync_of_many_objects_takes_over_those_applied_by_kubectl(
    bench: Bench, others: int
) -> None:
    def config_map(number: int) -> Manifest:
        application = {"metadata": {"labels": {"pipecd.dev/application": "a"}}}
        body = {**manifest("ConfigMap", f"c-{number}", data={"a": "1"}).body}
        body["metadata"] = {**body["metadata"], **application["metadata"]}
        return Manifest(body)

    more = [manifest("ConfigMap", f"other-{number}").body for number in range(others)]
    kubectls = manifest("ConfigMap", "c-3", data={"a": "1", "gone": "soon"}).body
    items = {"apiVersion": "v1", "kind": "List", "items": [*more, kubectls]}
    bench.kubectl("apply", "-f", "-", body=items)
    await bench.apply(*(config_map(number) for number in range(30)))
    assert {json.dumps(bench.get("configmaps", f"c-{n}")["data"]) for n in range(30)} == {
        json.dumps({"a": "1"})
    }


@pytest.mark.parametrize("flags", [[], ["--server-side"]], ids=["on the client", "on the server"])
async def test_a_renamed_list_item_replaces_the_one_applied_by_kubectl(
    bench: Bench, flags: list[str]
) -> None:
    def service(port: int) -> Manifest:
        return manifest("Service", "web", spec={"ports": [{"port": port}]})

    before = deployment()
    bench.kubectl("apply", *flags, "-f", "-", body=service(80).body)
    bench.kubectl("apply", *flags, "-f", "-", body=before.body)
    bench.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    path = ("spec", "template", "spec", "containers")
    renamed = with_value(before.body, path, [{"name": "site", "image": "web:v1"}])
    await bench.apply(service(8080), before.with_body(renamed))
    ports = bench.get("services", "web")["spec"]["ports"]
    assert [port["port"] for port in ports] == [8080]
    live = bench.get("deployments", "web", "apis/apps/v1")
    assert [each["name"] for each in live["spec"]["template"]["spec"]["containers"]] == ["site"]
    bench.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    assert len(bench.kubectl("get", "replicasets", "-o", "name").split()) == 2


async def test_a_field_of_another_manager_is_reset_and_logged(bench: Bench) -> None:
    await bench.apply(deployment(replicas=2))
    bench.kubectl("patch", "deployment", "web", "-p", '{"spec":{"replicas":5}}')
    await bench.apply(deployment(replicas=2))
    assert bench.get("deployments", "web", "apis/apps/v1")["spec"]["replicas"] == 2
    assert any(".spec.replicas is reset to its value in Git" in line for line in bench.log)


async def test_a_custom_resource_definition_is_applied_before_its_objects(bench: Bench) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = manifest(
        "CustomResourceDefinition",
        "gadgets.tests.pipecd.dev",
        "apiextensions.k8s.io/v1",
        spec={
            "group": "tests.pipecd.dev",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    )
    gadget = manifest("Gadget", "g", "tests.pipecd.dev/v1", size=3)
    await bench.apply(gadget, definition)
    assert bench.get("gadgets", "g", "apis/tests.pipecd.dev/v1")["size"] == 3


async def test_create_namespaces_creates_missing_namespaces(bench: Bench) -> None:
    namespace = f"{bench.namespace}-more"
    config = manifest("ConfigMap", "c", metadata={"namespace": namespace})
    with pytest.raises(UserMistake, match=rf'namespaces "{namespace}" not found'):
        await bench.apply(config)
    for _ in range(2):
        await create_namespaces(bench.cluster, [config], bench.log.append)
    await bench.apply(config)
    assert bench.log.count(f"- created Namespace {namespace}") == 1
    bench.kubectl("delete", "namespace", namespace, "--wait=false")


async def test_an_immutable_object_is_recreated_with_the_annotation(bench: Bench) -> None:
    def job(image: str, **annotations: str) -> Manifest:
        pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]}
        created = manifest("Job", "j", "batch/v1", spec={"template": {"spec": pod}})
        return created.annotated(annotations)

    await bench.apply(job("one"))
    with pytest.raises(
        UserMistake, match=r"Job j \(app.yaml:1\) was not applied.*immutable.*force-sync"
    ):
        await bench.apply(job("two"))
    await bench.apply(job("two", **{"pipecd.dev/force-sync-by-replace": "enabled"}))
    pod = bench.get("jobs", "j", "apis/batch/v1")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "two"


async def test_an_object_is_replaced_with_the_annotation(bench: Bench) -> None:
    switch = {"pipecd.dev/sync-by-replace": "enabled"}
    await bench.apply(manifest("ConfigMap", "c", data={"a": "1"}).annotated(switch))
    bench.kubectl("patch", "configmap", "c", "-p", '{"data":{"b":"2"}}')
    await bench.apply(manifest("ConfigMap", "c", data={"a": "3"}).annotated(switch))
    assert bench.get("configmaps", "c")["data"] == {"a": "3"}
    await bench.apply(manifest("ConfigMap", "c", data={"b": "4"}))
    assert bench.get("configmaps", "c")["data"] == {"b": "4"}


KINDS = {
    "kind": "APIGroupDiscoveryList",
    "items": [
        {
            "metadata": {"name": ""},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        {
                            "resource": "configmaps",
                            "responseKind": {"kind": "ConfigMap"},
                            "scope": "Namespaced",
                            "verbs": ["get"],
                        }
                    ],
                }
            ],
        }
    ],
}


async def test_an_object_created_by_a_lost_request_is_replaced() -> None:
    live = {"metadata": {"name": "c", "resourceVersion": "7"}}
    responses: Iterator[tuple[int, Any] | None] = iter(
        [
            (404, {"code": 404}),
            None,
            (409, {"code": 409, "reason": "AlreadyExists", "message": "it exists"}),
            (200, live),
            (200, live),
        ]
    )
    methods: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            method, path, *_ = (await reader.readuntil(b"\r\n\r\n")).decode().split()
            if path in ("/api", "/apis"):
                response = 200, KINDS
            else:
                methods.append(method)
                response = next(responses)
            if response is not None:
                text = json.dumps(response[1])
                lines = (f"HTTP/1.1 {response[0]} x", f"Content-Length: {len(text)}")
                writer.write("\r\n".join((*lines, "Connection: close", "", text)).encode())
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    replaced = manifest("ConfigMap", "c").annotated({"pipecd.dev/sync-by-replace": "enabled"})
    async with server, open_client(Connection(f"http://127.0.0.1:{port}")) as client:
        await apply_all(Cluster(client, Discovery(client), "n"), [replaced], print)
    assert methods == ["GET", "POST", "POST", "GET", "PUT"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(
            manifest("Gizmo", "g", "unknown.dev/v1"),
            r"does not serve Gizmo of unknown.dev/v1; .*install the CustomResourceDefinition",
            id="an unknown kind",
        ),
        pytest.param(
            manifest("ConfigMap", "Not_A_Name"),
            r"ConfigMap Not_A_Name \(app.yaml:1\) was not applied: .*metadata.name.*correct the man",
            id="a name that is none",
        ),
        pytest.param(
            deployment(replicas="many"),
            r"Deployment web \(app.yaml:1\) was not applied: .*replicas",
            id="a value of the wrong type",
        ),
    ],
)
async def test_the_error_of_a_refused_object_has_a_hint(
    bench: Bench, wrong: Manifest, message: str
) -> None:
    with pytest.raises(UserMistake, match=f"(?s){message}"):
        await bench.apply(wrong)


async def test_the_error_lists_every_refused_object_of_a_wave(bench: Bench) -> None:
    wrong = [manifest("ConfigMap", name) for name in ("A", "B")]
    with pytest.raises(UserMistake) as refused:
        await bench.apply(*wrong, manifest("ConfigMap", "fine"))
    assert "ConfigMap A" in str(refused.value)
    assert "ConfigMap B" in str(refused.value)
    assert bench.get("configmaps", "fine")
