# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes cluster on loopback: a real control plane, and one node that only pretends."""

import json
import shutil
import ssl
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from servers.programs import built_program
from servers.server import START_SECONDS, Server, free_port, run

TOKEN = "admin-token"

# A pod with this label stays Pending.
NEVER_READY = {"testbed/ready": "false"}
# A pod with this label is Running and then fails; annotations of that prefix say after what time,
# for what reason and with what code: `/delay`, `/jitter-delay`, `/reason`, `/exit-code`.
FAILS = {"pod-container-running-failed.stage.kwok.x-k8s.io": "true"}

STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
    "pod/chaos/pod-container-running-failed.yaml",
)
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node"}}

AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Request",
            "users": ["admin"],
            "verbs": ["create", "update", "patch", "delete"],
            "resources": [
                {"group": "", "resources": ["configmaps"]},
                {"group": "apps", "resources": ["deployments"]},
            ],
        },
        {"level": "None"},
    ],
}


class Part(Server):
    """One program of the cluster."""

    def __init__(self, arguments: Sequence[str], is_up: Callable[[], bool]) -> None:
        self.arguments, self.up = arguments, is_up
        super().__init__()

    def find_program(self) -> str:
        return built_program("kubebed")

    def command(self) -> Sequence[str]:
        return [self.program, *self.arguments]

    def is_up(self) -> bool:
        return self.up()


class Kubernetes:
    """A cluster whose administrator has a kubeconfig and a token.

    Pods are Running and Ready at once, Jobs Complete; no image is pulled, no packet reaches a pod,
    and there are no logs of containers.
    """

    def __init__(self, *, has_audit_log: bool = False) -> None:
        """With an audit log, the API server records every write to what applications consist of."""
        kubebed = Path(built_program("kubebed"))
        self.directory = Path(tempfile.mkdtemp(prefix="pipecd-test-"))
        self.url = f"https://127.0.0.1:{free_port()}"
        self.token = TOKEN
        self.certificate = self.directory / "certs" / "apiserver.crt"
        self.kubeconfig = self.directory / "kubeconfig"
        self.audit_log = self.directory / "audit.log" if has_audit_log else None
        self._parts: list[Part] = []
        try:
            self._prepare(kubebed.parent / "kustomize" / "stage")
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for part in reversed(self._parts):
            part.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def api_server(self) -> Part:
        """The API server, which a test may stop and start when the cluster is its own."""
        return self._parts[1]

    def ask(
        self, method: str, path: str, body: Any = None, *, form: str = "application/json"
    ) -> Any:
        """One call of the API, with JSON both ways."""
        # The API server signs its certificate itself after its start.
        context = ssl.create_default_context(cafile=str(self.certificate))
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": form}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            return json.load(reply) if "json" in reply.headers["Content-Type"] else reply.read()

    def _prepare(self, stages: Path) -> None:
        key, public = self.directory / "sa.key", self.directory / "sa.pub"
        run("openssl", "genrsa", "-out", str(key), "2048")
        run("openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public))
        (self.directory / "tokens.csv").write_text(f'{TOKEN},admin,admin,"system:masters"\n')
        self.kubeconfig.write_text(yaml.safe_dump(self._kubeconfig()))
        (self.directory / "audit-policy.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
        texts = [yaml.safe_load((stages / name).read_text()) for name in STAGES]
        for stage in texts:
            if stage["metadata"]["name"] == "pod-ready":
                ((label, value),) = NEVER_READY.items()
                never = {"key": f'.metadata.labels["{label}"]', "operator": "NotIn"}
                stage["spec"]["selector"]["matchExpressions"].append({**never, "values": [value]})
        (self.directory / "stages.yaml").write_text(yaml.safe_dump_all(texts))

    def _kubeconfig(self) -> dict[str, Any]:
        cluster = {"server": self.url, "certificate-authority": str(self.certificate)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": TOKEN}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "admin"}}],
            "current-context": "tests",
        }

    def _start(self) -> None:
        etcd = f"http://127.0.0.1:{free_port()}"
        self._add(*self._etcd(etcd), is_up=lambda: self._gets(f"{etcd}/health"))
        self._add(*self._api_server(etcd), is_up=self._is_ready)
        self.ask("POST", "/api/v1/nodes", NODE)
        config = f"--kubeconfig={self.kubeconfig}"
        alone = (config, "--leader-elect=false", "--secure-port=0")
        keys = (
            f"--service-account-private-key-file={self.directory}/sa.key",
            f"--root-ca-file={self.certificate}",
        )
        self._add("kube-controller-manager", *alone, *keys)
        self._add("kube-scheduler", *alone)
        self._add(
            "kwok",
            config,
            "--manage-all-nodes=true",
            f"--config={self.directory}/stages.yaml",
            "--node-lease-duration-seconds=40",
            "--node-ip=127.0.0.1",
        )
        end = time.monotonic() + START_SECONDS
        while not self._works():
            if time.monotonic() > end:
                raise RuntimeError("the node of the cluster does not become ready")
            time.sleep(0.05)

    def _add(self, *arguments: str, is_up: Callable[[], bool] = lambda: True) -> None:
        self._parts.append(Part(arguments, is_up))

    def _etcd(self, client: str) -> Sequence[str]:
        peer = f"http://127.0.0.1:{free_port()}"
        return (
            "etcd",
            f"--data-dir={self.directory}/etcd",
            "--unsafe-no-fsync",
            "--log-level=error",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )

    def _api_server(self, etcd: str) -> Sequence[str]:
        return (
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--cert-dir={self.directory}/certs",
            "--endpoint-reconciler-type=none",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.directory}/sa.pub",
            f"--service-account-signing-key-file={self.directory}/sa.key",
            "--allow-privileged=true",
            *self._audit_flags(),
        )

    def _audit_flags(self) -> Sequence[str]:
        if self.audit_log is None:
            return ()
        policy = self.directory / "audit-policy.yaml"
        return (f"--audit-policy-file={policy}", f"--audit-log-path={self.audit_log}")

    def _gets(self, url: str) -> bool:
        with suppress(OSError), urllib.request.urlopen(url, timeout=1):
            return True
        return False

    def _is_ready(self) -> bool:
        with suppress(OSError):
            self.ask("GET", "/readyz")
            return True
        return False

    def _works(self) -> bool:
        """Whether pods could run: they need the node, and the account of their namespace."""
        node = self.ask("GET", "/api/v1/nodes/node")
        conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", ())}
        with suppress(urllib.error.HTTPError):
            self.ask("GET", "/api/v1/namespaces/default/serviceaccounts/default")
            return conditions.get("Ready") == "True" and "taints" not in node["spec"]
        return False
