# SPDX-License-Identifier: Apache-2.0
"""A developer pushes a branch that attacks the host of a piped, and asks for its plan preview.

Each application of the branch is an attack of its own. Nothing of the host appears in what anybody
can read, each attack is the error of its application, an honest application beside them is previewed,
and the piped goes on deploying.
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
from servers.control_plane import LocalControlPlane, RunPiped, StartControlPlane
from servers.kubernetes import Kubernetes
from servers.origin import Origin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# In a file and in the environment of the host.
PLANTED = "planted-9fA3kZ7qLw"
CONFIG_MAP = (
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{words: {words}}}\n"
)
CHART = "apiVersion: v2\nname: chart\nversion: 1.0.0\n"


@dataclass(frozen=True)
class Attack:
    """An application on the branch: the input of its configuration, other fields, and its files."""

    files: Mapping[str, str]
    input: Mapping[str, Any] | None = None
    spec: Mapping[str, Any] | None = None
    link: str = ""
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
    "an-expression": Attack(
        {
            "map.yaml": CONFIG_MAP.format(name="x", words="b"),
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac": "",
        },
        spec={"trigger": {"onCommit": {"paths": ["(a+)+(a+)+(a+)+b"]}}},
    ),
}


def application(name: str, attack: Attack | None = None) -> str:
    spec = {
        "name": name,
        "plugins": {"kubernetes": {"input": dict((attack and attack.input) or {})}},
    }
    document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application"}
    return json.dumps({**document, "spec": {**spec, **((attack and attack.spec) or {})}})


def harmless(name: str, words: str = "a") -> dict[str, str]:
    return {
        f"{name}/app.pipecd.yaml": application(name),
        f"{name}/map.yaml": CONFIG_MAP.format(name=name, words=words),
    }


def push_attacks(origin: Origin, host_file: Path) -> str:
    """Commits the attacks to a branch and returns its head."""
    origin.git("checkout", "-q", "-b", "feature")
    for name, attack in ATTACKS.items():
        directory = origin.path / name
        up = os.path.relpath(host_file, directory)
        for file, text in attack.files.items():
            (directory / file).parent.mkdir(parents=True, exist_ok=True)
            (directory / file).write_text(text)
        (directory / "app.pipecd.yaml").write_text(
            application(name, attack).replace("../../SECRET", up)
        )
        if attack.link:
            (directory / attack.link).unlink()
            (directory / attack.link).symlink_to(host_file)
    head = origin.commit({"honest/map.yaml": CONFIG_MAP.format(name="honest", words="b")})
    origin.git("checkout", "-q", "main")
    return head


async def preview(
    plane: LocalControlPlane, origin: Origin, head_commit: str
) -> PlanPreviewCommandResult:
    request = RequestPlanPreviewRequest(
        repo_remote_url=origin.remote,
        base_branch="main",
        head_branch="feature",
        head_commit=head_commit,
    )
    commands = await plane.cases.plan_previews.request(request, by=plane.admin)
    for command in commands:
        await plane.wait_for_command(command, within=120)
    (result,) = await plane.cases.plan_previews.results(commands, by=plane.admin)
    return result


async def test_a_hostile_branch_gains_nothing_and_stops_nothing(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    kubernetes: Kubernetes,
    namespace: str,
    rendering_tools: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    del rendering_tools
    monkeypatch.setenv("PLANTED", PLANTED)
    host_file = tmp_path / "host" / "file"
    host_file.parent.mkdir()
    host_file.write_text(f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {PLANTED}}}\n")
    target = {"kubeConfigPath": str(kubernetes.kubeconfig), "namespace": namespace}
    plugins = [{"name": "kubernetes", "deployTargets": [{"name": "here", "config": target}]}]
    more = f"plugins: {json.dumps(plugins)}\nrendering: {{timeout: 5s, memory: 300Mi}}\n"
    names = ["honest", *ATTACKS]
    origin.commit({file: text for name in names for file, text in harmless(name).items()})
    there = {"kubernetes": DeployTargets(deploy_targets=["here"])}
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, more=more) as piped,
    ):
        for name in names:
            await piped.add_application(name, deploy_targets_by_plugin=there)
        await plane.wait_for(
            plane.completed_deployments, lambda ended: len(ended) == len(names), within=60
        )
        head = push_attacks(origin, host_file)
        result = await preview(plane, origin, head)
        option = f"--pathspec-from-file={host_file}"
        as_option = await preview(plane, origin, option)
        merged = origin.commit({"honest/map.yaml": CONFIG_MAP.format(name="honest", words="c")})
        deployed = await plane.wait_for_completed(merged)
    reasons = {each.application_name: each.error for each in result.results}
    assert sorted(reasons) == sorted(names)
    expected = {"honest": "", **{name: attack.reason for name, attack in ATTACKS.items()}}
    assert {n: text for n, text in expected.items() if text not in reasons[n]} == {}
    assert {n for n, text in expected.items() if not text and reasons[n]} == set()
    assert PLANTED not in f"{result}{as_option}"
    assert "root:" not in str(result)
    assert as_option.error or all(each.error for each in as_option.results)
    assert not await asyncio.to_thread(lambda: list(tmp_path.rglob("OWNED")))
    assert DeploymentStatus(deployed.status) is DeploymentStatus.SUCCESS, deployed.status_reason
