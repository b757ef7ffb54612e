# SPDX-License-Identifier: Apache-2.0
"""What fails a deployment of Terraform through a whole piped: the stage says why and what to do.

The release before stays, or the rollback restores it.
"""

import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.control_plane import StartControlPlane
from servers.installation import Program
from servers.origin import Origin
from servers.our_installation import OurInstallation
from servers.programs import OUR_PIPED
from servers.server import free_port
from servers.terraform_application import (
    GENERATIONS,
    application_config,
    application_draft,
    piped_entry,
)
from servers.terraform_states import TerraformStates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HCL = """
variable "release" {}
resource "terraform_data" "web" {
  input = var.release
}
"""
PIPELINE = ("TERRAFORM_PLAN", "WAIT_APPROVAL", "TERRAFORM_APPLY")
SOMEBODY = {
    "ID": "4cd0ae13",
    "Operation": "OperationTypeApply",
    "Who": "ann@laptop",
    "Version": "1.5.7",
    "Created": "2026-11-16T13:00:00.5Z",
}


def lock(states: TerraformStates) -> None:
    states.lock = SOMEBODY


def change_state(states: TerraformStates) -> None:
    document = json.loads(states.state)
    states.state = json.dumps({**document, "serial": document["serial"] + 1}).encode()


def refuse_credentials(states: TerraformStates) -> None:
    states.refusal = 401


@dataclass(frozen=True)
class Failure:
    """A mistake of a commit, or what happens before its approval; and what the stage says then."""

    stage: str
    cause: str
    remedy: str
    section: Mapping[str, Any] = field(default_factory=dict[str, Any])
    hcl: str = ""
    happens: Callable[[TerraformStates], None] | None = None
    rollback: StageStatus = StageStatus.SUCCESS


FAILURES = {
    "a version that is not installed and cannot be": Failure(
        "TERRAFORM_PLAN",
        "there is no terraform 9.9.9: the machine of piped has ",
        "put terraform into PATH, correct terraformVersion, or let piped reach the releases",
        section={"terraformVersion": "9.9.9"},
    ),
    "a version that the files refuse": Failure(
        "TERRAFORM_PLAN",
        "Unsupported Terraform Core version",
        "set terraformVersion of the application to a version that its files accept",
        hcl='terraform {\n  required_version = ">= 99"\n}\n',
    ),
    "a locked state": Failure(
        "TERRAFORM_APPLY",
        "the state is locked by somebody",
        "or run `terraform force-unlock 4cd0ae13` if it runs no more",
        happens=lock,
    ),
    "a stale plan": Failure(
        "TERRAFORM_APPLY",
        "the plan is stale: the state was changed after it was shown, and nothing was applied",
        "start a new deployment, which shows a new plan",
        happens=change_state,
    ),
    "expired credentials": Failure(
        "TERRAFORM_APPLY",
        "HTTP remote state endpoint requires auth",
        "the credentials are missing, expired or wrong: renew those that piped uses",
        happens=refuse_credentials,
        # Without access to the state nothing was applied, and nothing can be.
        rollback=StageStatus.FAILURE,
    ),
}


@dataclass(frozen=True)
class Shop:
    """The application, its state, and the installation that deploys it."""

    installation: OurInstallation
    generation: str
    states: TerraformStates

    def push(self, release: str, failure: Failure | None = None) -> str:
        """Commits a release; one that fails has a pipeline with an approval."""
        spec: dict[str, Any] = {}
        if failure:
            approval = {"with": {"anyone": True}} if self.generation == "second" else {}
            stages = [
                {"name": name, **(approval if name == "WAIT_APPROVAL" else {})} for name in PIPELINE
            ]
            spec = {"pipeline": {"stages": stages}, "planner": {"alwaysUsePipeline": True}}
        section = {"vars": [f"release={release}"], **(failure.section if failure else {})}
        hcl = self.states.backend + HCL + (failure.hcl if failure else "")
        config = application_config(self.generation, section, spec)
        files = {"shop/app.pipecd.yaml": config, "shop/main.tf": hcl}
        return self.installation.origin.commit(files)

    async def fail(self, release: str, failure: Failure, piped: Program) -> Deployment:
        """Deploys a release that fails."""
        installation = self.installation
        commit = self.push(release, failure)
        if failure.happens:
            waiting = await installation.eventually(
                lambda: installation.stage(commit, "WAIT_APPROVAL"), piped
            )
            failure.happens(self.states)
            await installation.cases.deployments.approve(*waiting, by=installation.admin)
        return await installation.eventually(lambda: installation.ended(commit), piped)


@pytest.fixture(params=GENERATIONS)
async def shop(
    request: pytest.FixtureRequest,
    start_plane: StartControlPlane,
    origin: Origin,
    terraform: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Shop]:
    monkeypatch.setenv("PATH", str(Path(terraform).parent), prepend=os.pathsep)
    # No release can be downloaded.
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{free_port()}")
    async with start_plane() as plane:
        installation = OurInstallation(plane, origin, tmp_path)
        with TerraformStates() as states:
            yield Shop(installation, request.param, states)


async def test_a_failure_has_its_cause_and_its_remedy_and_the_release_before_stays(
    shop: Shop, tmp_path: Path
) -> None:
    installation, states = shop.installation, shop.states
    first = shop.push("v1")
    agent = await installation.register_piped("dev", piped_entry(shop.generation, {}))
    await installation.add_application("shop", application_draft(shop.generation, agent.id))
    directories = [f"--{what}-dir={tmp_path / what}" for what in ("tools", "workspace")]
    flags = (f"--config-file={agent.config}", *directories, f"--admin-port={free_port()}")
    async with installation.running(OUR_PIPED, "piped", "--insecure=true", *flags) as piped:
        done = await installation.eventually(lambda: installation.ended(first), piped)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
        for number, (name, failure) in enumerate(FAILURES.items(), start=2):
            failed = await shop.fail(f"v{number}", failure, piped)
            states.lock, states.refusal = None, 0
            assert DeploymentStatus(failed.status) is DeploymentStatus.FAILURE, name
            stages = {stage.name: stage for stage in failed.stages}
            logs = await installation.logs(failed)
            assert StageStatus(stages[failure.stage].status) is StageStatus.FAILURE, (name, logs)
            for text in (logs[failure.stage], stages[failure.stage].status_reason):
                assert failure.cause in text, (name, logs)
                assert failure.remedy in text, (name, logs)
            rollback = next(stage for stage in failed.stages if "ROLLBACK" in stage.name)
            assert StageStatus(rollback.status) is failure.rollback, (name, logs)
            assert states.inputs == {"web": "v1"}, name
