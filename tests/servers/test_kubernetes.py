# SPDX-License-Identifier: Apache-2.0
"""The test cluster behaves like a real one, and its pods fail on request."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from servers.kubernetes import FAILS, NEVER_READY, Kubernetes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Kubectl = Callable[..., str]


def deployment(labels: Mapping[str, str], image: str = "web:1") -> dict[str, Any]:
    container = {"name": "web", "image": image}
    fast = {f"{label}/{what}": "1ms" for label in FAILS for what in ("delay", "jitter-delay")}
    template = {
        "metadata": {"labels": {"app": "web", **labels}, "annotations": fast},
        "spec": {"containers": [container]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    }


@pytest.fixture
def typed(kubernetes: Kubernetes, kubectl: str, namespace: str, tmp_path: Path) -> Kubectl:
    """Runs kubectl in a namespace of its own; a document is its file."""

    def run(*arguments: str, document: Any = None) -> str:
        file: list[str] = []
        if document is not None:
            (tmp_path / "document.json").write_text(json.dumps(document))
            file = ["--filename", str(tmp_path / "document.json")]
        config = ("--kubeconfig", str(kubernetes.kubeconfig), "--namespace", namespace)
        done = subprocess.run(
            [kubectl, *config, *arguments, *file], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def eventually(question: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not question():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def test_a_deployment_is_rolled_out_and_changed(typed: Kubectl) -> None:
    typed("apply", document=deployment({}))
    assert "successfully rolled out" in typed("rollout", "status", "deployment/web")
    typed("apply", document=deployment({}, "web:2"))
    assert "successfully rolled out" in typed("rollout", "status", "deployment/web")
    images = typed("get", "pods", "--output=jsonpath={.items[*].spec.containers[0].image}")
    assert "web:2" in images


def test_a_job_completes(typed: Kubectl) -> None:
    typed("create", "job", "once", "--image=once:1")
    assert "condition met" in typed("wait", "--for=condition=complete", "job/once")


@pytest.mark.parametrize(
    ("labels", "phase"),
    [
        pytest.param(NEVER_READY, "Pending", id="pods that never become ready"),
        pytest.param(FAILS, "Failed", id="pods that fail"),
    ],
)
def test_pods_misbehave(typed: Kubectl, labels: Mapping[str, str], phase: str) -> None:
    typed("apply", document=deployment(labels))
    phases = "--output=jsonpath={.items[*].status.phase}"
    eventually(lambda: phase in typed("get", "pods", phases).split())


def test_the_token_opens_the_api(kubernetes: Kubernetes, namespace: str) -> None:
    found = kubernetes.ask("GET", f"/api/v1/namespaces/{namespace}")
    assert found["status"]["phase"] == "Active"


def test_helm_installs_a_chart(
    kubernetes: Kubernetes, helm: str, namespace: str, tmp_path: Path
) -> None:
    def run(*arguments: str) -> str:
        return subprocess.run(
            [helm, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    run("create", "site")
    where = ("--kubeconfig", str(kubernetes.kubeconfig), "--namespace", namespace)
    assert "STATUS: deployed" in run("install", "site", "site", "--wait", *where)


def test_kustomize_builds(kustomize: str, tmp_path: Path) -> None:
    (tmp_path / "web.json").write_text(json.dumps(deployment({})))
    (tmp_path / "kustomization.yaml").write_text("resources: [web.json]\nnamePrefix: my-\n")
    built_program = subprocess.run(
        [kustomize, "build", tmp_path], capture_output=True, text=True, check=True
    )
    assert "name: my-web" in built_program.stdout
