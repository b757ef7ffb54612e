# SPDX-License-Identifier: Apache-2.0
"""Plan previews across the generations: both pipectls read the results of either piped."""

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.kubernetes import Kubernetes
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPECTL, OUR_PIPED
from servers.upstream import UpstreamInstallation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


WEB = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  labels: {env: dev}
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {word: WORD}\n"
SCRIPT = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  pipeline: {stages: [{name: SCRIPT_RUN, with: {run: cat words}}]}
"""
GROUND = """\
apiVersion: pipecd.dev/v1beta1
kind: TerraformApp
spec: {name: ground, input: {terraformVersion: given}}
"""
RESOURCE = 'resource "terraform_data" "ground" { input = "INPUT" }\n'


@dataclass(frozen=True)
class Preview:
    """The output and the result file of a pipectl."""

    text: str
    written: dict[str, Any]


@dataclass(frozen=True)
class Both:
    """Both pipectls, which ask one control plane for the same."""

    installation: OurInstallation | UpstreamInstallation
    upstream: Path
    flags: list[str]

    async def preview(self, branch: str, commit: str) -> Preview:
        """Both must print and write the same."""
        line = f"--repo-remote-url {self.installation.origin.remote} --base-branch main"
        line += f" --head-branch {branch} --head-commit {commit} --timeout 2m"
        ours, theirs = await asyncio.gather(
            *(self._typed(program, line) for program in (OUR_PIPECTL, self.upstream))
        )
        assert ours.text == theirs.text
        assert ours.written == theirs.written
        return theirs

    async def _typed(self, program: Path, line: str) -> Preview:
        out = self.installation.directory / f"{program.parent.name}.json"
        ended = await self.installation.run(
            program, "plan-preview", *line.split(), "--out", str(out), *self.flags
        )
        assert ended.code == 0, ended.out + ended.err
        # Before the result, both print that they wait for it.
        return Preview(re.split(r"\n(?=\n)", ended.out, maxsplit=1)[1], json.loads(out.read_text()))


async def test_a_preview_of_our_piped_is_read_by_both(
    open_installation: OpenInstallation,
    upstream_pipectl: Path,
    kubernetes: Kubernetes,
    namespace: str,
) -> None:
    target = {"name": "here", "config": {"kubeConfigPath": str(kubernetes.kubeconfig)}}
    plugins = [{"name": "kubernetes", "deployTargets": [target]}]
    async with open_installation(all_answered=True) as installation:
        files = {"web/app.pipecd.yaml": WEB.replace("NAMESPACE", namespace)}
        files |= {f"{n}/app.pipecd.yaml": SCRIPT.replace("NAME", n) for n in ("cart", "bad")}
        first = installation.origin.commit({**files, "web/map.yaml": CONFIG_MAP})
        agent = await installation.register_piped("ours", f"  plugins: {json.dumps(plugins)}\n")
        flags = (
            "--insecure",
            f"--workspace-dir={installation.directory / 'work'}",
            "--admin-port=0",
        )
        async with installation.running(
            OUR_PIPED, "run", f"--config-file={agent.config}", *flags
        ) as piped:
            there = {"kubernetes": DeployTargets(deploy_targets=["here"])}
            for name, aim in (("web", there), ("cart", None), ("bad", None)):
                draft = Application(name=name, piped_id=agent.id, deploy_targets_by_plugin=aim)
                await installation.add_application(name, draft)

            async def all_ended() -> bool:
                ended = [
                    d for d in await installation.deployments() if d.trigger.commit.hash == first
                ]
                return [DeploymentStatus(d.status).is_completed for d in ended] == [True] * 3

            await installation.eventually(all_ended, piped)
            change = {"web/map.yaml": CONFIG_MAP.replace("WORD", "bye"), "cart/words": "bye"}
            change["bad/app.pipecd.yaml"] = "kind: [broken"
            branch, head = installation.origin.branch(change)
            both = Both(installation, upstream_pipectl, installation.pipectl_flags())
            shown = await both.preview(branch, head)
            installation.origin.commit({"cart/words": "something else"})
            refused = await both.preview(branch, head)
    assert "\nHere are plan-preview for 2 applications:\n" in shown.text
    assert (
        "app: web, env: dev, plan plugin(s): kubernetes\n  sync strategy: QUICK_SYNC" in shown.text
    )
    assert "  - kubernetes(here): 0 added manifests, 1 changed manifests" in shown.text
    assert "NOTE: An error occurred while building plan-preview for the following app" in shown.text
    (failed,) = refused.written["FailurePipeds"]
    assert failed["Reason"].startswith(f"detected conflicts between commit {head} at feature br")


async def test_a_preview_of_upstreams_piped_is_read_by_both(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    upstream_pipectl: Path,
    upstream_piped: Path,
    tools_dir: Path,
) -> None:
    async with open_installation() as installation:
        ground = {"ground/app.pipecd.yaml": GROUND, "ground/main.tf": RESOURCE}
        first = installation.origin.commit(ground)
        agent = await installation.register_piped(
            "theirs", "  platformProviders: [{name: tf, type: TERRAFORM}]\n"
        )
        draft = Application(
            name="ground", kind=common.TERRAFORM, platform_provider="tf", piped_id=agent.id
        )
        await installation.add_application("ground", draft)
        flags = (f"--config-file={agent.config}", "--insecure", f"--admin-port={free_port()}")
        arguments = ("piped", f"--tools-dir={tools_dir}", *flags)
        async with installation.running(upstream_piped, *arguments) as piped:
            done = await installation.eventually(lambda: installation.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            await installation.eventually(lambda: installation.is_online(agent.id), piped)
            branch, head = installation.origin.branch(
                {"ground/main.tf": RESOURCE.replace("INPUT", "two")}
            )
            both = Both(installation, upstream_pipectl, installation.pipectl_flags())
            shown = await both.preview(branch, head)
    assert "\n1. app: ground, kind: TERRAFORM\n  sync strategy: " in shown.text
    assert "  ---DETAILS_BEGIN---\n" in shown.text


async def test_a_preview_of_our_piped_goes_through_a_control_plane_of_upstream(
    upstream_installation: UpstreamInstallation,
    free_port: Callable[[], int],
    upstream_pipectl: Path,
) -> None:
    installation = upstream_installation
    first = installation.origin.commit({"cart/app.pipecd.yaml": SCRIPT.replace("NAME", "cart")})
    agent = await installation.register_piped("ours", "  plugins: [{name: scriptrun}]\n")
    flags = (f"--config-file={agent.config}", "--insecure=true", f"--admin-port={free_port()}")
    async with installation.running(OUR_PIPED, "run", *flags) as piped:
        await installation.eventually(lambda: installation.introduced(agent.id), piped)
        await installation.add_application("cart", Application(name="cart", piped_id=agent.id))
        await installation.eventually(lambda: installation.ended(first), piped)
        branch, head = installation.origin.branch({"cart/words": "bye"})
        access = [
            "--address",
            installation.api_address,
            "--insecure",
            "--api-key",
            await installation.api_key(),
        ]
        shown = await Both(installation, upstream_pipectl, access).preview(branch, head)
    (cart,) = shown.written["Applications"]
    assert (cart["ApplicationName"], cart["SyncStrategy"]) == ("cart", "PIPELINE")
    assert cart["AllPluginNames"] == "scriptrun"
