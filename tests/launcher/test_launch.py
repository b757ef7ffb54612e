# SPDX-License-Identifier: Apache-2.0
"""The launcher with a real control plane, a server of releases, and executables that run or fail."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from faults.network import TcpProxy
from launcher.setup import NO_HELP, LauncherSetup, broken, status, until_ready, working
from pipecd.launcher import desired_version
from pipecd.launcher.desired_version import DesiredVersion, DesiredVersionWatcher
from pipecd.launcher.identity import Identity, identity_of
from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError, Unavailable, Unsupported
from pipecd.observe.version import build_version
from pipecd.proto.model.piped_pb2 import Piped
from servers.control_plane import running
from servers.polling import eventually


async def test_the_desired_version_is_fetched_and_replaces_the_running_one(
    setup: LauncherSetup,
) -> None:
    setup.offer("v2", working(setup.trace, "v2"))
    launcher = setup.launcher("--insecure", "--tools-dir", "/t")
    async with running(launcher):
        await until_ready(launcher, "v1")
        await setup.set_desired_version("v2")
        await until_ready(launcher, "v2")
        # Older versions are removed.
        await eventually(lambda: [p.name for p in (setup.home / "versions").iterdir()] == ["v2"])
    config = setup.passed_config
    flags = f"--config-file={config} --launcher-version={build_version()} --insecure --tools-dir /t"
    assert setup.lines == [f"v1 run {flags}", "v1 ended", f"v2 run {flags}", "v2 ended"]
    assert not config.exists()


async def test_a_version_that_fails_its_trial_is_rolled_back_to_the_last_good_one(
    setup: LauncherSetup,
) -> None:
    setup.offer("v2", broken(setup.trace, "v2"))
    setup.offer("v3", working(setup.trace, "v3"))
    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
        await setup.set_desired_version("v2")
        await eventually(lambda: setup.started == ["v1", "v2", "v1"])
        await until_ready(launcher, "v1")
        assert status(launcher)["desired"] == "v2"
        await setup.set_desired_version("v3")
        await until_ready(launcher, "v3")
    assert setup.started == ["v1", "v2", "v1", "v3"]


async def test_a_version_that_cannot_be_fetched_does_not_stop_the_running_one(
    setup: LauncherSetup,
) -> None:
    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
        await setup.set_desired_version("v9")
        await eventually(lambda: "answered 404" in status(launcher)["error"])
        await setup.set_desired_version("../../v9")
        await eventually(lambda: "cannot be a version" in status(launcher)["error"])
    assert setup.started == ["v1"]


async def test_an_executable_with_a_wrong_checksum_is_not_run(
    setup: LauncherSetup,
) -> None:
    content = working(setup.trace, "v2")
    setup.offer("v2", content)
    setup.offer("v2.sha256", b"0" * 64 + b"  piped_v2\n")
    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
        await setup.set_desired_version("v2")
        await eventually(lambda: "checksum" in status(launcher)["error"])
        setup.offer("v2.sha256", hashlib.sha256(content).hexdigest().encode())
        await until_ready(launcher, "v2")


async def test_a_changed_configuration_restarts_piped(setup: LauncherSetup) -> None:
    setup.write_config("  name: before\n")
    launcher = setup.launcher()
    async with running(launcher):
        written = setup.passed_config
        await until_ready(launcher, "v1")
        assert "name: before" in written.read_text()
        assert written.stat().st_mode & 0o777 == 0o600
        setup.config.write_text("kind: [broken")
        await eventually(lambda: status(launcher)["error"])
        setup.write_config("  name: after\n")
        await eventually(lambda: setup.started == ["v1", "v1"])
        assert "name: after" in written.read_text()


async def test_a_configuration_with_which_piped_fails_is_rolled_back(setup: LauncherSetup) -> None:
    picky = f'#!/bin/sh\n{NO_HELP}if grep -q nonsense "${{2#*=}}"; then exit 1; fi\n'
    setup.offer("v1", picky.encode() + working(setup.trace, "v1"))
    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
        setup.write_config("  name: nonsense\n")
        await eventually(lambda: setup.started == ["v1", "v1"])
        await until_ready(launcher, "v1")
        assert "nonsense" not in setup.passed_config.read_text()


async def test_a_piped_that_ends_is_restarted(setup: LauncherSetup) -> None:
    once = f"#!/bin/sh\n{NO_HELP}if [ $(grep -c . {setup.trace}) -gt 1 ]; then sleep 1; fi\n"
    setup.offer("v1", once.encode() + f"echo v1 >> {setup.trace}\nexit 0\n".encode())
    setup.trace.touch()
    async with running(setup.launcher(trial=0)):
        await eventually(lambda: len(setup.started) > 1)


async def test_a_v0_configuration_is_run_with_the_command_piped(setup: LauncherSetup) -> None:
    setup.write_config("  platformProviders: []\n")
    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
    assert setup.lines[0].startswith("v1 piped --config-file=")


async def test_the_last_good_version_survives_a_restart_of_the_launcher(
    setup: LauncherSetup,
) -> None:
    setup.offer("v2", broken(setup.trace, "v2"))
    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
    await setup.set_desired_version("v2")
    launcher = setup.launcher()
    async with running(launcher):
        await eventually(lambda: setup.started == ["v1", "v2", "v1"])


async def test_an_unavailable_control_plane_ends_the_launcher_only_at_its_start(
    setup: LauncherSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object) -> str:
        raise Unavailable("connection refused")

    launcher = setup.launcher()
    async with running(launcher):
        await until_ready(launcher, "v1")
        launcher._read_version = unavailable
        await eventually(lambda: status(launcher)["error"])
        assert status(launcher)["running"] == "v1"
    starting = setup.launcher()
    starting._read_version = unavailable
    with pytest.raises(Unavailable):
        await starting.run()


async def test_a_new_desired_version_is_noticed_before_the_next_check(setup: LauncherSetup) -> None:
    setup.offer("v2", working(setup.trace, "v2"))
    desired = DesiredVersion(insecure=True, default="v1")
    launcher = setup.launcher(check_interval=1000.0)
    watcher = DesiredVersionWatcher(
        launcher.identity, desired.changes, launcher.check_soon, backoff=Backoff(0.01, 0.01)
    )
    async with running(watcher, launcher):
        await until_ready(launcher, "v1")
        await setup.set_desired_version("v2")
        await until_ready(launcher, "v2")


async def test_a_stream_that_falls_silent_fails_and_is_opened_again(
    setup: LauncherSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desired_version, "HEARTBEAT_SECONDS", 1.0)
    identity = identity_of(await setup.load_config())
    desired = DesiredVersion(insecure=True, default="v1")
    async with TcpProxy([int(identity.address.rpartition(":")[2])]).serve() as proxy:
        behind = replace(identity, address=f"127.0.0.1:{proxy.port}")
        changes = desired.changes(behind)
        await anext(changes)
        proxy.silence()
        with pytest.raises(Unavailable, match="the wake-up stream was silent"):
            async with asyncio.timeout(5):
                await anext(changes)
        async with asyncio.timeout(5), aclosing(desired.changes(behind)) as again:
            await anext(again)


async def test_a_control_plane_without_a_stream_is_not_called_repeatedly(
    setup: LauncherSetup,
) -> None:
    calls: list[Identity] = []

    async def changes(piped: Identity) -> AsyncGenerator[None]:
        calls.append(piped)
        raise Unsupported("no such method")
        yield

    launcher = setup.launcher()
    watcher = DesiredVersionWatcher(
        launcher.identity, changes, launcher.check_soon, backoff=Backoff(0.01, 0.01)
    )
    async with running(watcher, launcher):
        await until_ready(launcher, "v1")
    assert [piped.piped for piped in calls] == [setup.piped.id]


async def test_a_rejected_piped_key_ends_the_launcher(setup: LauncherSetup) -> None:
    setup.key_file.write_text("wrong")
    with pytest.raises(PipecdError, match="does not accept the key of this piped"):
        await setup.launcher().run()


@pytest.mark.slow
async def test_a_real_piped_is_upgraded_and_reports_it(setup: LauncherSetup) -> None:
    """The versions are this piped under other names; the control plane sees each go online."""
    python = f'#!/bin/sh\nshift\nexec {sys.executable} -m pipecd piped "$@"\n'
    for version in ("v1", "v2"):
        setup.offer(version, python.encode() + f"# {version}\n".encode())
    setup.offer("v3", broken(setup.trace, "v3"))
    work = setup.home / "work"
    flags = ["--insecure", "--admin-port=0", "--plugin-service-port=0", f"--workspace-dir={work}"]
    pipeds = setup.plane.cases.pipeds

    async def started_at() -> int:
        piped = await pipeds.get(setup.piped.id, by=setup.plane.admin)
        return piped.started_at if piped.status == Piped.ONLINE else 0

    async def online_after(time: int) -> int:
        async with asyncio.timeout(40):
            while (current := await started_at()) <= time:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return current

    launcher = setup.launcher(*flags, trial=1)
    async with running(launcher):
        first = await online_after(0)
        await setup.set_desired_version("v2")
        await until_ready(launcher, "v2", 40)
        second = await online_after(first)
        await setup.set_desired_version("v3")
        await eventually(lambda: setup.started == ["v3"])
        third = await online_after(second)
        assert status(launcher)["running"] == "v2"
        await until_ready(launcher, "v2", 40)
        await pipeds.restart(setup.piped.id, by=setup.plane.admin)
        await online_after(third)
