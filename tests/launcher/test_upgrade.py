# SPDX-License-Identifier: Apache-2.0
"""Real pipeds replace each other: a new one takes over when it is ready, or the old one never stops."""

import asyncio
import hashlib
import json
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from faults.network import RpcProxy
from launcher.setup import LauncherSetup, status, until_ready
from pipecd.launcher.launch import Launcher
from pipecd.launcher.plan import LaunchHistory
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.control_plane import running
from servers.origin import Origin
from servers.polling import eventually
from servers.programs import OUR_LAUNCHER
from servers.server import free_port, is_running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

WITHIN = 60.0


def real(trace: Path, version: str, more: str = "") -> bytes:
    """This piped under the name of a version; it records its process id, then runs `more`."""
    record = f'case "$*" in *--help) ;; *) echo "{version} $$" >> {trace}\n{more};; esac\n'
    run = f'shift\nexec {sys.executable} -m pipecd piped "$@"\n'
    return f"#!/bin/sh\n{record}{run}# {version}\n".encode()


@dataclass
class Upgrades:
    """A launcher of real pipeds, and an application whose stage records that it runs."""

    setup: LauncherSetup
    origin: Origin
    admin_port: int = field(default_factory=free_port)

    @property
    def flags(self) -> list[str]:
        """Both pipeds have the same workspace and the same admin port."""
        home = self.setup.directory
        directories = [f"--{name}-dir={home / name}" for name in ("workspace", "tools", "plugins")]
        return [
            "--insecure", f"--admin-port={self.admin_port}", "--grace-period=20s", *directories,
        ]  # fmt: skip

    def launcher(self, start_timeout: float = 60) -> Launcher:
        return self.setup.launcher(
            *self.flags, trial=2, check_interval=0.2, start_timeout=start_timeout, grace_period=20
        )

    def offer(self, version: str, more: str = "") -> None:
        self.setup.offer(version, real(self.setup.trace, version, more))

    @property
    def processes(self) -> list[tuple[str, int]]:
        """The version and the process id of every piped that was started, in order."""
        return [(line.split()[0], int(line.split()[1])) for line in self.setup.lines]

    def alive(self) -> list[str]:
        """The versions of which a process runs."""
        return [version for version, pid in self.processes if is_running(pid)]

    @property
    def passed_config(self) -> str:
        """The configuration of the piped, if only one runs: that of the other one is removed."""
        (file,) = (self.setup.home / "piped" / "config").iterdir()
        return file.read_text()

    @property
    def runs(self) -> list[str]:
        """What the script of the application recorded."""
        file = self.setup.directory / "runs"
        return file.read_text().split() if file.exists() else []

    def push(self, *, waits: bool = False) -> str:
        """Changes the application, whose script records its begin and its end.

        A script that waits does so until `let_end`.
        """
        runs, wait = self.setup.directory / "runs", ""
        if waits:
            self._may_end.unlink(missing_ok=True)
            wait = f"while [ ! -e {self._may_end} ]; do sleep 0.1; done; "
        script = f"echo begin >> {runs}; {wait}echo end >> {runs}"
        stages = [
            {"name": "SCRIPT_RUN", "with": {"run": script}},
            {"name": "WAIT", "with": {"duration": "100ms"}},
        ]
        spec = {
            "name": "cart",
            "description": f"after {len(self.runs)} lines",
            "pipeline": {"stages": stages},
        }
        document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
        return self.origin.commit({"cart/app.pipecd.yaml": json.dumps(document)})

    def let_end(self) -> None:
        """Lets scripts end that wait."""
        self._may_end.touch()

    @property
    def _may_end(self) -> Path:
        return self.setup.directory / "may-end"

    async def is_draining(self) -> bool:
        """Whether the running piped waits for its stage before it hands over."""
        leases = self.setup.plane.cases.piped_leases
        return (await leases.get(self.setup.piped.id)).draining

    async def deployed(self, commit: str) -> Deployment:
        """Returns the deployment of a commit, which must succeed."""
        deployment = await self.setup.plane.wait_for_completed(commit, within=WITHIN)
        assert deployment.status == DeploymentStatus.SUCCESS, deployment.status_reason
        return deployment

    async def deploys(self) -> None:
        """Checks that a piped runs and deploys what is pushed."""
        await self.deployed(self.push())

    async def refused(self, launcher: Launcher, reason: str) -> None:
        """Waits until a start has failed for a reason, and checks that nothing has happened."""
        await eventually(lambda: reason in status(launcher)["error"], WITHIN)
        (first, *_) = self.processes
        assert self.alive() == [first[0]]
        assert is_running(first[1])
        assert launcher._metrics.starts.labels("failed")._value.get() == 1
        await self.deploys()


@pytest.fixture
async def upgrades(setup: LauncherSetup) -> Upgrades:
    origin = Origin.begin(setup.directory / "site")
    origin.commit({"README": ""})
    upgrades = Upgrades(setup, origin)
    upgrades.offer("v1")
    await setup.piped.add_repository("site", str(origin.path))
    await setup.piped.add_application("cart")
    return upgrades


@asynccontextmanager
async def upgrading(
    upgrades: Upgrades, to: str = "", start_timeout: float = 60
) -> AsyncGenerator[Launcher]:
    """Runs a launcher whose v1 has passed its trial, and then sets another desired version."""
    launcher = upgrades.launcher(start_timeout)
    async with running(launcher):
        await until_ready(launcher, "v1", WITHIN)
        if to:
            await upgrades.setup.set_desired_version(to)
        yield launcher


async def test_a_version_takes_over_while_a_stage_runs_which_runs_once(upgrades: Upgrades) -> None:
    upgrades.offer("v2")
    async with upgrading(upgrades) as launcher:
        commit = upgrades.push(waits=True)
        await eventually(lambda: upgrades.runs == ["begin"], WITHIN)
        await upgrades.setup.set_desired_version("v2")
        # The new one waits beside the old one, which does not stop while its stage runs.
        await eventually(upgrades.is_draining, WITHIN)
        assert upgrades.alive() == ["v1", "v2"]
        assert status(launcher)["starting"] == "v2"
        upgrades.let_end()
        await eventually(lambda: upgrades.alive() == ["v2"], WITHIN)
        assert upgrades.runs == ["begin", "end"]
        await upgrades.deployed(commit)
        assert upgrades.runs == ["begin", "end"]
        await upgrades.deploys()
        await until_ready(launcher, "v2", WITHIN)
    assert [version for version, _ in upgrades.processes] == ["v1", "v2"]


async def test_a_changed_configuration_takes_over_in_the_same_way(upgrades: Upgrades) -> None:
    async with upgrading(upgrades):
        commit = upgrades.push(waits=True)
        await eventually(lambda: upgrades.runs == ["begin"], WITHIN)
        upgrades.setup.write_config("  name: another\n")
        await eventually(upgrades.is_draining, WITHIN)
        assert upgrades.alive() == ["v1", "v1"]
        upgrades.let_end()
        await upgrades.deployed(commit)
        await eventually(lambda: upgrades.alive() == ["v1"], WITHIN)
        assert upgrades.runs == ["begin", "end"]
        assert "name: another" in upgrades.passed_config
        await upgrades.deploys()


async def test_a_version_that_crashes_at_its_start_leaves_the_running_one_in_place(
    upgrades: Upgrades,
) -> None:
    upgrades.offer("v2", "exit 7")
    async with upgrading(upgrades, to="v2") as launcher:
        await upgrades.refused(launcher, "piped v2 ended with exit code 7")
        # It is not tried again at every check.
        await asyncio.sleep(1)
        assert [version for version, _ in upgrades.processes] == ["v1", "v2"]


async def test_a_download_with_a_wrong_checksum_leaves_the_running_one_in_place(
    upgrades: Upgrades,
) -> None:
    upgrades.offer("v2")
    files = upgrades.setup.server.files
    files["piped_v2.sha256"] = f"{hashlib.sha256(b'another').hexdigest()}  piped_v2\n".encode()
    async with upgrading(upgrades, to="v2") as launcher:
        await eventually(lambda: "the checksum of" in status(launcher)["error"], WITHIN)
        assert upgrades.alive() == ["v1"]
        await upgrades.deploys()
        # It is fetched as soon as the right one is published.
        files["piped_v2.sha256"] = hashlib.sha256(files["piped_v2"]).hexdigest().encode()
        await until_ready(launcher, "v2", WITHIN)
    assert [version for version, _ in upgrades.processes] == ["v1", "v2"]


async def test_a_download_that_is_cut_leaves_the_running_one_in_place(upgrades: Upgrades) -> None:
    upgrades.offer("v2")
    upgrades.setup.server.cut.add("piped_v2")
    async with upgrading(upgrades) as launcher:
        await upgrades.setup.set_desired_version("v2")
        await eventually(lambda: "peer closed connection" in status(launcher)["error"], WITHIN)
        assert upgrades.alive() == ["v1"]
        await upgrades.deploys()
        upgrades.setup.server.cut.clear()
        await until_ready(launcher, "v2", WITHIN)
    assert [version for version, _ in upgrades.processes] == ["v1", "v2"]


async def test_a_failed_version_is_tried_again_after_a_while(
    upgrades: Upgrades, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LaunchHistory, "upgrade_at", lambda *_: 0.0)
    works = upgrades.setup.directory / "works"
    upgrades.offer("v2", f"[ -e {works} ] || exit 7")
    async with upgrading(upgrades, to="v2") as launcher:
        await eventually(lambda: "exit code 7" in status(launcher)["error"], WITHIN)
        works.touch()
        await until_ready(launcher, "v2", WITHIN)
        assert status(launcher)["error"] == ""


async def test_a_version_that_never_gets_ready_leaves_the_running_one_in_place(
    upgrades: Upgrades,
) -> None:
    upgrades.offer("v2", "exec sleep 100")
    async with upgrading(upgrades, to="v2", start_timeout=1) as launcher:
        await upgrades.refused(launcher, "piped v2 was not ready within 1s")


async def test_a_version_that_never_gets_ready_gives_way_to_another_one(upgrades: Upgrades) -> None:
    upgrades.offer("v2", "exec sleep 100")
    upgrades.offer("v3")
    async with upgrading(upgrades, to="v2") as launcher:
        await eventually(lambda: upgrades.alive() == ["v1", "v2"], WITHIN)
        await upgrades.setup.set_desired_version("v3")
        await until_ready(launcher, "v3", WITHIN)
        assert upgrades.alive() == ["v3"]


async def test_a_wrong_configuration_leaves_the_running_piped_in_place(upgrades: Upgrades) -> None:
    async with upgrading(upgrades) as launcher:
        upgrades.setup.write_config("  syncInterval: soon\n")
        await upgrades.refused(launcher, "syncInterval")
        assert "soon" not in upgrades.passed_config
        upgrades.setup.write_config("  syncInterval: 30s\n")
        await eventually(lambda: len(upgrades.processes) == 3, WITHIN)
        await eventually(lambda: len(upgrades.alive()) == 1, WITHIN)
        await eventually(lambda: not status(launcher)["starting"], WITHIN)
        assert status(launcher)["error"] == ""
        assert is_running(upgrades.processes[-1][1])


async def test_a_configuration_that_loses_a_deploy_target_is_refused(upgrades: Upgrades) -> None:
    plugins = "  plugins: [{name: ecs, deployTargets: [{name: prod, config: {region: %s}}]}]\n"
    upgrades.setup.write_config(plugins % "tokyo-1")
    async with upgrading(upgrades) as launcher:
        upgrades.setup.write_config(plugins % "''")
        await upgrades.refused(launcher, "cannot use what the running one uses: ecs/prod:")


async def test_a_version_that_fails_after_it_took_over_is_replaced_by_the_last_good_one(
    upgrades: Upgrades,
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        upgrades.offer("v2", f'set -- "$@" --admin-host=127.0.0.1 --admin-port={taken}')
        async with upgrading(upgrades, to="v2") as launcher:
            await eventually(
                lambda: "cannot listen on admin port" in status(launcher)["error"], WITHIN
            )
            await until_ready(launcher, "v1", WITHIN)
            await upgrades.deploys()
    assert [version for version, _ in upgrades.processes] == ["v1", "v2", "v1"]


GREETER = f"""#!{sys.executable}
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult, serve

class Greet(StagePlugin):
    stages = (Stage("GREET"),)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded("Hello")

serve(Greet)
"""


async def test_a_plugin_that_does_not_start_any_more_brings_back_the_last_good_configuration(
    upgrades: Upgrades,
) -> None:
    """Only its start shows that: the new piped does not start plugins before it has taken over."""
    for name, content in {"good": GREETER, "bad": "#!/bin/sh\nexit 3\n"}.items():
        program = upgrades.setup.directory / name
        program.write_text(content)
        program.chmod(0o755)
    plugins = f"  plugins: [{{name: greeter, url: 'file://{upgrades.setup.directory}/%s'}}]\n"
    upgrades.setup.write_config(plugins % "good")
    async with upgrading(upgrades) as launcher:
        upgrades.setup.write_config(plugins % "bad")
        lost = "cannot use what the running one uses: greeter:"
        await eventually(lambda: lost in status(launcher)["error"], WITHIN)
        await eventually(lambda: len(upgrades.processes) == 3, WITHIN)
        await until_ready(launcher, "v1", WITHIN)
        assert "/good" in upgrades.passed_config
        await upgrades.deploys()


async def test_without_a_lease_the_running_piped_stops_when_the_new_one_is_ready(
    upgrades: Upgrades,
) -> None:
    """As with a control plane of upstream."""
    setup = upgrades.setup
    proxy = RpcProxy(int(setup.plane.address.rpartition(":")[2]))
    proxy.unimplemented |= {"AcquirePipedLease", "ReleasePipedLease"}
    async with proxy.serve():
        setup.write_config(address=f"127.0.0.1:{proxy.port}")
        upgrades.offer("v2", "exit 7")
        upgrades.offer("v3")
        async with upgrading(upgrades, to="v2") as launcher:
            await upgrades.refused(launcher, "piped v2 ended with exit code 7")
            await setup.set_desired_version("v3")
            await until_ready(launcher, "v3", WITHIN)
            assert upgrades.alive() == ["v3"]
            await upgrades.deploys()


async def test_another_piped_id_is_taken_over_by_stopping_the_running_one(
    upgrades: Upgrades,
) -> None:
    setup = upgrades.setup
    async with upgrading(upgrades) as launcher:
        setup.piped = await setup.plane.register_piped("other")
        setup.key_file.write_text(setup.piped.key)
        setup.write_config()
        await eventually(lambda: len(upgrades.processes) == 2, WITHIN)
        await eventually(lambda: not status(launcher)["starting"], WITHIN)
        assert status(launcher)["error"] == ""
        assert upgrades.alive() == ["v1"]
        assert is_running(upgrades.processes[-1][1])


@asynccontextmanager
async def launched(upgrades: Upgrades) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Runs the program `launcher` with versions that are files."""
    setup = upgrades.setup
    for name, content in setup.server.files.items():
        (setup.directory / name).write_bytes(content)
        (setup.directory / name).chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        OUR_LAUNCHER, "launcher", f"--config-file={setup.config}", "--default-version=v1",
        f"--piped-release=file://{setup.directory}/piped_{{version}}", f"--home-dir={setup.home}",
        *upgrades.flags,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_a_launcher_that_ends_during_a_takeover_is_started_again(
    upgrades: Upgrades, how: signal.Signals
) -> None:
    """Both pipeds end with it, and the next launcher continues with the desired version."""
    upgrades.offer("v2")
    async with launched(upgrades) as process:
        commit = upgrades.push(waits=True)
        await eventually(lambda: upgrades.runs == ["begin"], WITHIN)
        await upgrades.setup.set_desired_version("v2")
        await eventually(upgrades.is_draining, WITHIN)
        assert upgrades.alive() == ["v1", "v2"]
        process.send_signal(how)
        assert await process.wait() == (0 if how is signal.SIGTERM else -how)
        await eventually(lambda: upgrades.alive() == [], WITHIN)
    upgrades.let_end()
    async with launched(upgrades):
        await upgrades.deployed(commit)
        assert upgrades.alive() == ["v2"]
    await eventually(lambda: upgrades.alive() == [], WITHIN)
