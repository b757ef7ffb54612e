# SPDX-License-Identifier: Apache-2.0
"""Live state, drift and plan preview of Terraform through whole programs."""

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import ApplicationSyncState
from servers.control_plane import StartControlPlane
from servers.environment import matching_sync_state
from servers.installation import Program
from servers.origin import Origin
from servers.our_installation import OurInstallation
from servers.programs import OUR_PIPECTL, OUR_PIPED
from servers.server import free_port
from servers.terraform_application import (
    GENERATIONS,
    application_config,
    application_draft,
    piped_entry,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# A resource that is changed, one that is replaced, and one that has a secret.
HCL = """
variable "release" {}
variable "key" {
  sensitive = true
}
resource "terraform_data" "web" {
  input = var.release
}
resource "terraform_data" "cache" {
  triggers_replace = var.release
}
resource "terraform_data" "login" {
  input = var.key
}
"""
MORE = 'resource "terraform_data" "queue" {\n  input = "q"\n}\n'
SECRET = "correct-horse-battery"


@dataclass(frozen=True)
class Shop:
    """The application, its state, and one piped that deploys it."""

    installation: OurInstallation
    generation: str
    state: Path
    target: dict[str, Any]

    def files(self, release: str, hcl: str = HCL, **spec: Any) -> dict[str, str]:
        section = {"vars": [f"release={release}", f"key={SECRET}"]}
        backend = f'terraform {{\n  backend "local" {{\n    path = "{self.state}"\n  }}\n}}\n'
        return {
            "shop/app.pipecd.yaml": application_config(self.generation, section, spec),
            "shop/main.tf": backend + hcl,
        }

    @asynccontextmanager
    async def deployed(self) -> AsyncIterator[tuple[Program, str]]:
        """Runs a piped that has deployed the first release; yields it and the application."""
        installation = self.installation
        first = installation.origin.commit(self.files("v1"))
        agent = await installation.register_piped("dev", piped_entry(self.generation, self.target))
        application = await installation.add_application(
            "shop", application_draft(self.generation, agent.id)
        )
        directories = [
            f"--{what}-dir={self.state.parent / what}" for what in ("tools", "workspace")
        ]
        flags = (f"--config-file={agent.config}", *directories, f"--admin-port={free_port()}")
        async with installation.running(OUR_PIPED, "piped", "--insecure=true", *flags) as piped:
            done = await installation.eventually(lambda: installation.ended(first), piped)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            yield piped, application

    def sync_state(
        self, application: str, status: SyncStatus
    ) -> Callable[[], Awaitable[ApplicationSyncState | None]]:
        return lambda: matching_sync_state(self.installation.plane, application, status)

    async def preview(self, files: dict[str, str]) -> tuple[str, dict[str, Any]]:
        """Previews a branch; returns what `pipectl` prints and writes."""
        origin, out = self.installation.origin, self.state.parent / "preview.json"
        branch, head = origin.branch(files)
        place = ("--repo-remote-url", origin.remote, "--base-branch", "main")
        heads = ("--head-branch", branch, "--head-commit", head, "--out", str(out))
        flags = self.installation.pipectl_flags()
        done = await self.installation.run(OUR_PIPECTL, "plan-preview", *place, *heads, *flags)
        assert done.code == 0, done.err
        return done.out, json.loads(out.read_text())


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
    async with start_plane() as plane:
        installation = OurInstallation(plane, origin, tmp_path)
        yield Shop(installation, request.param, tmp_path / "state", {})


async def test_a_change_in_git_that_is_not_deployed_is_a_drift(shop: Shop) -> None:
    installation = shop.installation
    async with shop.deployed() as (piped, application):
        await installation.eventually(shop.sync_state(application, SyncStatus.SYNCED), piped)
        live = await installation.plane.live_state(application)
        trigger = {"onCommit": {"disabled": True}}
        commit = installation.origin.commit(shop.files("v2", HCL + MORE, trigger=trigger))
        state = await installation.eventually(
            shop.sync_state(application, SyncStatus.OUT_OF_SYNC), piped
        )
        assert len(await installation.deployments()) == 1
    assert state.short_reason == (
        "There are 3 manifests not synced (0 imports, 2 adds, 1 deletes, 1 changes)"
    )
    assert f"in Git at commit {commit[:7]}" in state.reason
    for line in ("# terraform_data.queue will be created", "# terraform_data.cache must be repl"):
        assert line in state.reason
    assert '~       input  = "v1" -> "v2"' in state.reason
    assert SECRET not in state.reason
    assert live is not None
    names = {each.name for each in live.application_live_state.resources}
    assert names == {f"terraform_data.{each}" for each in ("web", "cache", "login")}
    assert SECRET not in str(live)


async def test_a_branch_is_previewed_with_counts_and_resources(shop: Shop) -> None:
    async with shop.deployed():
        text, written = await shop.preview(shop.files("v2", HCL + MORE))
        assert len(await shop.installation.deployments()) == 1
    assert "Here are plan-preview for 1 application:" in text
    assert "0 to import, 2 to add, 1 to change, 1 to destroy" in text
    for line in (
        "# create terraform_data.queue",
        "# change terraform_data.web",
        "# replace terraform_data.cache",
        "Plan: 2 to add, 1 to change, 1 to destroy.",
    ):
        assert line in text, text
    assert SECRET not in text
    assert SECRET not in json.dumps(written)
    [previewed] = written["Applications"]
    assert previewed["ApplicationName"] == "shop"


@pytest.mark.parametrize("shop", GENERATIONS, indirect=True)
async def test_the_deploy_target_switches_previews_and_drift_off(shop: Shop) -> None:
    shop.target.update({"planPreviewEnabled": False, "driftDetectionEnabled": False})
    installation = shop.installation
    async with shop.deployed() as (piped, application):
        text, _ = await shop.preview(shop.files("v2", HCL + MORE))

        async def with_live_state() -> Any:
            return await installation.plane.live_state(application)

        await installation.eventually(with_live_state, piped)
        found = await installation.plane.application(application)
    assert "Plan preview is disabled for deploy target here" in text
    assert "terraform_data.queue" not in text
    assert SyncStatus(found.sync_state.status) is SyncStatus.UNKNOWN
    assert found.sync_state.short_reason == "Drift detection is disabled for deploy target here"
