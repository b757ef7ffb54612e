# SPDX-License-Identifier: Apache-2.0
"""A piped is killed with -9 in the middle of each stage of Terraform; the next one continues.

Its apply runs on, and the next piped waits for it. If it is killed as well, as in a container, the
next piped removes its lock.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import StartControlPlane, stage_statuses
from servers.installation import Program
from servers.origin import Origin
from servers.our_installation import OurInstallation
from servers.programs import OUR_PIPED
from servers.terraform_application import (
    GENERATIONS,
    application_config,
    application_draft,
    piped_entry,
)
from servers.terraform_states import TerraformStates, state_inputs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

REMOVED = "The state is locked by an apply that was killed; its lock is removed"
WAITING = "before it was killed still runs"
# The program of a release waits as long as its file `hold` is there, and fails if `fail` is. Then it
# needs a file of its working copy.
HCL = """
variable "release" {}
resource "terraform_data" "web" {
  input            = var.release
  triggers_replace = var.release
  provisioner "local-exec" {
    command = <<-EOT
      touch DIR/begun-${var.release}
      while [ -e DIR/hold-${var.release} ]; do sleep 0.05; done
      grep -q release main.tf && echo ${var.release} >>DIR/ran
      test ! -e DIR/fail-${var.release}
    EOT
  }
}
"""


class LocalState:
    """A state in a file; the system removes the lock of a process that is killed."""

    lock = None

    def __init__(self, file: Path) -> None:
        self._file = file
        self.backend = f'terraform {{\n  backend "local" {{\n    path = "{file}"\n  }}\n}}\n'

    @property
    def inputs(self) -> dict[str, str]:
        return state_inputs(self._file.read_bytes())


@dataclass(frozen=True)
class Shop:
    """An application whose releases can be held and made fail."""

    installation: OurInstallation
    directory: Path
    state: TerraformStates | LocalState
    tool: str
    generation: str

    def push(self, release: str, *stages: str) -> str:
        """Commits a release, with a pipeline of these stages."""
        spec: dict[str, Any] = {"planner": {"alwaysUsePipeline": True}}
        if stages:
            spec["pipeline"] = {"stages": [{"name": name} for name in stages]}
        config = application_config(self.generation, {"vars": [f"release={release}"]}, spec)
        hcl = self.state.backend + HCL.replace("DIR", str(self.directory))
        files = {"shop/app.pipecd.yaml": config, "shop/main.tf": hcl}
        return self.installation.origin.commit(files)

    def begun(self, release: str) -> Callable[[], Awaitable[bool]]:
        async def ask() -> bool:
            return (self.directory / f"begun-{release}").exists()

        return ask

    def is_waiting(self, commit: str) -> Callable[[], Awaitable[bool]]:
        """Asks whether a stage has logged that it waits for the apply of the killed piped."""

        async def ask() -> bool:
            deployment = await self.installation.deployment(commit)
            assert deployment is not None
            cases, admin = self.installation.cases, self.installation.admin
            logs = await cases.logs.of_deployment(deployment.id, by=admin)
            return any(WAITING in block.log for log in logs.values() for block in log.blocks)

        return ask

    def held(self, kill: "Kill") -> Path:
        """The file that holds the program of the release that is applied when piped is killed."""
        return self.directory / ("hold-v1" if kill.stage == "rollback" else "hold-v2")

    def kill_apply(self) -> None:
        """Kills the apply that runs in a working copy of piped, with everything it started."""
        killed = 0
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_here = (process / "cwd").readlink().is_relative_to(self.directory)
                if is_here and b"apply" in (process / "cmdline").read_bytes().split(b"\0"):
                    os.killpg(int(process.name), signal.SIGKILL)
                    killed += 1
        assert killed == 1


@pytest.fixture
async def shop(
    request: pytest.FixtureRequest,
    start_plane: StartControlPlane,
    origin: Origin,
    terraform: str,
    tofu: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Shop]:
    tool, backend, generation = request.param
    for name in os.environ:
        if name.startswith("TF_"):
            monkeypatch.delenv(name)
    program = terraform if tool == "terraform" else tofu
    monkeypatch.setenv("PATH", str(Path(program).parent), prepend=os.pathsep)
    async with start_plane() as plane:
        installation = OurInstallation(plane, origin, tmp_path)
        with TerraformStates() as states:
            state = states if backend == "http" else LocalState(tmp_path / "state")
            yield Shop(installation, tmp_path, state, tool, generation)


@dataclass(frozen=True)
class Kill:
    """The stage in which piped is killed, and how the deployment ends."""

    stage: str
    stages: tuple[str, ...]
    status: str
    release: str
    ends: tuple[str, ...]
    ran: tuple[str, ...]
    """The releases whose program has run to its end."""


PIPELINE = ("TERRAFORM_PLAN", "TERRAFORM_APPLY")
DONE = ("SUCCESS", "SUCCESS", "NOT_STARTED_YET")
ROLLED_BACK = ("SUCCESS", "FAILURE", "SUCCESS")
KILLS = [
    Kill("sync", (), "SUCCESS", "v2", ("SUCCESS", "NOT_STARTED_YET"), ("v1", "v2")),
    Kill("apply", PIPELINE, "SUCCESS", "v2", DONE, ("v1", "v2")),
    Kill("rollback", PIPELINE, "FAILURE", "v1", ROLLED_BACK, ("v1", "v2", "v1")),
]
PLAN_KILL = Kill("plan", PIPELINE, "SUCCESS", "v2", DONE, ("v1", "v2"))
TOOLS = ("opentofu", "terraform")
kills = pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.stage)


async def killed_in(shop: Shop, kill: Kill) -> tuple[tuple[str, ...], str]:
    """Kills a piped in a stage; returns its flags and the commit of the deployment."""
    installation = shop.installation
    first = shop.push("v1")
    agent = await installation.register_piped(
        "dev", piped_entry(shop.generation, {"tool": shop.tool})
    )
    await installation.add_application("shop", application_draft(shop.generation, agent.id))
    directories = [f"--{what}-dir={shop.directory / what}" for what in ("tools", "workspace")]
    flags = ("--insecure=true", "--admin-port=0", f"--config-file={agent.config}", *directories)
    printed = shop.directory / "piped.txt"
    with printed.open("wb") as output:
        killed = await asyncio.create_subprocess_exec(
            OUR_PIPED,
            "piped",
            *flags,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
        )
    try:
        done = await installation.eventually(lambda: installation.ended(first))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
        (shop.directory / "begun-v1").unlink()
        if isinstance(shop.state, TerraformStates) and kill.stage == "plan":
            shop.state.hold_reads()
            is_reached = reading(shop.state)
        else:
            shop.held(kill).touch()
            is_reached = shop.begun("v1" if kill.stage == "rollback" else "v2")
        if kill.stage == "rollback":
            (shop.directory / "fail-v2").touch()
        second = shop.push("v2", *kill.stages)
        await installation.eventually(is_reached)
    finally:
        ended = f"piped ended by itself with {killed.returncode}:\n{printed.read_text()}"
        assert killed.returncode is None, ended
        killed.kill()
        await killed.wait()
    return flags, second


def reading(states: TerraformStates) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return states.is_reading.is_set()

    return ask


async def assert_is_completed(shop: Shop, kill: Kill, commit: str, piped: Program) -> str:
    """Waits for the end of the deployment; returns the logs of its stages."""
    installation = shop.installation
    done = await installation.eventually(lambda: installation.ended(commit), piped)
    logs = await installation.logs(done)
    assert DeploymentStatus(done.status).name == kill.status, (done.status_reason, logs)
    assert tuple(each.split()[1] for each in stage_statuses(done)) == kill.ends, logs
    assert shop.state.inputs == {"web": kill.release}
    assert shop.state.lock is None
    ran = await asyncio.to_thread((shop.directory / "ran").read_text)
    assert tuple(ran.split()) == kill.ran, logs
    return "\n".join(logs.values())


@pytest.mark.parametrize(
    "shop", [(tool, "http", each) for tool in TOOLS for each in GENERATIONS], indirect=True, ids=str
)
@kills
async def test_the_apply_of_a_killed_piped_is_waited_for(shop: Shop, kill: Kill) -> None:
    flags, commit = await killed_in(shop, kill)
    async with shop.installation.running(OUR_PIPED, "piped", *flags) as piped:
        await shop.installation.eventually(shop.is_waiting(commit), piped)
        shop.held(kill).unlink()
        log = await assert_is_completed(shop, kill, commit, piped)
    assert REMOVED not in log


@pytest.mark.parametrize(
    "shop", [(tool, "http", each) for tool in TOOLS for each in GENERATIONS], indirect=True, ids=str
)
async def test_a_killed_plan_is_repeated(shop: Shop) -> None:
    flags, commit = await killed_in(shop, PLAN_KILL)
    assert isinstance(shop.state, TerraformStates)
    shop.state.release_reads()
    async with shop.installation.running(OUR_PIPED, "piped", *flags) as piped:
        log = await assert_is_completed(shop, PLAN_KILL, commit, piped)
    assert WAITING not in log
    assert REMOVED not in log


# Terraform does not tell who holds a lock of the backend `http`, so it is not removed there.
@pytest.mark.parametrize(
    "shop",
    [
        *(("opentofu", "http", each) for each in GENERATIONS),
        *(("terraform", "local", each) for each in GENERATIONS),
    ],
    indirect=True,
    ids=str,
)
@kills
async def test_an_apply_that_is_killed_with_piped_is_repeated(shop: Shop, kill: Kill) -> None:
    flags, commit = await killed_in(shop, kill)
    shop.kill_apply()
    shop.held(kill).unlink()
    async with shop.installation.running(OUR_PIPED, "piped", *flags) as piped:
        log = await assert_is_completed(shop, kill, commit, piped)
    assert WAITING not in log
    assert (REMOVED in log) is isinstance(shop.state, TerraformStates), log
