# SPDX-License-Identifier: Apache-2.0
"""The commands of the page about the charts, typed as they are written to helm and kubectl.

The pods of the cluster are simulated: `port-forward` and `exec` are left out, and test_helm.py runs
what the pods would run.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from servers.kubernetes import Kubernetes
from servers.pages import GUIDE, console_blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
VOLUME = """\
apiVersion: v1
kind: PersistentVolume
metadata: {{name: {name}}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 10Gi}}
  hostPath: {{path: /data}}
"""
PIPED = "apiVersion: pipecd.dev/v1beta1\nkind: Piped\nspec: {projectID: shop}\n"
# Lines that need a pod which runs.
LEFT_OUT = re.compile(r"^kubectl .*(port-forward|exec) .*$", re.M)


@dataclass(frozen=True)
class Reader:
    """A shell in the source tree, with helm and kubectl of a cluster."""

    directory: Path
    namespace: str
    kubeconfig: Path

    def type(self, block: str) -> str:
        """Runs the lines of a block, in a namespace of the test instead of `pipecd`."""
        lines = re.sub(r"namespace pipecd\b", f"namespace {self.namespace}", block)
        path = f"{self.directory}/bin:{os.environ['PATH']}"
        home = {"HOME": str(self.directory), "KUBECONFIG": str(self.kubeconfig)}
        ran = subprocess.run(
            ["sh", "-ec", LEFT_OUT.sub("", lines)], cwd=self.directory, env={"PATH": path, **home},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, (block, ran.stdout, ran.stderr)
        return ran.stdout

    def is_ready(self, *deployments: str) -> None:
        for name in deployments:
            self.type(f"kubectl -n {self.namespace} rollout status deployment/{name} --timeout=60s")


@pytest.fixture
def programs(tmp_path: Path, helm: str, kubectl: str) -> Path:
    """A directory with the files that the page expects, and the programs that it calls."""
    (tmp_path / "bin").mkdir()
    for name, program in (("helm", helm), ("kubectl", kubectl)):
        (tmp_path / "bin" / name).symlink_to(program)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    [sample] = re.findall(r"^```yaml\n(.*?)^```", (GUIDE / "helm.md").read_text(), re.M | re.S)
    (tmp_path / "control-plane.yaml").write_text(sample)
    (tmp_path / "piped.yaml").write_text(PIPED)
    return tmp_path


@contextmanager
def reading(programs: Path, kubernetes: Kubernetes) -> Iterator[Reader]:
    reader = Reader(programs, f"test-{uuid4().hex[:8]}", kubernetes.kubeconfig)
    (programs / "volume.yaml").write_text(VOLUME.format(name=reader.namespace))
    reader.type("kubectl apply -f volume.yaml")
    # Objects that belong to no namespace, which other tests may have left in the cluster.
    remove = "kubectl delete clusterrole,clusterrolebinding piped --ignore-not-found"
    reader.type(remove)
    try:
        yield reader
    finally:
        reader.type(remove)
        reader.type(f"kubectl delete pv {reader.namespace} --wait=false")
        reader.type(f"kubectl delete namespace {reader.namespace} --wait=false")


def test_the_charts_are_installed_and_upgraded(programs: Path, kubernetes: Kubernetes) -> None:
    smallest, key, replicas = console_blocks("helm.md", "Control plane")
    [piped] = console_blocks("helm.md", "Piped")
    assert LEFT_OUT.search(smallest)
    assert "kubectl --namespace pipecd exec deployment/pipecd-server" in key
    with reading(programs, kubernetes) as reader:
        reader.type(smallest)
        reader.is_ready("pipecd-server")
        stored = f"kubectl -n {reader.namespace} get secret pipecd -o jsonpath="
        assert len(reader.type(stored + "'{.data.encryption-key}'")) > 64
        reader.type(replicas)
        reader.is_ready("pipecd-server", "pipecd-ops")
        count = f"kubectl -n {reader.namespace} get deployment pipecd-server -o jsonpath="
        assert reader.type(count + "'{.status.readyReplicas}'") == "2"
        reader.type(piped)
        reader.is_ready("piped")
        reader.type(f"helm uninstall pipecd piped --namespace {reader.namespace}")


def test_the_plain_manifests_are_applied(programs: Path, kubernetes: Kubernetes) -> None:
    [block] = console_blocks("helm.md", "Plain manifests")
    with reading(programs, kubernetes) as reader:
        reader.type(block)
        reader.is_ready("pipecd-server", "piped")
        image = f"kubectl -n {reader.namespace} get deployment piped -o jsonpath="
        found = reader.type(image + "'{.spec.template.spec.containers[0].image}'")
        assert found.startswith("YOUR-REGISTRY/piped:")
