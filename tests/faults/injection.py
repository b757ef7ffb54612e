# SPDX-License-Identifier: Apache-2.0
"""The faults: every one of a schedule is a method here, and `heal` undoes all of them."""

import asyncio
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults.disk import SmallDisk
from faults.history import History
from faults.network import LinkState
from faults.program import Program
from faults.schedule import REPORTS, Step
from faults.whole_installation import PLUGIN_PIPED, FaultyPiped, WholeInstallation
from servers.origin import Origin

_PULSE_SECONDS = 0.1
_RECORDED_CALLS = 1000
_REPEATED_CALLS = 20


@dataclass
class Injector:
    """Breaks an installation, and heals it."""

    installed: WholeInstallation
    history: History
    counts: dict[str, int] = field(default_factory=dict[str, int])
    lost_workspaces: set[str] = field(default_factory=set[str])
    """The ids of pipeds that cannot know everything any more."""
    plugin_kills: list[float] = field(default_factory=list[float])
    is_repository_recreated: bool = False
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])

    async def run(self, step: Step) -> None:
        """Injects a fault and, if it lasts for a time, ends it."""
        self.counts[step.name] = self.counts.get(step.name, 0) + 1
        options = " ".join(f"{key}={value}" for key, value in step.options.items())
        lane = self._lane(step)
        self.history.add(lane, f"{step.name} {options}".strip(), "fault")
        await getattr(self, step.name)(**step.options)
        self.history.add(lane, f"{step.name} is over", "fault-end")

    def _lane(self, step: Step) -> str:
        for key in ("piped", "replica"):
            if key in step.options:
                return f"{key}-{step.options[key]}"
        if "server" in step.options:
            return str(step.options["server"])
        named = {"git_away": "git", "recreate_repository": "git", "api_server_away": "cluster"}
        return named.get(step.name, "plugin" if step.name.endswith("plugin") else "network")

    def interruptions(self, piped: FaultyPiped) -> list[float]:
        """When something that runs stages of a piped was started or killed."""
        duplicates = [
            at
            for program in self.installed.duplicates
            if program.name.startswith(f"{piped.program.name}-")
            for at in program.starts
        ]
        kills = self.plugin_kills if piped.number == PLUGIN_PIPED else []
        return sorted([*piped.program.starts, *duplicates, *kills])

    # Processes

    async def kill_piped(self, piped: int, *, pause: float) -> None:
        await self._kill(self.installed.pipeds[piped].program, pause)

    async def _kill(self, program: Program, pause: float) -> None:
        async with program.lock:
            await program.kill()
            await asyncio.sleep(pause)
            await program.start()

    async def kill_piped_at_call(self, rpc: str, *, when: str) -> None:
        """The piped that makes the next call of this RPC is killed before or after its effect."""

        def kill(piped_id: str) -> None:
            for piped in self.installed.pipeds:
                if piped.id == piped_id and not piped.program.lock.locked():
                    self.history.add(piped.program.name, f"killed {when} {rpc}", "fault")
                    piped.program.signal(signal.SIGKILL)
                    task = asyncio.create_task(self._kill(piped.program, 0.1))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)

        self.installed.calls.at_call[rpc, when] = kill

    async def pause_piped(self, piped: int, *, seconds: float) -> None:
        await self._pause(self.installed.pipeds[piped].program, seconds)

    async def _pause(self, program: Program, seconds: float) -> None:
        async with program.lock:
            program.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            program.signal(signal.SIGCONT)

    async def kill_replica(self, replica: int, *, pause: float) -> None:
        await self._kill(self.installed.replicas[replica], pause)

    async def pause_replica(self, replica: int, *, seconds: float) -> None:
        await self._pause(self.installed.replicas[replica], seconds)

    async def duplicate_piped(self, piped: int, *, seconds: float) -> None:
        faulty = self.installed.pipeds[piped]
        self.lost_workspaces.add(faulty.id)
        await self.installed.start_duplicate(faulty)
        await asyncio.sleep(seconds)

    async def kill_plugin(self) -> None:
        self._signal_plugin(signal.SIGKILL)
        self.plugin_kills.append(time.time())

    async def hang_plugin(self, seconds: float) -> None:
        pid = self._signal_plugin(signal.SIGSTOP)
        # Piped may replace a plugin that does not answer.
        self.plugin_kills.append(time.time())
        await asyncio.sleep(seconds)
        if pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _signal_plugin(self, number: int) -> int:
        """Signals the plugin program of a piped, if it is one of this installation."""
        if len(self.installed.pipeds) <= PLUGIN_PIPED:
            return 0
        file = self.installed.plugin_pid_file(self.installed.pipeds[PLUGIN_PIPED])
        try:
            pid = int(file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return 0
        if str(self.installed.directory).encode() not in command:
            return 0
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    # Network

    async def cut_network(self, seconds: float) -> None:
        self.installed.front.cut()
        await asyncio.sleep(seconds)
        self.installed.front.heal()

    async def silence_connections(self) -> None:
        self.installed.front.silence()

    async def half_open_connections(self) -> None:
        self.installed.front.silence(LinkState.HALF_OPEN)

    async def slow_network(self, seconds: float, *, delay: float) -> None:
        self.installed.front.delay = delay
        await asyncio.sleep(seconds)
        self.installed.front.delay = 0.0

    async def lose_responses(self, rpcs: list[str]) -> None:
        for rpc in rpcs:
            self.installed.calls.losing[rpc] = 2

    async def hold_requests(self, rpcs: list[str], *, seconds: float) -> None:
        """Requests that arrive late, possibly after the piped that sent them has ended."""
        calls = self.installed.calls
        calls.holding |= set(rpcs)
        await asyncio.sleep(seconds)
        calls.holding -= set(rpcs)
        held = [call for call in calls.held if call.name in rpcs]
        calls.held = [call for call in calls.held if call.name not in rpcs]
        for call in held:
            await calls.send(call)

    async def repeat_requests(self) -> None:
        """Requests of the last minutes arrive once more, in any order."""
        recorded = self.installed.calls.recorded
        for call in random.sample(recorded, min(_REPEATED_CALLS, len(recorded))):
            await self.installed.calls.send(call)
        del recorded[:-_RECORDED_CALLS]

    async def double_requests(self, rpcs: list[str], *, seconds: float) -> None:
        self.installed.calls.doubling |= set(rpcs)
        await asyncio.sleep(seconds)
        self.installed.calls.doubling -= set(rpcs)

    async def reorder_requests(self, rpcs: list[str], *, seconds: float) -> None:
        self.installed.calls.delays.update(dict.fromkeys(rpcs, 1.0))
        await asyncio.sleep(seconds)
        for rpc in rpcs:
            self.installed.calls.delays.pop(rpc, None)

    # Clocks

    async def step_clock_of_piped(self, piped: int, *, clock: float) -> None:
        self.installed.pipeds[piped].program.step_clock(clock)

    async def step_clock_of_replica(self, replica: int, *, clock: float) -> None:
        self.installed.replicas[replica].step_clock(clock)

    # Disks

    async def lose_workspace(self, piped: int) -> None:
        faulty = self.installed.pipeds[piped]
        self.lost_workspaces.add(faulty.id)
        async with faulty.program.lock:
            await faulty.program.kill()
            await asyncio.to_thread(_clear, faulty.workspace)
            await faulty.program.start()

    async def restore_old_workspace(self, piped: int) -> None:
        """A workspace from a backup, which knows nothing of what came after it."""
        faulty = self.installed.pipeds[piped]
        self.lost_workspaces.add(faulty.id)
        backup = faulty.directory / "backup"
        async with faulty.program.lock:
            await faulty.program.kill()
            with suppress(OSError, shutil.Error):
                await asyncio.to_thread(_restore_or_back_up, faulty.workspace, backup)
            await faulty.program.start()

    async def damage_workspace(self, piped: int, *, which: float, content: str) -> None:
        """Garbage in a file of a workspace that is in use."""
        faulty = self.installed.pipeds[piped]
        self.lost_workspaces.add(faulty.id)
        files = await asyncio.to_thread(SmallDisk(faulty.workspace).files)
        files = sorted(file for file in files if file.name != "lock")
        if files:
            with suppress(OSError):
                files[int(which * len(files))].write_text(content)

    async def fill_workspace(self, piped: int, *, seconds: float) -> None:
        faulty = self.installed.pipeds[piped]
        self.lost_workspaces.add(faulty.id)
        if faulty.disk is not None:
            await self._fill(faulty.disk, seconds)

    async def fill_data(self, seconds: float) -> None:
        """No space for stage logs in files and, with SQLite, for anything else."""
        if self.installed.data_disk is not None:
            await self._fill(self.installed.data_disk, seconds)

    async def _fill(self, disk: SmallDisk, seconds: float) -> None:
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(seconds)
        disk.empty()

    # Git

    async def git_away(self, seconds: float) -> None:
        path = self.installed.origin.path
        away = path.with_name("origin-away")
        async with self.installed.git_lock:
            path.rename(away)
            await asyncio.sleep(seconds)
            away.rename(path)

    async def recreate_repository(self) -> None:
        """A repository with the same files and a history of one commit takes the place of the old one."""
        origin = self.installed.origin
        self.is_repository_recreated = True
        async with self.installed.git_lock:
            await asyncio.to_thread(self.installed.read_contents)
            await asyncio.to_thread(_recreate, origin.path)
            origin.git("config", "receive.denyCurrentBranch", "updateInstead")
            await asyncio.to_thread(origin.commit, None, "created again")

    # Servers

    async def kill_database(self, server: str, *, seconds: float) -> None:
        await self._kill_server(server, seconds)

    async def kill_cache(self, server: str, *, seconds: float) -> None:
        await self._kill_server(server, seconds)

    async def kill_bucket(self, server: str, *, seconds: float) -> None:
        await self._kill_server(server, seconds)

    async def _kill_server(self, name: str, seconds: float) -> None:
        server = self.installed.stores.servers[name]
        async with self.installed.server_locks[name]:
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(server.start)

    async def pause_database(self, server: str, *, seconds: float) -> None:
        await self._pause_server(server, seconds)

    async def pause_cache(self, server: str, *, seconds: float) -> None:
        await self._pause_server(server, seconds)

    async def pause_bucket(self, server: str, *, seconds: float) -> None:
        await self._pause_server(server, seconds)

    async def _pause_server(self, name: str, seconds: float) -> None:
        server = self.installed.stores.servers[name]
        async with self.installed.server_locks[name]:
            server.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            server.signal(signal.SIGCONT)

    async def slow_database(self, server: str, *, seconds: float) -> None:
        """The database works half of the time, in short pulses."""
        database = self.installed.stores.servers[server]
        async with self.installed.server_locks[server]:
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                database.signal(signal.SIGSTOP)
                await asyncio.sleep(_PULSE_SECONDS)
                database.signal(signal.SIGCONT)
                await asyncio.sleep(_PULSE_SECONDS)

    async def read_only_database(self, server: str, *, seconds: float) -> None:
        async with self.installed.server_locks[server]:
            await asyncio.to_thread(self.installed.stores.set_read_only, True)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.installed.stores.set_read_only, False)

    async def api_server_away(self, seconds: float) -> None:
        kubernetes = self.installed.kubernetes
        assert kubernetes is not None
        async with self.installed.server_locks["cluster"]:
            await asyncio.to_thread(kubernetes.api_server.stop)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(kubernetes.api_server.start)

    async def heal(self) -> None:
        """Everything works again: the programs run, one of each piped, and the network is up."""
        installed = self.installed
        self.history.add("network", "healing begins", "harness")
        installed.front.heal()
        installed.calls.heal()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await installed.calls.release()
        for program in installed.programs:
            program.signal(signal.SIGCONT)
            program.step_clock(0)
        for duplicate in installed.duplicates:
            await duplicate.kill()
        await self.start_ended()
        self.history.add("network", "healed", "harness")

    async def start_ended(self) -> None:
        """Starts programs that have ended, as their supervisor does."""
        for program in self.installed.programs:
            if not program.is_running:
                code = program.process.returncode if program.process else None
                self.history.add(
                    program.name, f"has ended with {code}, is started again", "harness"
                )
                await program.start()


def _clear(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _restore_or_back_up(workspace: Path, backup: Path) -> None:
    if backup.exists():
        _clear(workspace)
        shutil.copytree(backup, workspace, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copytree(workspace, backup, symlinks=True)


def _recreate(path: Path) -> None:
    old = path.with_name("origin-old")
    path.rename(old)
    shutil.copytree(old, path, ignore=shutil.ignore_patterns(".git"))
    shutil.rmtree(old)
    Origin.begin(path)


RECORDED = frozenset(REPORTS)
