# SPDX-License-Identifier: Apache-2.0
"""Upstream's first-generation piped with our control plane: quick sync, pipeline, approval."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.secrets import hybrid
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPECTL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROVIDERS = "  platformProviders: [{name: tf, type: TERRAFORM}]\n"

APP = """\
apiVersion: pipecd.dev/v1beta1
kind: TerraformApp
spec:
  name: infra
  labels: {env: dev}
  description: ground
  input: {terraformVersion: given}
"""

PIPELINE = """\
  pipeline:
    stages:
      - name: TERRAFORM_PLAN
      - name: WAIT
        with: {duration: 1s}
      - name: WAIT_APPROVAL
        with: {approvers: [admin]}
      - name: TERRAFORM_APPLY
"""

STRAY = """\
apiVersion: pipecd.dev/v1beta1
kind: TerraformApp
spec: {name: stray, labels: {team: ground}}
"""


def ground(state: Path, value: str) -> str:
    return f"""\
terraform {{
  backend "local" {{ path = "{state}" }}
}}
resource "terraform_data" "ground" {{ input = "{value}" }}
"""


async def test_a_terraform_application_is_synced_planned_approved_and_applied(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    upstream_piped: Path,
    tools_dir: Path,
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    async with open_installation(all_answered=True) as installation:
        files = {"infra/app.pipecd.yaml": APP, "infra/main.tf": ground(state, "one")}
        first = installation.origin.commit({**files, "stray/app.pipecd.yaml": STRAY})
        agent = await installation.register_piped("v0", PROVIDERS)
        draft = Application(
            name="infra", piped_id=agent.id, kind=common.TERRAFORM, platform_provider="tf"
        )
        id_ = await installation.add_application("infra", draft)
        flags = (f"--config-file={agent.config}", "--insecure=true", f"--tools-dir={tools_dir}")
        async with installation.running(
            upstream_piped, "piped", *flags, f"--admin-port={free_port()}"
        ) as piped:
            known = await installation.eventually(lambda: installation.introduced(agent.id), piped)
            assert [(p.name, p.type) for p in known.platform_providers] == [("tf", "TERRAFORM")]
            assert known.secret_encryption.type == "NONE"

            done = await installation.eventually(lambda: installation.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            assert "Quick sync" in done.summary
            assert "Apply complete" in (await installation.logs(done))["TERRAFORM_SYNC"]
            assert '"one"' in state.read_text()

            async def is_reported() -> bool:
                application = await installation.stores.applications.get(id_)
                last = application.most_recently_successful_deployment
                return application.description == "ground" and last.deployment_id == done.id

            await installation.eventually(is_reported, piped)
            strays = await installation.eventually(
                lambda: installation.cases.application_reports.list_unregistered(
                    by=installation.admin
                ),
                piped,
            )
            assert [s.name for s in strays] == ["stray"]

            second = installation.origin.commit(
                {"infra/app.pipecd.yaml": APP + PIPELINE, "infra/main.tf": ground(state, "two")}
            )
            waiting = await installation.eventually(
                lambda: installation.stage(second, "WAIT_APPROVAL"), piped
            )
            await installation.cases.deployments.approve(*waiting, by=installation.admin)
            done = await installation.eventually(lambda: installation.ended(second), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            assert '"two"' in state.read_text()
            assert "1 to change" in (await installation.logs(done))["TERRAFORM_PLAN"]
            await installation.eventually(lambda: installation.is_online(agent.id), piped)


async def test_a_secret_for_upstreams_piped_has_upstreams_form(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    upstream_piped: Path,
    spec_dir: Path,
    tmp_path: Path,
) -> None:
    keys = spec_dir / "vectors"
    management = f"""\
  secretManagement:
    type: KEY_PAIR
    config: {{privateKeyFile: {keys}/secret_private.pem, publicKeyFile: {keys}/secret_public.pem}}
"""
    secret = tmp_path / "secret"
    secret.write_text("hunter22")
    async with open_installation() as installation:
        installation.origin.commit({"README": ""})
        agent = await installation.register_piped("v0", PROVIDERS + management)
        draft = Application(
            name="infra", piped_id=agent.id, kind=common.TERRAFORM, platform_provider="tf"
        )
        id_ = await installation.add_application("infra", draft)
        flags = (f"--config-file={agent.config}", "--insecure=true", f"--tools-dir={tmp_path}")
        async with installation.running(
            upstream_piped, "piped", *flags, f"--admin-port={free_port()}"
        ) as piped:
            await installation.eventually(lambda: installation.introduced(agent.id), piped)
            done = await installation.run(
                *(OUR_PIPECTL, "encrypt", "--app-id", id_, "--input-file", str(secret)),
                *installation.pipectl_flags(),
            )
    assert done.code == 0, done.err
    assert "the secret is not bound" in done.err
    private = (keys / "secret_private.pem").read_bytes()
    assert hybrid.decrypt(private, done.out.strip()) == "hunter22"
