# SPDX-License-Identifier: Apache-2.0
"""A piped is killed with -9 in the middle of each stage of Terraform; the next one continues."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.control_plane import StartControlPlane, stage_statuses
from servers.origin import Origin
from servers.our_installation import OurInstallation
from servers.programs import OUR_PIPED
from servers.server import free_port
from servers.terraform_states import TerraformStates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REMOVED = "The state is locked by an apply that was killed; its lock is removed"
# The program of a release waits as long as its file `hold` is there, and fails if `fail` is.
HCL = """
variable "release" {}
resource "terraform_data" "web" {
  input            = var.release
  triggers_replace = var.release
  provisioner "local-exec" {
    command = <<-EOT
      touch DIR/begun-${var.release}
      while [ -e DIR/hold-${var.release} ]; do sleep 0.05; done
      test ! -e DIR/fail-${var.release}
    EOT
  }
}
"""


@dataclass(frozen=True)
class Shop:
    """An application whose releases can be held and made fail."""

    installation: OurInstallation
    directory: Path
    states: TerraformStates
    generation: str

    @property
    def entry(self) -> str:
        """What the file of piped has about Terraform."""
        target = {"name": "here", "config": {"tool": "opentofu"}}
        if self.generation == "first":
            return f"  platformProviders: [{json.dumps({**target, 'type': 'TERRAFORM'})}]\n"
        return f"  plugins: [{json.dumps({'name': 'terraform', 'deployTargets': [target]})}]\n"

    def draft(self, piped_id: str) -> Application:
        draft = Application(name="shop", piped_id=piped_id)
        if self.generation == "first":
            draft.kind = common_pb2.ApplicationKind.ValueType(ApplicationKind.TERRAFORM)
            draft.platform_provider = "here"
        else:
            chosen = DeployTargets(deploy_targets=["here"])
            draft.deploy_targets_by_plugin["terraform"].CopyFrom(chosen)
        return draft

    def push(self, release: str, *stages: str) -> str:
        """Commits a release, with a pipeline of these stages."""
        section = {"vars": [f"release={release}"]}
        spec: dict[str, Any] = {"name": "shop", "planner": {"alwaysUsePipeline": True}}
        if stages:
            spec["pipeline"] = {"stages": [{"name": name} for name in stages]}
        if self.generation == "first":
            kind, spec["input"] = "TerraformApp", {**section, "autoRollback": True}
        else:
            kind, spec["plugins"] = "Application", {"terraform": section}
        config = {"apiVersion": "pipecd.dev/v1beta1", "kind": kind, "spec": spec}
        hcl = self.states.backend + HCL.replace("DIR", str(self.directory))
        files = {"shop/app.pipecd.yaml": json.dumps(config), "shop/main.tf": hcl}
        return self.installation.origin.commit(files)

    def begun(self, release: str) -> Callable[[], Awaitable[bool]]:
        async def ask() -> bool:
            return (self.directory / f"begun-{release}").exists()

        return ask

    async def reading(self) -> bool:
        return self.states.is_reading.is_set()


@pytest.fixture
async def shop(
    request: pytest.FixtureRequest,
    start_plane: StartControlPlane,
    origin: Origin,
    terraform_states: TerraformStates,
    tofu: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    for name in os.environ:
        if name.startswith("TF_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(Path(tofu).parent), prepend=os.pathsep)
    async with start_plane() as plane:
        installation = OurInstallation(plane, origin, tmp_path)
        yield Shop(installation, tmp_path, terraform_states, request.param)


@dataclass(frozen=True)
class Kill:
    """The stage in which piped is killed, and how the deployment ends."""

    stage: str
    stages: tuple[str, ...]
    status: str
    release: str
    ends: tuple[str, ...]


PIPELINE = ("TERRAFORM_PLAN", "TERRAFORM_APPLY")
KILLS = [
    Kill("sync", (), "SUCCESS", "v2", ("SUCCESS", "NOT_STARTED_YET")),
    Kill("plan", PIPELINE, "SUCCESS", "v2", ("SUCCESS", "SUCCESS", "NOT_STARTED_YET")),
    Kill("apply", PIPELINE, "SUCCESS", "v2", ("SUCCESS", "SUCCESS", "NOT_STARTED_YET")),
    Kill("rollback", PIPELINE, "FAILURE", "v1", ("SUCCESS", "FAILURE", "SUCCESS")),
]


@pytest.mark.parametrize("shop", ["first", "second"], indirect=True)
@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.stage)
async def test_a_killed_piped_is_continued(shop: Shop, kill: Kill) -> None:
    installation, states = shop.installation, shop.states
    first = shop.push("v1")
    agent = await installation.register_piped("dev", shop.entry)
    await installation.add_application("shop", shop.draft(agent.id))
    directories = [f"--{what}-dir={shop.directory / what}" for what in ("tools", "workspace")]
    flags = ("--insecure=true", f"--config-file={agent.config}", *directories)
    killed = await asyncio.create_subprocess_exec(
        OUR_PIPED,
        "piped",
        *flags,
        f"--admin-port={free_port()}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    held = shop.directory / ("hold-v1" if kill.stage == "rollback" else "hold-v2")
    try:
        done = await installation.eventually(lambda: installation.ended(first))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
        (shop.directory / "begun-v1").unlink()
        if kill.stage == "plan":
            states.hold_reads()
            is_reached = shop.reading
        else:
            held.touch()
            is_reached = shop.begun("v1" if kill.stage == "rollback" else "v2")
        if kill.stage == "rollback":
            (shop.directory / "fail-v2").touch()
        second = shop.push("v2", *kill.stages)
        await installation.eventually(is_reached)
    finally:
        killed.kill()
        await killed.wait()
    held.unlink(missing_ok=True)
    states.release_reads()
    async with installation.running(
        OUR_PIPED, "piped", *flags, f"--admin-port={free_port()}"
    ) as piped:
        done = await installation.eventually(lambda: installation.ended(second), piped)
        logs = await installation.logs(done)
    assert DeploymentStatus(done.status).name == kill.status, (done.status_reason, logs)
    assert tuple(each.split()[1] for each in stage_statuses(done)) == kill.ends, logs
    assert states.inputs == {"web": kill.release}
    assert states.lock is None
    assert any(REMOVED in log for log in logs.values()) is (kill.stage != "plan"), logs
