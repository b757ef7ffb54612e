# SPDX-License-Identifier: Apache-2.0
"""The charts: linted, Ready on a cluster, and their commands run as processes with their files.

The pods of the cluster are simulated, so what they would run is run here.
"""

import base64
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis.exceptions import AuthenticationError

from pipecd.controlplane.cache.redis import open_redis
from servers.databases import Redis
from servers.fixtures import running
from servers.kubernetes import Kubernetes
from servers.layout import PROGRAMS, Container, Pipectl, first_key, server_flags, until_ready
from servers.programs import built_program
from servers.server import free_port

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "deploy" / "helm"
MANIFESTS = ROOT / "deploy" / "kubernetes"
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "spec": {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "10Gi"},
        "hostPath": {"path": "/data"},
    },
}
SMALLEST = {
    "server": {"image": {"repository": "registry.example.com/pipecd/server"}},
    "persistence": {"enabled": True},
    "secret": {"encryptionKey": {"data": "k" * 64}},
    "firstProject": {"name": "shop", "password": "hello-shop"},
}
# As users of upstream's chart have it: a database server, MinIO, an ingress of Google with two ports.
UPSTREAM = {
    "service": {"port": 443, "internalPort": 8080, "type": "NodePort"},
    "ingress": {"enabled": True, "annotations": {"kubernetes.io/ingress.allow-http": "false"}},
    "serviceAccount": {"create": False, "name": "pipecd-account"},
    "gateway": {"replicasCount": 2, "imageTag": "v1.31.0", "resources": {}},
    "server": {
        "image": {"repository": "registry.example.com/pipecd/server", "tag": "v9"},
        "replicasCount": 2,
        "args": {"secureCookie": True, "logEncoding": "json", "logLevel": "warn", "metrics": False},
        "env": [{"name": "A", "value": "b"}],
    },
    "cache": {"imageTag": "5.0.5-alpine3.9"},
    "ops": {"args": {"logEncoding": "json"}},
    "cloudSQLProxy": {"enabled": True, "args": {"instanceConnectionName": "p:r:db", "port": 3306}},
    "config": {
        "data": "apiVersion: pipecd.dev/v1beta1\nkind: ControlPlane\nspec:\n  datastore:\n"
        "    type: MYSQL\n    config: {url: 'a:b@tcp(127.0.0.1:3306)', database: pipecd}\n"
        "  filestore:\n    type: MINIO\n    config:\n"
        '      endpoint: http://{{ include "pipecd.fullname" . }}-minio:9000\n'
        "      bucket: b\n      accessKeyFile: /etc/pipecd-secret/minio-access-key\n"
        "      secretKeyFile: /etc/pipecd-secret/minio-secret-key\n"
    },
    "secret": {
        "encryptionKey": {"data": "key"},
        "minioAccessKey": {"data": "access"},
        "minioSecretKey": {"data": "secret"},
    },
    "backendConfig": {"enabled": True, "iap": {"enabled": True, "secretName": "iap"}},
    "managedCertificate": {"enabled": True, "domains": ["pipecd.example.com"]},
}

OWN_SECRET = {"create": False, "name": "of-our-own"}
GATEWAY = {**SMALLEST, "gateway": {"enabled": True}}
WITH_CACHE_PASSWORD = {**UPSTREAM, "cache": {"password": "a-password"}}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def render(helm: str, chart: str, values: dict[str, Any], **names: str) -> list[dict[str, Any]]:
    release, namespace = names.get("release", chart), names.get("namespace", "default")
    ran = subprocess.run(
        [helm, "template", release, str(CHARTS / chart), "-n", namespace, "-f", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return [document for document in yaml.safe_load_all(ran.stdout) if document]


def of_kind(documents: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {d["metadata"]["name"]: d for d in documents if d["kind"] == kind}


def container_of(documents: list[dict[str, Any]], deployment: str) -> dict[str, Any]:
    [*_, container] = of_kind(documents, "Deployment")[deployment]["spec"]["template"]["spec"][
        "containers"
    ]
    return container


def prepare(documents: list[dict[str, Any]], deployment: str, root: Path) -> Container:
    """Writes the files that a pod of the deployment mounts."""
    pod = of_kind(documents, "Deployment")[deployment]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    container = Container(root)
    for mount in container_of(documents, deployment)["volumeMounts"]:
        volume, files = volumes[mount["name"]], dict[str, str]()
        if "configMap" in volume:
            files = of_kind(documents, "ConfigMap")[volume["configMap"]["name"]]["data"]
        elif "secret" in volume:
            data = of_kind(documents, "Secret")[volume["secret"]["secretName"]]["data"] or {}
            files = {name: base64.b64decode(text).decode() for name, text in data.items()}
        for name, text in files.items():
            container.write(f"{mount['mountPath']}/{name}", text)
    return container


class Cluster:
    """kubectl in a namespace of the cluster."""

    def __init__(self, kubernetes: Kubernetes, kubectl: str, namespace: str) -> None:
        self.words = [kubectl, f"--kubeconfig={kubernetes.kubeconfig}", "-n", namespace]

    def __call__(self, *words: str, text: str = "") -> str:
        ran = subprocess.run(
            [*self.words, *words], input=text, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def apply(self, documents: list[dict[str, Any]]) -> None:
        """Applies documents; every Deployment of them becomes Ready."""
        self("apply", "-f", "-", text=yaml.safe_dump_all(documents))
        for name in of_kind(documents, "Deployment"):
            self("rollout", "status", f"deployment/{name}", "--timeout=60s")


@pytest.fixture
def cluster(kubernetes: Kubernetes, kubectl: str, namespace: str) -> Cluster:
    return Cluster(kubernetes, kubectl, namespace)


@pytest.mark.parametrize(
    ("chart", "values"),
    [
        ("pipecd", SMALLEST),
        ("pipecd", UPSTREAM),
        ("pipecd", GATEWAY),
        ("pipecd", WITH_CACHE_PASSWORD),
        ("piped", {"image": {"repository": "registry.example.com/piped"}}),
        ("piped", {"launcher": {"enabled": True, "image": {"repository": "r.example.com/l"}}}),
    ],
)
def test_charts_pass_lint(chart: str, values: dict[str, Any], helm: str) -> None:
    ran = subprocess.run(
        [helm, "lint", "--strict", str(CHARTS / chart), "-f", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, "[WARNING]" in ran.stdout, "[ERROR]" in ran.stdout) == (0, False, False)


@pytest.mark.parametrize(
    ("chart", "values", "said"),
    [
        ("pipecd", {}, "set server.image.repository"),
        ("pipecd", {**SMALLEST, "secret": {}}, "openssl rand -hex 32"),
        ("pipecd", {**SMALLEST, "persistence": {}}, "set persistence.enabled=true to keep it"),
        ("pipecd", {**SMALLEST, "quickstart": {"enabled": True}}, "set persistence.enabled=true"),
        ("pipecd", {**SMALLEST, "monitoring": {"enabled": True}}, "with their own charts"),
        ("pipecd", {**SMALLEST, "firstProject": {"name": "shop"}}, "set firstProject.password"),
        ("pipecd", {**SMALLEST, "secret": OWN_SECRET}, "the key first-admin-password"),
        ("pipecd", {**WITH_CACHE_PASSWORD, "secret": OWN_SECRET}, "has no Secret to be stored in"),
        ("pipecd", {**UPSTREAM, "cache": {"password": "a/b"}}, "letters, digits and - . _ ~ only"),
        ("piped", {}, "set image.repository"),
        ("piped", {"image": {"repository": "r"}, "rbac": {"scope": "x"}}, "cluster or namespace"),
    ],
)
def test_charts_say_what_to_set(chart: str, values: dict[str, Any], said: str, helm: str) -> None:
    ran = subprocess.run(
        [helm, "template", "x", str(CHARTS / chart), "-f", "-"],
        input=yaml.safe_dump(values), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, said in ran.stderr) == (1, True), ran.stderr


def test_values_of_upstreams_chart_mean_the_same(helm: str, cluster: Cluster) -> None:
    documents = render(helm, "pipecd", UPSTREAM)
    server, ops = container_of(documents, "pipecd-server"), container_of(documents, "pipecd-ops")
    assert server["image"] == "registry.example.com/pipecd/server:v9"
    assert server["env"] == [{"name": "A", "value": "b"}]
    flags = {
        "--cache-address=pipecd-cache:6379",
        "--config-file=/etc/pipecd-config/control-plane-config.yaml",
        "--encryption-key-file=/etc/pipecd-secret/encryption-key",
        "--insecure-cookie=false",
        "--log-encoding=json",
        "--log-level=warn",
        "--metrics=false",
    }
    assert flags <= set(server["args"])
    assert "--cache-address=pipecd-cache:6379" in ops["args"]
    config = of_kind(documents, "ConfigMap")["pipecd"]["data"]["control-plane-config.yaml"]
    assert yaml.safe_load(config)["spec"]["filestore"]["config"]["endpoint"] == (
        "http://pipecd-minio:9000"
    )
    secret = of_kind(documents, "Secret")["pipecd"]["data"]
    assert base64.b64decode(secret["minio-secret-key"]) == b"secret"
    paths = of_kind(documents, "Ingress")["pipecd"]["spec"]["rules"][0]["http"]["paths"]
    assert {p["backend"]["service"]["port"]["number"] for p in paths} == {443}
    deployment = of_kind(documents, "Deployment")["pipecd-server"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["template"]["spec"]["serviceAccountName"] == "pipecd-account"
    sidecar = deployment["template"]["spec"]["containers"][0]
    assert "-instances=p:r:db=tcp:3306" in sidecar["command"]
    # Kinds of Google are not known to this cluster.
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "pipecd-account"}}
    ours = [
        d for d in documents if "google" not in d["apiVersion"] and "gke" not in d["apiVersion"]
    ]
    cluster.apply([account, *ours])


@pytest.mark.parametrize("program", ["piped", "launcher"])
async def test_the_charts_run_a_control_plane_and_a_piped_that_deploys(
    program: str, helm: str, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    port = free_port()
    values = json.loads(json.dumps(SMALLEST))
    values["server"]["args"] = {"extra": server_flags(port)}
    documents = render(helm, "pipecd", values, namespace=namespace)
    volume = {**VOLUME, "metadata": {"name": namespace}}
    cluster.apply([volume, *documents])
    container = prepare(documents, "pipecd-server", tmp_path / "server")
    command = [str(PROGRAMS / "pipecd"), *container_of(documents, "pipecd-server")["args"]]
    async with container.started(command) as log:
        await until_ready(log)
        config = Path(container.here("/etc/pipecd-config/control-plane-config.yaml"))
        pipectl = Pipectl(port, await first_key(config, "shop"))

        @asynccontextmanager
        async def piped(configuration: str) -> AsyncIterator[Path]:
            ports = ["--admin-port=0", "--admin-host=127.0.0.1"]
            if program == "launcher":
                ports += [f"--launcher-admin-port={free_port()}", "--launcher-admin-host=127.0.0.1"]
            values = {
                "image": {"repository": "registry.example.com/pipecd/piped"},
                "launcher": {
                    "enabled": program == "launcher",
                    "image": {"repository": "registry.example.com/pipecd/launcher"},
                },
                "args": {
                    "insecure": True,
                    "enableDefaultKubernetesCloudProvider": False,
                    "extra": ports,
                },
                "config": {"data": configuration},
            }
            documents = render(helm, "piped", values, namespace=namespace)
            cluster.apply(documents)
            container = prepare(documents, "piped", tmp_path / "piped")
            command = [str(PROGRAMS / program), *container_of(documents, "piped")["args"]]
            async with container.started(command) as log:
                yield log

        await pipectl.deploy_with(piped, tmp_path)
    cluster("delete", "pv", namespace, "--wait=false")


@pytest.mark.parametrize("name", ["pipecd", "piped"])
def test_the_plain_manifests_are_those_of_the_charts(
    name: str, helm: str, cluster: Cluster
) -> None:
    """deploy/kubernetes/render.sh writes them; run it after a change of a chart."""
    values = yaml.safe_load((MANIFESTS / f"{name}-values.yaml").read_text())
    written = list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))
    assert written == render(helm, name, values, namespace="pipecd")
    for document in written:
        document["metadata"].pop("namespace", None)
    cluster("apply", "--dry-run=server", "-f", "-", text=yaml.safe_dump_all(written))


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        pytest.param({}, [], id="nothing in front"),
        pytest.param(
            {"gateway": {"enabled": True}},
            ["--trusted-proxies=10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"],
            id="a gateway",
        ),
        pytest.param(
            {"ingress": {"enabled": True}},
            ["--trusted-proxies=10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"],
            id="an ingress",
        ),
        pytest.param(
            {"server": {**SMALLEST["server"], "args": {"trustedProxies": ["10.9.0.0/16", "::1"]}}},
            ["--trusted-proxies=10.9.0.0/16,::1"],
            id="what the values say",
        ),
    ],
)
def test_the_server_knows_the_proxies_in_front_of_it(
    values: dict[str, Any], flag: list[str], helm: str
) -> None:
    server = container_of(render(helm, "pipecd", {**SMALLEST, **values}), "pipecd-server")
    assert [word for word in server["args"] if "trusted-proxies" in word] == flag


def resolve(words: list[str], container: dict[str, Any], secret: dict[str, str]) -> list[str]:
    """The arguments as a kubelet writes them, with variables that come from a Secret."""
    for variable in container.get("env", []):
        key = variable["valueFrom"]["secretKeyRef"]["key"]
        value = base64.b64decode(secret[key]).decode()
        words = [word.replace(f"$({variable['name']})", value) for word in words]
    return words


@pytest.mark.parametrize("component", ["server", "ops"])
async def test_programs_send_the_password_of_the_cache(component: str, helm: str) -> None:
    values = json.loads(json.dumps(WITH_CACHE_PASSWORD))
    del values["server"]["env"]
    documents = render(helm, "pipecd", values)
    secret = of_kind(documents, "Secret")["pipecd"]["data"]
    container = container_of(documents, f"pipecd-{component}")
    [flag] = [
        word.removeprefix("--cache-address=")
        for word in resolve(container["args"], container, secret)
        if word.startswith("--cache-address=")
    ]
    cache = container_of(documents, "pipecd-cache")

    class RedisOfTheChart(Redis):
        def command(self) -> list[str]:
            here = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
            return [self.program, *resolve(cache["args"], cache, secret), *here]

    for server in running(RedisOfTheChart):
        here = f"127.0.0.1:{server.port}"
        async with open_redis(flag.replace("pipecd-cache:6379", here)) as client:
            assert await client.ping()
        async with open_redis(here) as client:
            with pytest.raises(AuthenticationError):
                await client.ping()


def test_a_pod_gets_requests_when_it_is_ready_and_restarts_when_it_hangs(helm: str) -> None:
    documents = render(helm, "pipecd", UPSTREAM)
    for name in ("pipecd-server", "pipecd-ops"):
        container = container_of(documents, name)
        probes = {
            probe: container[f"{probe}Probe"]["httpGet"]
            for probe in ("startup", "liveness", "readiness")
        }
        assert probes == {
            "startup": {"path": "/healthz", "port": "admin"},
            "liveness": {"path": "/healthz", "port": "admin"},
            "readiness": {"path": "/readyz", "port": "admin"},
        }


def test_envoy_accepts_the_configuration_of_the_gateway(
    helm: str, cluster: Cluster, tmp_path: Path
) -> None:
    values = {**UPSTREAM, "gateway": {"enabled": True}, "serviceAccount": {"create": True}}
    documents = render(helm, "pipecd", values)
    ours = [d for d in documents if d["apiVersion"] in ("v1", "apps/v1", "policy/v1")]
    cluster.apply(ours)
    text = of_kind(documents, "ConfigMap")["pipecd-gateway-envoy-config"]["data"]
    config = tmp_path / "envoy.yaml"
    config.write_text(text["envoy-config.yaml"])
    assert "address: pipecd-server," in config.read_text()
    ran = subprocess.run(
        [built_program("envoy"), "--mode", "validate", "-c", str(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    # Requests to the Service reach the gateway.
    selector = of_kind(documents, "Service")["pipecd"]["spec"]["selector"]
    gateway = of_kind(documents, "Deployment")["pipecd-gateway"]["spec"]["template"]["metadata"]
    assert selector.items() <= gateway["labels"].items()


def test_the_admin_port_of_the_gateway_is_on_loopback(helm: str) -> None:
    documents = render(helm, "pipecd", GATEWAY)
    text = of_kind(documents, "ConfigMap")["pipecd-gateway-envoy-config"]["data"]
    config = yaml.safe_load(text["envoy-config.yaml"])
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    listeners = {
        each["name"]: each["address"]["socket_address"]["port_value"]
        for each in config["static_resources"]["listeners"]
    }
    container = container_of(documents, "pipecd-gateway")
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == listeners
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "health"}
    assert container["livenessProbe"] == {"tcpSocket": {"port": "health"}}


def test_the_gateway_of_the_chart_is_that_of_compose() -> None:
    compose = ROOT / "deploy" / "compose" / "components" / "envoy.yaml"
    assert (CHARTS / "pipecd" / "envoy.yaml").read_text() == compose.read_text()
