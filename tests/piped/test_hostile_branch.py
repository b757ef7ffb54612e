# SPDX-License-Identifier: Apache-2.0
"""A developer pushes a branch that attacks the host of a piped, and asks for its plan preview.

Each application of the branch is an attack of its own. Nothing of the host appears in what anybody
can read, each attack is the error of its application, an honest application beside them is previewed,
and the piped goes on deploying. A commit that no working copy could hold is the error of its preview.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from pipecd.secrets import hybrid
from servers.control_plane import LocalControlPlane, RunPiped, StartControlPlane
from servers.git_trees import graft, nested
from servers.kubernetes import Kubernetes
from servers.origin import Origin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# In a file and in the environment of the host.
PLANTED = "planted-9fA3kZ7qLw"
CONFIG_MAP = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{words: {words}}}\n"
)
# Encrypted in a form that every application of the piped may decrypt.
SECRET = "secret-x7Qm2vTn"
CHART = "apiVersion: v2\nname: chart\nversion: 1.0.0\n"


@dataclass(frozen=True)
class Attack:
    """An application on the branch: the input of its configuration, other fields, and its files."""

    files: Mapping[str, str]
    input: Mapping[str, Any] | None = None
    spec: Mapping[str, Any] | None = None
    link: str = ""
    plugin: str = "kubernetes"
    # What the person who asked for the preview reads; an empty text: the preview succeeds.
    reason: str = ""


def template(text: str, reason: str = "") -> Attack:
    words = {"attachment": {"sources": {"words": "words"}, "targets": ["map.yaml"]}}
    return Attack({"words": "w", "map.yaml": text}, spec=words, reason=reason)


ATTACKS: dict[str, Attack] = {
    "a-link": Attack({}, link="map.yaml", reason="outside of the repository"),
    "a-path": Attack({}, {"manifests": ["../../SECRET"]}, reason="outside of the repository"),
    "an-absolute-path": Attack(
        {}, {"manifests": ["/etc/passwd"]}, reason="outside of the repository"
    ),
    "a-device": Attack({}, {"manifests": ["/dev/zero"]}, reason="outside of the repository"),
    "the-environment": template(CONFIG_MAP.format(name="env", words='"x{{ env "PLANTED" }}"')),
    "a-loop": template("{{ range until 99999 }}{{ range until 99999 }}{{ end }}{{ end }}", "limit"),
    "a-chart": Attack(
        {
            "chart/Chart.yaml": CHART,
            "chart/templates/map.yaml": "{{ range until 2000000000 }}a: b\n{{ end }}",
        },
        {"helmChart": {"path": "chart"}},
        reason="helm",
    ),
    "a-value-file": Attack(
        {"chart/Chart.yaml": CHART, "chart/templates/map.yaml": "x: {{ .Values }}"},
        {"helmChart": {"path": "chart"}, "helmOptions": {"valueFiles": ["a,/etc/passwd"]}},
        reason="a,/etc/passwd",
    ),
    "a-program": Attack(
        {
            "kustomization.yaml": "helmCharts: [{name: chart, version: 1.0.0}]\n",
            "evil.sh": "#!/bin/sh\ntouch OWNED\n",
        },
        {"kustomizeOptions": {"enable-helm": "", "helm-command": "./evil.sh"}},
        reason="helm-command",
    ),
    # A preview of Terraform would run the code of the branch; the operator disabled it.
    "a-plan": Attack(
        {"main.tf": 'output "host" {\n  value = file("SECRET")\n}\n'}, plugin="terraform"
    ),
    # Copied from another application; the template makes of it what no masking knows.
    "a-secret": Attack(
        {
            "map.yaml": CONFIG_MAP.format(
                name="a-secret", words='"x{{ .encryptedSecrets.token | upper }}"'
            )
        },
        spec={
            "encryption": {
                "encryptedSecrets": {"token": "ENCRYPTED"},
                "decryptionTargets": ["map.yaml"],
            }
        },
    ),
    "an-expression": Attack(
        {
            "map.yaml": CONFIG_MAP.format(name="x", words="b"),
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac": "",
        },
        spec={"trigger": {"onCommit": {"paths": ["(a+)+(a+)+(a+)+b"]}}},
    ),
}


def application(name: str, attack: Attack | None = None) -> str:
    sections: dict[str, Any] = {
        "kubernetes": {"input": dict((attack and attack.input) or {})},
        "terraform": {},
    }
    plugin = ATTACKS[name].plugin if name in ATTACKS else "kubernetes"
    spec = {"name": name, "plugins": {plugin: sections[plugin]}}
    document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application"}
    return json.dumps({**document, "spec": {**spec, **((attack and attack.spec) or {})}})


def harmless(name: str, words: str = "a") -> dict[str, str]:
    if name in ATTACKS and ATTACKS[name].plugin == "terraform":
        text = 'output "words" {\n  value = "a"\n}\n'
        return {f"{name}/app.pipecd.yaml": application(name), f"{name}/main.tf": text}
    return {
        f"{name}/app.pipecd.yaml": application(name),
        f"{name}/map.yaml": CONFIG_MAP.format(name=name, words=words),
    }


def push_attacks(origin: Origin, host_file: Path, encrypted: str) -> str:
    """Commits the attacks to a branch and returns its head."""
    origin.git("checkout", "-q", "-b", "feature")
    for name, attack in ATTACKS.items():
        directory = origin.path / name
        up = os.path.relpath(host_file, directory)
        for file, text in attack.files.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(text.replace("SECRET", str(host_file)))
        (directory / "app.pipecd.yaml").write_text(
            application(name, attack).replace("../../SECRET", up).replace("ENCRYPTED", encrypted)
        )
        if attack.link:
            (directory / attack.link).unlink()
            (directory / attack.link).symlink_to(host_file)
    head = origin.commit({"honest/map.yaml": CONFIG_MAP.format(name="honest", words="b")})
    origin.git("checkout", "-q", "main")
    return head


def push_bomb(origin: Origin) -> str:
    """Commits directories within directories, 10^30 of them, to a branch; returns its head."""
    origin.git("checkout", "-q", "-b", "bomb", "main")
    head = graft(origin, "honest", {"bomb": nested(origin, width=10, levels=30)})
    origin.git("symbolic-ref", "HEAD", "refs/heads/main")
    return head


async def preview(
    plane: LocalControlPlane, origin: Origin, head_commit: str, branch: str = "feature"
) -> PlanPreviewCommandResult:
    request = RequestPlanPreviewRequest(
        repo_remote_url=origin.remote,
        base_branch="main",
        head_branch=branch,
        head_commit=head_commit,
    )
    commands = await plane.cases.plan_previews.request(request, by=plane.admin)
    for command in commands:
        await plane.wait_for_command(command, within=120)
    (result,) = await plane.cases.plan_previews.results(commands, by=plane.admin)
    return result


@pytest.fixture
def terraform_on_path(terraform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(terraform).parent), prepend=os.pathsep)


@pytest.mark.usefixtures("rendering_tools", "terraform_on_path")
async def test_a_hostile_branch_gains_nothing_and_stops_nothing(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    kubernetes: Kubernetes,
    namespace: str,
    spec_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PLANTED", PLANTED)
    host_file = tmp_path / "host" / "file"
    host_file.parent.mkdir()
    host_file.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {PLANTED}}}\n")
    target = {"kubeConfigPath": str(kubernetes.kubeconfig), "namespace": namespace}
    without_previews = {"name": "here", "config": {"planPreviewEnabled": False}}
    plugins = [
        {"name": "kubernetes", "deployTargets": [{"name": "here", "config": target}]},
        {"name": "terraform", "deployTargets": [without_previews]},
    ]
    private, public = (spec_dir / "vectors" / f"secret_{h}.pem" for h in ("private", "public"))
    keys = {"privateKeyFile": str(private), "publicKeyFile": str(public)}
    more = (
        f"plugins: {json.dumps(plugins)}\nrendering: {{timeout: 5s, memory: 300Mi}}\n"
        f"secretManagement: {json.dumps({'type': 'KEY_PAIR', 'config': keys})}\n"
    )
    encrypted = hybrid.encrypt(public.read_bytes(), SECRET)
    names = ["honest", *ATTACKS]
    origin.commit({file: text for name in names for file, text in harmless(name).items()})
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, more=more) as piped,
    ):
        for name in names:
            plugin = ATTACKS[name].plugin if name in ATTACKS else "kubernetes"
            there = {plugin: DeployTargets(deploy_targets=["here"])}
            await piped.add_application(name, deploy_targets_by_plugin=there)
        await plane.wait_for(
            plane.completed_deployments, lambda ended: len(ended) == len(names), within=60
        )
        head = push_attacks(origin, host_file, encrypted)
        result = await preview(plane, origin, head)
        option = f"--pathspec-from-file={host_file}"
        as_option = await preview(plane, origin, option)
        bomb = await preview(plane, origin, push_bomb(origin), "bomb")
        merged = origin.commit({"honest/map.yaml": CONFIG_MAP.format(name="honest", words="c")})
        deployed = await plane.wait_for_completed(merged)
    reasons = {each.application_name: each.error for each in result.results}
    assert sorted(reasons) == sorted(names)
    expected = {"honest": "", **{name: attack.reason for name, attack in ATTACKS.items()}}
    assert {n: text for n, text in expected.items() if text not in reasons[n]} == {}
    assert {n for n, text in expected.items() if not text and reasons[n]} == set()
    assert PLANTED not in f"{result}{as_option}"
    assert SECRET.lower() not in str(result).lower()
    shown = {each.application_name: str(each) for each in result.results}
    assert "bm90LWRlY3J5cHRlZC".upper() in shown["a-secret"], "there is a placeholder"
    assert "Plan preview is disabled for deploy target here" in shown["a-plan"]
    bombs = {each.application_name: each.error for each in bomb.results if each.error}
    assert bomb.error == ""
    assert len(bombs) == 1
    assert "more than 1,000,000 files and directories" in str(bombs)
    assert "root:" not in str(result)
    assert as_option.error or all(each.error for each in as_option.results)
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("OWNED")))
    assert DeploymentStatus(deployed.status) is DeploymentStatus.SUCCESS, deployed.status_reason
