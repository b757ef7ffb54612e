# SPDX-License-Identifier: Apache-2.0
"""A launcher with a real control plane, a server with releases, and programs that live or do not."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pipecd.commandline.configsource import from_file
from pipecd.launcher.desired_version import DesiredVersion, DesiredVersionWatcher
from pipecd.launcher.identity import Identity
from pipecd.launcher.launch import Launcher, LaunchSettings
from pipecd.launcher.plan import LaunchHistory
from pipecd.launcher.release import open_releases
from pipecd.model.errors import PipecdError, Unavailable, Unsupported
from pipecd.observe.version import build_version
from pipecd.proto.model.piped_pb2 import Piped
from servers.control_plane import StartControlPlane
from servers.registry import OciRegistry

CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: demo
  pipedID: {id}
  pipedKeyFile: {key}
  apiAddress: {address}
  aFieldOfTomorrow: true
{more}"""


def living(trace: Path, name: str) -> bytes:
    """A program that writes down how it was started and runs until it is told to end."""
    return (
        f'#!/bin/sh\necho "{name} $*" >> {trace}\n'
        f'trap "echo {name} ended >> {trace}; exit 0" TERM\nwhile :; do sleep 0.05; done\n'
    ).encode()


def broken(trace: Path, name: str) -> bytes:
    return f'#!/bin/sh\necho "{name} broke" >> {trace}\nexit 7\n'.encode()


@dataclass
class Scene:
    """A piped that is registered, its configuration, and the releases that are offered."""

    plane: Any
    piped_id: str
    config: Path
    trace: Path
    home: Path
    server: OciRegistry

    @property
    def lines(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    @property
    def begun(self) -> list[str]:
        """The first words of those that were started, in order."""
        return [line.split()[0] for line in self.lines if not line.endswith(" ended")]

    def offer(self, version: str, content: bytes) -> None:
        self.server.files[f"piped_{version}"] = content

    async def desire(self, version: str) -> None:
        await self.plane.running.cases.pipeds.set_desired_version(
            version, [self.piped_id], by=self.plane.admin
        )

    def write(self, more: str = "") -> None:
        plane = self.plane
        self.config.write_text(
            CONFIG.format(
                id=self.piped_id, key=self.config.with_name("key"), address=plane.address, more=more
            )
        )

    async def load(self) -> bytes:
        return from_file(str(self.config))()

    def launcher(self, *, trial: float = 0.3, every: float = 0.05, **settings: Any) -> Launcher:
        return Launcher(
            self.load,
            DesiredVersion(insecure=True, default="v1").version,
            open_releases(f"{self.server.address}/files/piped_{{version}}", self.home),
            LaunchSettings(
                home=self.home, grace_period=5, trial=trial, check_interval=every, **settings
            ),
        )


Part = TypeVar("Part", Launcher, DesiredVersionWatcher)


@asynccontextmanager
async def running(launcher: Part) -> AsyncGenerator[Part]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(launcher.run())
        yield launcher
        task.cancel()


@pytest.fixture
async def scene(
    start_plane: StartControlPlane,
    tls_registry: OciRegistry,
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[Scene]:
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    monkeypatch.setattr(LaunchHistory, "pause_before", lambda *_: 0.01)
    async with start_plane() as plane:
        made = await plane.running.cases.pipeds.register("dev", "", by=plane.admin)
        (tmp_path / "key").write_text(made.key)
        scene = Scene(
            plane,
            made.id,
            tmp_path / "piped.yaml",
            tmp_path / "trace",
            tmp_path / "home",
            tls_registry,
        )
        scene.write()
        scene.offer("v1", living(scene.trace, "v1"))
        yield scene


async def until(ask: Callable[[], Any], at_most: float = 15) -> None:
    async with asyncio.timeout(at_most):
        while not ask():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def status(launcher: Launcher) -> dict[str, Any]:
    return json.loads(launcher.status())


def has_come_up(launcher: Launcher, version: str) -> Callable[[], bool]:
    def ask() -> bool:
        told = status(launcher)
        return told["running"] == version and told["hasComeUp"]

    return ask


async def test_the_desired_version_is_fetched_and_takes_over(scene: Scene) -> None:
    scene.offer("v2", living(scene.trace, "v2"))
    async with running(scene.launcher(arguments=["--insecure", "--tools-dir", "/t"])) as launcher:
        await until(has_come_up(launcher, "v1"))
        await scene.desire("v2")
        await until(has_come_up(launcher, "v2"))
        # What came before is of no use any more.
        await until(lambda: [p.name for p in (scene.home / "versions").iterdir()] == ["v2"])
    config = scene.home / "piped" / "config" / "piped-config.yaml"
    flags = f"--config-file={config} --launcher-version={build_version()} --insecure --tools-dir /t"
    assert scene.lines == [f"v1 run {flags}", "v1 ended", f"v2 run {flags}", "v2 ended"]
    assert not config.exists()


async def test_a_version_that_does_not_come_up_makes_room_for_the_last_good_one(
    scene: Scene,
) -> None:
    scene.offer("v2", broken(scene.trace, "v2"))
    scene.offer("v3", living(scene.trace, "v3"))
    async with running(scene.launcher()) as launcher:
        await until(has_come_up(launcher, "v1"))
        await scene.desire("v2")
        await until(lambda: scene.begun == ["v1", "v2", "v2", "v2", "v1"])
        await until(has_come_up(launcher, "v1"))
        assert status(launcher)["wanted"] == "v2"
        await scene.desire("v3")
        await until(has_come_up(launcher, "v3"))
    assert scene.begun == ["v1", "v2", "v2", "v2", "v1", "v3"]


async def test_a_version_that_cannot_be_fetched_stops_nothing(scene: Scene) -> None:
    async with running(scene.launcher()) as launcher:
        await until(has_come_up(launcher, "v1"))
        await scene.desire("v9")
        await until(lambda: "answered 404" in status(launcher)["trouble"])
        await scene.desire("../../v9")
        await until(lambda: "cannot be a version" in status(launcher)["trouble"])
    assert scene.begun == ["v1"]


async def test_a_file_with_another_checksum_than_the_published_one_is_not_run(
    scene: Scene,
) -> None:
    content = living(scene.trace, "v2")
    scene.offer("v2", content)
    scene.offer("v2.sha256", b"0" * 64 + b"  piped_v2\n")
    async with running(scene.launcher()) as launcher:
        await until(has_come_up(launcher, "v1"))
        await scene.desire("v2")
        await until(lambda: "checksum" in status(launcher)["trouble"])
        scene.offer("v2.sha256", hashlib.sha256(content).hexdigest().encode())
        await until(has_come_up(launcher, "v2"))


async def test_the_configuration_is_kept_in_step(scene: Scene) -> None:
    scene.write("  name: before\n")
    async with running(scene.launcher()) as launcher:
        written = scene.home / "piped" / "config" / "piped-config.yaml"
        await until(has_come_up(launcher, "v1"))
        assert "name: before" in written.read_text()
        assert written.stat().st_mode & 0o777 == 0o600
        scene.config.write_text("kind: [broken")
        await until(lambda: status(launcher)["trouble"])
        scene.write("  name: after\n")
        await until(lambda: scene.begun == ["v1", "v1"])
        assert "name: after" in written.read_text()


async def test_a_configuration_that_no_piped_lives_with_is_taken_back(scene: Scene) -> None:
    picky = '#!/bin/sh\nif grep -q nonsense "${2#*=}"; then exit 1; fi\n'
    scene.offer("v1", picky.encode() + living(scene.trace, "v1"))
    async with running(scene.launcher()) as launcher:
        await until(has_come_up(launcher, "v1"))
        scene.write("  name: nonsense\n")
        await until(lambda: scene.begun == ["v1", "v1"])
        await until(has_come_up(launcher, "v1"))
        written = scene.home / "piped" / "config" / "piped-config.yaml"
        assert "nonsense" not in written.read_text()


async def test_a_piped_that_ends_is_started_again(scene: Scene) -> None:
    once = f"#!/bin/sh\nif [ $(grep -c . {scene.trace}) -gt 1 ]; then sleep 1; fi\n"
    scene.offer("v1", once.encode() + f"echo v1 >> {scene.trace}\nexit 0\n".encode())
    scene.trace.touch()
    async with running(scene.launcher(trial=0)):
        await until(lambda: len(scene.begun) > 1)


async def test_a_piped_of_the_first_generation_is_called_by_its_word(scene: Scene) -> None:
    scene.write("  platformProviders: []\n")
    async with running(scene.launcher()) as launcher:
        await until(has_come_up(launcher, "v1"))
    assert scene.lines[0].startswith("v1 piped --config-file=")


async def test_the_last_good_version_is_known_to_the_next_launcher(scene: Scene) -> None:
    scene.offer("v2", broken(scene.trace, "v2"))
    async with running(scene.launcher()) as launcher:
        await until(has_come_up(launcher, "v1"))
    await scene.desire("v2")
    async with running(scene.launcher()) as launcher:
        await until(lambda: scene.begun == ["v1", "v2", "v2", "v2", "v1"])


async def test_a_control_plane_that_is_away_ends_only_a_launcher_that_begins(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> str:
        raise Unavailable("nobody answers")

    launcher = scene.launcher()
    async with running(launcher):
        await until(has_come_up(launcher, "v1"))
        launcher._version_of = away
        await until(lambda: status(launcher)["trouble"])
        assert status(launcher)["running"] == "v1"
    beginning = scene.launcher()
    beginning._version_of = away
    with pytest.raises(Unavailable):
        await beginning.run()


async def test_a_new_wish_is_heard_of_without_waiting_for_the_next_check(scene: Scene) -> None:
    scene.offer("v2", living(scene.trace, "v2"))
    desired = DesiredVersion(insecure=True, default="v1")
    launcher = scene.launcher(every=1000.0)
    listener = DesiredVersionWatcher(
        launcher.identity, desired.changes, launcher.check_soon, pause=0.01
    )
    async with running(listener), running(launcher):
        await until(has_come_up(launcher, "v1"))
        await scene.desire("v2")
        await until(has_come_up(launcher, "v2"))


async def test_a_control_plane_without_a_stream_is_not_asked_again_and_again(scene: Scene) -> None:
    asked: list[Identity] = []

    async def changes(piped: Identity) -> AsyncGenerator[None]:
        asked.append(piped)
        raise Unsupported("no such method")
        yield

    launcher = scene.launcher()
    listener = DesiredVersionWatcher(launcher.identity, changes, launcher.check_soon, pause=0.01)
    async with running(listener), running(launcher):
        await until(has_come_up(launcher, "v1"))
    assert [piped.piped for piped in asked] == [scene.piped_id]


async def test_a_refused_key_is_told(scene: Scene) -> None:
    scene.config.with_name("key").write_text("wrong")
    with pytest.raises(PipecdError, match="Unauthenticated"):
        await scene.launcher().run()


@pytest.mark.slow
async def test_a_real_piped_is_upgraded_and_says_so(scene: Scene) -> None:
    """The versions are this piped under other names; the control plane sees them come and go."""
    python = f'#!/bin/sh\nshift\nexec {sys.executable} -m pipecd piped "$@"\n'
    for version in ("v1", "v2"):
        scene.offer(version, python.encode() + f"# {version}\n".encode())
    scene.offer("v3", broken(scene.trace, "v3"))
    work = scene.home / "work"
    flags = ["--insecure", "--admin-port=0", "--plugin-service-port=0", f"--workspace-dir={work}"]
    pipeds = scene.plane.running.cases.pipeds

    async def started_at() -> int:
        found = await pipeds.get(scene.piped_id, by=scene.plane.admin)
        return found.started_at if found.status == Piped.ONLINE else 0

    async def online_after(moment: int) -> int:
        async with asyncio.timeout(40):
            while (found := await started_at()) <= moment:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return found

    async with running(scene.launcher(arguments=flags, trial=1)) as launcher:
        first = await online_after(0)
        await scene.desire("v2")
        await until(has_come_up(launcher, "v2"), 40)
        second = await online_after(first)
        await scene.desire("v3")
        await until(lambda: scene.begun == ["v3"] * 3)
        third = await online_after(second)
        assert status(launcher)["running"] == "v2"
        await until(has_come_up(launcher, "v2"), 40)
        await pipeds.restart(scene.piped_id, by=scene.plane.admin)
        await online_after(third)
