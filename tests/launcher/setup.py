# SPDX-License-Identifier: Apache-2.0
"""A registered piped, its configuration, and a server of versions that the launcher starts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecd.commandline.configsource import from_file
from pipecd.launcher.desired_version import DesiredVersion
from pipecd.launcher.launch import Launcher, LaunchSettings
from pipecd.launcher.release import open_releases
from servers.control_plane import LocalPiped, ServedControlPlane
from servers.piped import piped_config
from servers.polling import eventually
from servers.registry import OciRegistry

# Like a version of upstream, it has no flag by which it can stand by.
NO_HELP = 'case "$*" in *--help) exit 0;; esac\n'


def working(trace: Path, version: str) -> bytes:
    """An executable that records its arguments and runs until it is terminated."""
    return (
        f'#!/bin/sh\n{NO_HELP}echo "{version} $*" >> {trace}\n'
        f'trap "echo {version} ended >> {trace}; exit 0" TERM\nwhile :; do sleep 0.05; done\n'
    ).encode()


def broken(trace: Path, version: str) -> bytes:
    return f'#!/bin/sh\n{NO_HELP}echo "{version} broke" >> {trace}\nexit 7\n'.encode()


@dataclass
class LauncherSetup:
    """A registered piped, its configuration file, and a server that offers releases."""

    plane: ServedControlPlane
    piped: LocalPiped
    directory: Path
    server: OciRegistry

    @property
    def config(self) -> Path:
        return self.directory / "piped.yaml"

    @property
    def key_file(self) -> Path:
        return self.directory / "key"

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def passed_config(self) -> Path:
        """The configuration file that the launcher passes to piped."""
        return self.home / "piped" / "config" / "piped-config.yaml"

    @property
    def trace(self) -> Path:
        """The file to which the executables write."""
        return self.directory / "trace"

    @property
    def lines(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    @property
    def started(self) -> list[str]:
        """The versions that were started, in order."""
        return [line.split()[0] for line in self.lines if not line.endswith(" ended")]

    def offer(self, version: str, content: bytes) -> None:
        self.server.files[f"piped_{version}"] = content

    async def set_desired_version(self, version: str) -> None:
        await self.plane.cases.pipeds.set_desired_version(
            version, [self.piped.id], by=self.plane.admin
        )

    def write_config(self, more: str = "", *, address: str = "") -> None:
        self.config.write_text(
            piped_config(
                self.piped.id,
                self.key_file,
                address=address or self.plane.address,
                remote=str(self.directory / "site"),
                project=self.plane.admin.project,
                rest=f"  aFieldOfALaterVersion: true\n{more}",
            )
        )

    async def load_config(self) -> bytes:
        return from_file(str(self.config))()

    def launcher(
        self,
        *arguments: str,
        trial: float = 0.3,
        check_interval: float = 0.05,
        start_timeout: float = 60,
        grace_period: float = 5,
    ) -> Launcher:
        return Launcher(
            self.load_config,
            DesiredVersion(insecure=True, default="v1").version,
            open_releases(f"{self.server.address}/files/piped_{{version}}", self.home),
            LaunchSettings(
                home=self.home,
                arguments=arguments,
                grace_period=grace_period,
                start_timeout=start_timeout,
                trial=trial,
                check_interval=check_interval,
            ),
        )


def status(launcher: Launcher) -> dict[str, Any]:
    return json.loads(launcher.status())


async def until_ready(launcher: Launcher, version: str, within: float = 15) -> None:
    """Waits until a version has passed its trial."""

    def is_ready() -> bool:
        current = status(launcher)
        return current["running"] == version and current["ready"]

    await eventually(is_ready, within)
