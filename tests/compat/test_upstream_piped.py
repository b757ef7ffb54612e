# SPDX-License-Identifier: Apache-2.0
"""Upstream's first-generation piped with our control plane: quick sync, pipeline, approval."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application

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
    open_bed: Any,
    free_port: Callable[[], int],
    upstream_piped: Path,
    tools_dir: Path,
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    async with open_bed(all_answered=True) as bed:
        files = {"infra/app.pipecd.yaml": APP, "infra/main.tf": ground(state, "one")}
        first = bed.origin.commit({**files, "stray/app.pipecd.yaml": STRAY})
        agent = await bed.register_piped("v0", PROVIDERS)
        draft = Application(
            name="infra", piped_id=agent.id, kind=common.TERRAFORM, platform_provider="tf"
        )
        id_ = await bed.add_application("infra", draft)
        flags = (f"--config-file={agent.config}", "--insecure=true", f"--tools-dir={tools_dir}")
        async with bed.running(
            upstream_piped, "piped", *flags, f"--admin-port={free_port()}"
        ) as piped:
            known = await bed.eventually(lambda: bed.introduced(agent.id), piped)
            assert [(p.name, p.type) for p in known.platform_providers] == [("tf", "TERRAFORM")]
            assert known.secret_encryption.type == "NONE"

            done = await bed.eventually(lambda: bed.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            assert "Quick sync" in done.summary
            assert "Apply complete" in (await bed.logs(done))["TERRAFORM_SYNC"]
            assert '"one"' in state.read_text()

            async def is_reported() -> bool:
                application = await bed.stores.applications.get(id_)
                last = application.most_recently_successful_deployment
                return application.description == "ground" and last.deployment_id == done.id

            await bed.eventually(is_reported, piped)
            strays = await bed.eventually(
                lambda: bed.cases.application_reports.list_unregistered(by=bed.admin), piped
            )
            assert [s.name for s in strays] == ["stray"]

            second = bed.origin.commit(
                {"infra/app.pipecd.yaml": APP + PIPELINE, "infra/main.tf": ground(state, "two")}
            )
            waiting = await bed.eventually(lambda: bed.stage(second, "WAIT_APPROVAL"), piped)
            await bed.cases.deployments.approve(*waiting, by=bed.admin)
            done = await bed.eventually(lambda: bed.ended(second), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            assert '"two"' in state.read_text()
            assert "1 to change" in (await bed.logs(done))["TERRAFORM_PLAN"]
            await bed.eventually(lambda: bed.is_online(agent.id), piped)
