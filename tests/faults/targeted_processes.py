# SPDX-License-Identifier: Apache-2.0
"""The processes of an installation that faults look for, because others than the harness start them."""

import asyncio
from contextlib import suppress
from pathlib import Path

from faults.signals import processes_with
from faults.whole_installation import PLUGIN_PIPED, WholeInstallation
from servers.server import children

# How often, and how long, a fault looks for a program that runs for a short time only.
_PAUSE, _LOOKS = 0.1, 80
_GIT_PAUSE, _GIT_LOOKS = 0.01, 600


def plugin_program(installed: WholeInstallation) -> int:
    """The plugin program of a piped, if it is one of this installation and runs."""
    if len(installed.pipeds) <= PLUGIN_PIPED:
        return 0
    file = installed.plugin_pid_file(installed.pipeds[PLUGIN_PIPED])
    try:
        pid = int(file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return 0
    return pid if str(installed.directory).encode() in command else 0


def supervisors(installed: WholeInstallation, piped: int) -> list[int]:
    """What runs the programs of process applications of a piped."""
    directory = installed.directory / "programs" / str(piped)
    return processes_with(b"pipecd.plugins.process.supervisor", str(directory).encode())


async def running_terraforms(installed: WholeInstallation) -> list[int]:
    """Every Terraform that runs."""
    for _ in range(_LOOKS):
        if found := await asyncio.to_thread(_terraforms, str(installed.directory)):
            return found
        await asyncio.sleep(_PAUSE)
    return []


def _terraforms(directory: str) -> list[int]:
    found: list[int] = []
    for pid in processes_with(b"terraform"):
        with suppress(OSError):
            if str(Path(f"/proc/{pid}/cwd").readlink()).startswith(directory):
                found.append(pid)
    return found


async def running_git(installed: WholeInstallation, piped: int) -> list[int]:
    """The Git commands that a piped runs; only if there are none, those that read objects all the time."""
    commands: dict[int, str] = {}
    for _ in range(_GIT_LOOKS):
        started = children(installed.pipeds[piped].pid)
        commands = {pid: command for pid in started if (command := _git_command(pid))}
        if found := [pid for pid, command in commands.items() if command != "cat-file"]:
            return found
        await asyncio.sleep(_GIT_PAUSE)
    return [*commands]


def _git_command(pid: int) -> str:
    """What a process asks of Git; empty if it is another program."""
    with suppress(OSError, ValueError):
        program, command, *_ = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return command if Path(program).name == "git" else ""
    return ""
