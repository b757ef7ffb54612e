# SPDX-License-Identifier: Apache-2.0
"""The faults: every one of a schedule is a method here, and `heal` undoes all of them."""

import asyncio
import random
import shutil
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import closing, suppress
from dataclasses import dataclass, field

from faults.acknowledged import LeaseGrants
from faults.disk import SmallDisk, back_up, clear
from faults.evidence import InjectedFault, handovers
from faults.history import History
from faults.network import LinkState, TcpProxy
from faults.program import Program
from faults.repository import Repository
from faults.schedule import REPORTS, Step
from faults.signals import kill_all, pause_all, signal_process
from faults.stores_on_disk import OnSmallDisk
from faults.targeted_processes import plugin_program, running_git, running_terraforms, supervisors
from faults.whole_installation import HOOK, PLUGIN_PIPED, FaultyPiped, WholeInstallation
from servers.server import Server

_PULSE_SECONDS = 0.1
_RECORDED_CALLS = 1000
_REPEATED_CALLS = 20
_LOSING_SECONDS = 5.0
# How long a kill waits for a line of a target, and how quickly it follows it.
_LINE_SECONDS, _LINE_PAUSE = 8.0, 0.02
_SLOW_SECONDS = 0.1


@dataclass
class Injector:
    """Breaks an installation, and heals it. A fault returns whether it really happened."""

    installed: WholeInstallation
    history: History
    faults: list[InjectedFault] = field(default_factory=list[InjectedFault])
    """What happened, in the order in which it began."""
    lease_grants: LeaseGrants = field(default_factory=LeaseGrants)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set["asyncio.Task[None]"])
    _losing_until: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def counts(self) -> Counter[str]:
        return Counter(fault.name for fault in self.faults)

    async def run(self, step: Step) -> None:
        """Injects a fault and, if it lasts for a time, ends it."""
        options = " ".join(f"{key}={value}" for key, value in step.options.items())
        lane = self._lane(step)
        self.history.add(lane, f"{step.name} {options}".strip(), "fault")
        fault = self._begin(step.name, step.options.get("piped"))
        if not await getattr(self, step.name)(**step.options):
            self.faults.remove(fault)
            self.history.add(lane, f"{step.name} had nothing to break", "fault-end")
            return
        if step.name != "duplicate_piped":
            # The duplicate runs until everything is healed.
            fault.end = time.time()
        self.history.add(lane, f"{step.name} is over", "fault-end")

    def _begin(self, name: str, piped: int | None = None) -> InjectedFault:
        if name.endswith("_plugin") and len(self.installed.pipeds) > PLUGIN_PIPED:
            piped = PLUGIN_PIPED
        id_ = "" if piped is None else self.installed.pipeds[piped].id
        self.faults.append(fault := InjectedFault(name, time.time(), piped=id_))
        return fault

    def _lane(self, step: Step) -> str:
        for key in ("piped", "replica"):
            if key in step.options:
                return f"{key}-{step.options[key]}"
        if "server" in step.options:
            return str(step.options["server"])
        named = {"git_away": "git", "recreate_repository": "git", "api_server_away": "cluster", "pause_api_server": "cluster"}  # fmt: skip
        return named.get(step.name, "plugin" if step.name.endswith("plugin") else "network")

    def interruptions(self, piped: FaultyPiped) -> list[float]:
        """When something that runs stages of a piped was started or killed.

        A duplicate runs none until it has the lease.
        """
        launches = [
            line.at
            for line in self.installed.truth.lines
            if line.what == "launch" and line.application == piped.program.name
        ]
        own = [fault for fault in self.faults if fault.piped == piped.id]
        plugin = [fault.begin for fault in own if fault.name == "kill_plugin"]
        handed_over = handovers(own, piped.id, self.lease_grants.times.get(piped.id, ()))
        # A launcher runs no stages itself.
        starts = launches if piped.is_launched else piped.program.starts
        return sorted([*starts, *plugin, *handed_over])

    # Processes

    async def kill_piped(self, piped: int, *, pause: float) -> bool:
        await self._kill(self.installed.pipeds[piped].program, pause)
        return True

    async def _kill(self, program: Program, pause: float) -> None:
        async with program.lock:
            await program.kill()
            await asyncio.sleep(pause)
            await program.start()

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def kill_launched_piped(self) -> bool:
        """Kills the piped of a launcher, which has to start it again by itself."""
        return kill_all(each.launched_pid() for each in self.installed.pipeds)

    async def kill_piped_at_call(self, rpc: str, *, when: str) -> bool:
        """The piped that makes the next call of this RPC is killed before or after its effect.

        It counts when such a call is made.
        """

        def kill(piped_id: str) -> bool:
            for piped in self.installed.pipeds:
                if piped.id == piped_id and not piped.program.lock.locked():
                    if not signal_process(piped.pid, signal.SIGKILL):
                        return False
                    self.history.add(piped.program.name, f"killed {when} {rpc}", "fault")
                    self._begin("kill_piped_at_call", piped.number).end = time.time()
                    if piped.is_launched:
                        return True
                    self._later(self._kill(piped.program, 0.1))
                    return True
            return False

        self.installed.calls.at_call[rpc, when] = kill
        return False

    async def kill_piped_at_line(self, piped: int, *, what: str) -> bool:
        """A piped is killed as soon as one of its targets writes a line of this kind."""
        installed, faulty = self.installed, self.installed.pipeds[piped]
        own = {each.name for each in installed.applications.values() if each.piped == piped}
        known, ends = len(installed.truth.read()), time.monotonic() + _LINE_SECONDS
        while time.monotonic() < ends:
            lines = installed.truth.read()
            if any(line.what == what and line.application in own for line in lines[known:]):
                if faulty.program.lock.locked():
                    return False
                if faulty.is_launched:
                    return signal_process(faulty.pid, signal.SIGKILL)
                await self._kill(faulty.program, 0.1)
                return True
            known = len(lines)
            await asyncio.sleep(_LINE_PAUSE)
        return False

    async def pause_piped(self, piped: int, *, seconds: float) -> bool:
        faulty = self.installed.pipeds[piped]
        async with faulty.program.lock:
            faulty.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            faulty.signal(signal.SIGCONT)
        return True

    async def kill_replica(self, replica: int, *, pause: float) -> bool:
        await self._kill(self.installed.replicas[replica], pause)
        return True

    async def kill_replica_at_call(
        self, replica: int, *, rpc: str, when: str, delay: float
    ) -> bool:
        """A replica is killed while it carries out the next call of this RPC, or after its answer.

        It counts when such a call is made; another replica may have got it.
        """
        program = self.installed.replicas[replica]

        def kill(piped_id: str) -> bool:
            if program.lock.locked() or not program.is_running:
                return False
            self.history.add(program.name, f"killed {when} {rpc}", "fault")
            self._begin("kill_replica_at_call").end = time.time()
            self._later(self._kill_later(program, delay))
            return True

        self.installed.calls.at_call[rpc, when] = kill
        return False

    async def _kill_later(self, program: Program, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._kill(program, 0.1)

    async def pause_replica(self, replica: int, *, seconds: float) -> bool:
        program = self.installed.replicas[replica]
        async with program.lock:
            program.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            program.signal(signal.SIGCONT)
        return True

    async def duplicate_piped(self, piped: int, *, seconds: float) -> bool:
        await self.installed.start_duplicate(self.installed.pipeds[piped])
        await asyncio.sleep(seconds)
        return True

    async def kill_plugin(self) -> bool:
        return signal_process(plugin_program(self.installed), signal.SIGKILL)

    async def flood_plugin(self) -> bool:
        """The plugin program writes 20 MB to its piped."""
        return signal_process(plugin_program(self.installed), signal.SIGUSR1)

    async def hang_plugin(self, seconds: float) -> bool:
        pid = plugin_program(self.installed)
        is_stopped = signal_process(pid, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        signal_process(pid, signal.SIGCONT)
        return is_stopped

    async def kill_supervisor(self, piped: int) -> bool:
        """Kills the process that runs the programs of process applications of a piped."""
        return kill_all(await asyncio.to_thread(supervisors, self.installed, piped))

    async def pause_supervisor(self, piped: int, *, seconds: float) -> bool:
        return await pause_all(await asyncio.to_thread(supervisors, self.installed, piped), seconds)

    async def kill_terraform(self) -> bool:
        """Kills every Terraform that runs; waits some time for one."""
        return kill_all(await running_terraforms(self.installed))

    async def pause_terraform(self, seconds: float) -> bool:
        return await pause_all(await running_terraforms(self.installed), seconds)

    async def kill_git(self, piped: int) -> bool:
        """Kills what Git does for a piped; waits some time for something."""
        return kill_all(await running_git(self.installed, piped))

    # Network

    async def cut_network(self, seconds: float) -> bool:
        return await self._cut(self.installed.front, seconds)

    async def cut_users(self, replica: int, *, seconds: float) -> bool:
        links = self.installed.users[replica].values()
        return any(await asyncio.gather(*(self._cut(link, seconds) for link in links)))

    async def half_open_users(self, replica: int, *, seconds: float) -> bool:
        """What users ask a replica arrives, and no answer comes back."""
        links = self.installed.users[replica].values()
        accepted = sum(link.accepted for link in links)
        for link in links:
            link.state_of_new = LinkState.HALF_OPEN
            link.silence(LinkState.HALF_OPEN)
        await asyncio.sleep(seconds)
        for link in links:
            link.state_of_new = LinkState.UP
        return sum(link.accepted for link in links) > accepted

    async def cut_server(self, server: str, *, seconds: float) -> bool:
        """The replicas do not reach the database, the cache or the bucket."""
        return await self._cut(self.installed.stores.links[server], seconds)

    async def _cut(self, link: TcpProxy, seconds: float) -> bool:
        carried, accepted = len(link.links), link.accepted
        link.cut()
        await asyncio.sleep(seconds)
        link.heal()
        return bool(carried) or link.accepted > accepted

    async def silence_connections(self) -> bool:
        return bool(self.installed.front.silence())

    async def half_open_connections(self) -> bool:
        return bool(self.installed.front.silence(LinkState.HALF_OPEN))

    async def silence_server(self, server: str) -> bool:
        """The connections of the replicas to a server fall silent; new ones work."""
        return bool(self.installed.stores.links[server].silence())

    async def half_open_server(self, server: str) -> bool:
        """What the replicas have sent arrives at a server, and no answer comes back."""
        return bool(self.installed.stores.links[server].silence(LinkState.HALF_OPEN))

    async def slow_network(self, seconds: float, *, delay: float) -> bool:
        return await self._slow(self.installed.front, seconds, delay)

    async def slow_server(self, server: str, *, seconds: float) -> bool:
        """Everything between the replicas and a server takes a while."""
        return await self._slow(self.installed.stores.links[server], seconds, _SLOW_SECONDS)

    async def _slow(self, link: TcpProxy, seconds: float, delay: float) -> bool:
        link.delay = delay
        await asyncio.sleep(seconds)
        link.delay = 0.0
        return bool(link.links)

    async def lose_responses(self, rpcs: list[str]) -> bool:
        """The next responses are lost; it counts if there were some within seconds."""
        calls = self.installed.calls
        before = calls.effects["lost"]
        calls.losing.update(dict.fromkeys(rpcs, 2))
        ends = time.monotonic() + _LOSING_SECONDS
        self._losing_until.update(dict.fromkeys(rpcs, ends))
        while time.monotonic() < ends:
            if not any(calls.losing.get(rpc) for rpc in rpcs):
                break
            await asyncio.sleep(_PULSE_SECONDS)
        for rpc in rpcs:
            # What a later fault loses is left to it.
            if self._losing_until[rpc] == ends:
                calls.losing.pop(rpc, None)
        return calls.effects["lost"] > before

    async def hold_requests(self, rpcs: list[str], *, seconds: float) -> bool:
        """Requests that arrive late, possibly after the piped that sent them has ended."""
        calls = self.installed.calls
        calls.holding |= set(rpcs)
        await asyncio.sleep(seconds)
        calls.holding -= set(rpcs)
        held = [call for call in calls.held if call.rpcs & set(rpcs)]
        calls.held = [call for call in calls.held if not call.rpcs & set(rpcs)]
        for call in held:
            await calls.send(call)
        return bool(held)

    async def repeat_requests(self, seed: int) -> bool:
        """Requests of the last minutes arrive once more, in any order."""
        recorded = self.installed.calls.recorded
        chance = random.Random(seed)
        repeated = chance.sample(recorded, min(_REPEATED_CALLS, len(recorded)))
        for call in repeated:
            await self.installed.calls.send(call)
        del recorded[:-_RECORDED_CALLS]
        return bool(repeated)

    async def double_requests(self, rpcs: list[str], *, seconds: float) -> bool:
        calls = self.installed.calls
        before = calls.effects["doubled"]
        calls.doubling |= set(rpcs)
        await asyncio.sleep(seconds)
        calls.doubling -= set(rpcs)
        return calls.effects["doubled"] > before

    async def reorder_requests(self, rpcs: list[str], *, seconds: float, seed: int) -> bool:
        calls = self.installed.calls
        before = calls.effects["delayed"]
        calls.chance = random.Random(seed)
        calls.delays.update(dict.fromkeys(rpcs, 1.0))
        await asyncio.sleep(seconds)
        for rpc in rpcs:
            calls.delays.pop(rpc, None)
        return calls.effects["delayed"] > before

    # Clocks

    async def step_clock_of_piped(self, piped: int, *, clock: float) -> bool:
        return self.installed.pipeds[piped].program.step_clock(clock)

    async def step_clock_of_replica(self, replica: int, *, clock: float) -> bool:
        return self.installed.replicas[replica].step_clock(clock)

    # Disks

    async def lose_workspace(self, piped: int) -> bool:
        faulty = self.installed.pipeds[piped]
        async with faulty.program.lock:
            await faulty.program.kill()
            await asyncio.to_thread(clear, faulty.workspace)
            await faulty.program.start()
        return True

    async def back_up_workspaces(self) -> None:
        """Copies the workspaces, for `restore_old_workspace`."""
        for faulty in self.installed.pipeds:
            await asyncio.to_thread(back_up, faulty.workspace, faulty.directory / "backup")

    async def restore_old_workspace(self, piped: int) -> bool:
        """A workspace from a backup, which knows nothing of what came after it."""
        faulty = self.installed.pipeds[piped]
        backup = faulty.directory / "backup"
        if not backup.exists():
            return False
        async with faulty.program.lock:
            await faulty.program.kill()
            await asyncio.to_thread(clear, faulty.workspace)
            with suppress(OSError, shutil.Error):
                await asyncio.to_thread(
                    shutil.copytree, backup, faulty.workspace, symlinks=True, dirs_exist_ok=True
                )
            await faulty.program.start()
        return True

    async def damage_workspace(self, piped: int, *, which: float, content: str) -> bool:
        """Garbage in a file of a workspace that is in use."""
        faulty = self.installed.pipeds[piped]
        files = await asyncio.to_thread(SmallDisk(faulty.workspace).files)
        files = sorted(file for file in files if file.name != "lock")
        if not files:
            return False
        damaged = files[int(which * len(files))]
        path = str(damaged.relative_to(faulty.workspace))
        self.history.add(f"piped-{piped}", f"damaged {path}", "fault")
        for fault in self.faults:
            if fault.name == "damage_workspace" and fault.piped == faulty.id and not fault.file:
                fault.file = path
        with suppress(OSError):
            damaged.write_text(content)
            return True
        return False

    async def fill_workspace(self, piped: int, *, seconds: float) -> bool:
        return await self._fill(self.installed.pipeds[piped].disk, seconds)

    async def fill_data(self, seconds: float) -> bool:
        """No space for stage logs in files and, with SQLite, for anything else."""
        return await self._fill(self.installed.data_disk, seconds)

    async def fill_server(self, server: str, *, seconds: float) -> bool:
        """No space for the database or the bucket; one that ends by that is started again."""
        stores = self.installed.stores
        async with self.installed.server_locks[server]:
            full = stores.servers[server]
            disk = full.disk if isinstance(full, OnSmallDisk) else None
            is_filled = await self._fill(disk, seconds)
            await asyncio.to_thread(_start_again, full)
        return is_filled

    async def _fill(self, disk: SmallDisk | None, seconds: float) -> bool:
        if disk is None:
            return False
        await asyncio.to_thread(disk.fill)
        await asyncio.sleep(seconds)
        disk.empty()
        return True

    async def lock_data(self, seconds: float) -> bool:
        """Another program, such as a backup, locks the file of the database against writers."""
        file = self.installed.stores.datastore.config.path
        await asyncio.to_thread(_lock_database, file, seconds)
        return True

    # Notifications

    async def receiver_away(self, seconds: float) -> bool:
        """The receiver of notifications answers that it is unavailable."""
        hooks = self.installed.hooks
        before = hooks.refused
        hooks.unavailable.add(HOOK)
        await asyncio.sleep(seconds)
        hooks.unavailable.discard(HOOK)
        return hooks.refused > before

    # Git

    async def git_away(self, seconds: float) -> bool:
        path = self.installed.origin.path
        away = path.with_name("origin-away")
        async with self.installed.git_lock:
            path.rename(away)
            await asyncio.sleep(seconds)
            away.rename(path)
        return True

    async def recreate_repository(self) -> bool:
        """A repository with the same files and a history of one commit takes the place of the old one."""
        async with self.installed.git_lock:
            await asyncio.to_thread(self.installed.read_contents)
            await asyncio.to_thread(_recreate, self.installed.origin)
        return True

    # Servers

    async def kill_server(self, server: str, *, seconds: float) -> bool:
        async with self.installed.server_locks[server]:
            stopped = self.installed.stores.servers[server]
            await asyncio.to_thread(stopped.stop)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(stopped.start)
        return True

    async def pause_server(self, server: str, *, seconds: float) -> bool:
        async with self.installed.server_locks[server]:
            paused = self.installed.stores.servers[server]
            paused.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            paused.signal(signal.SIGCONT)
        return True

    async def starve_server(self, server: str, *, seconds: float) -> bool:
        """The server works half of the time, in short pulses."""
        async with self.installed.server_locks[server]:
            starved = self.installed.stores.servers[server]
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                starved.signal(signal.SIGSTOP)
                await asyncio.sleep(_PULSE_SECONDS)
                starved.signal(signal.SIGCONT)
                await asyncio.sleep(_PULSE_SECONDS)
        return True

    async def read_only_server(self, server: str, *, seconds: float) -> bool:
        stores = self.installed.stores
        async with self.installed.server_locks[server]:
            await asyncio.to_thread(stores.set_read_only, server, True)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(stores.set_read_only, server, False)
        return True

    async def fail_over(self, server: str) -> bool:
        """Another server takes the place of the database, the cache or the bucket."""
        async with self.installed.server_locks[server]:
            await asyncio.to_thread(self.installed.stores.fail_over, server)
        return True

    async def api_server_away(self, seconds: float) -> bool:
        kubernetes = self.installed.kubernetes
        assert kubernetes is not None
        async with self.installed.server_locks["cluster"]:
            await asyncio.to_thread(kubernetes.api_server.stop)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(kubernetes.api_server.start)
        return True

    async def pause_api_server(self, seconds: float) -> bool:
        kubernetes = self.installed.kubernetes
        assert kubernetes is not None
        async with self.installed.server_locks["cluster"]:
            kubernetes.api_server.signal(signal.SIGSTOP)
            await asyncio.sleep(seconds)
            kubernetes.api_server.signal(signal.SIGCONT)
        return True

    async def heal(self) -> None:
        """Everything works again: the programs run, one of each piped, and the network is up."""
        installed = self.installed
        self.history.add("network", "healing begins", "harness")
        links = [*installed.stores.links.values(), *(link for each in installed.users for link in each.values())]  # fmt: skip
        for link in (installed.front, *links):
            link.heal()
        installed.calls.heal()
        while self._tasks:
            await asyncio.wait(self._tasks)
        await installed.calls.release()
        for program in installed.programs:
            program.signal(signal.SIGCONT)
            program.step_clock(0)
        for duplicate in installed.duplicates:
            await duplicate.kill()
        for fault in self.faults:
            if fault.name == "duplicate_piped":
                fault.end = min(fault.end, time.time())
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


def _lock_database(file: str, seconds: float) -> None:
    with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        database.execute("ROLLBACK")


def _start_again(server: Server) -> None:
    if not server.is_up():
        server.stop()
        server.start()


def _recreate(origin: Repository) -> None:
    old = origin.path.with_name("origin-old")
    origin.path.rename(old)
    files = Repository(old).files()
    Repository.begin(origin.path).begin_history(files, "created again")
    shutil.rmtree(old)


RECORDED = frozenset(REPORTS)
