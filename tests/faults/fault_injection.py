# SPDX-License-Identifier: Apache-2.0
"""Random faults over a whole installation, and the checks that hold in spite of them.

A round pushes commits and requests syncs while faults are injected, then heals everything and waits.
Checked are: no status goes back, no application runs two scripts at once, the last deployment to run is
that of the head commit, nothing is left 60 seconds after healing (see `checks`).

`python -m faults.fault_injection --minutes 15 --replicas 2` (with tests on the path) prints counts, and how
long recovery took after rounds with each fault.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import grpc
import grpc.aio
import psycopg

from faults.checks import StatusHistory, not_at_head, not_completed, wait_until_settled
from faults.disk import SmallDisk
from faults.installation import FaultyInstallation, open_installation
from faults.network import LinkState
from faults.program import Program
from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.model.errors import Unavailable
from servers.databases import Postgres, Redis

APPLICATIONS = ("cart", "shop", "mail")
HEALED_SECONDS = 60.0
# After it has settled, nothing may change any more.
SETTLED_SECONDS = 2.0
ROUND_SECONDS = 20.0
# The disk of a workspace and that of a control plane.
DISK_MEGABYTES = 64
_REPORTS = (
    "CreateDeploymentInOrder",
    "ReportDeploymentPlanned",
    "ReportDeploymentStatusChanged",
    "ReportStageStatusChanged",
    "ReportDeploymentCompleted",
    "ReportApplicationMostRecentDeployment",
    "ReportApplicationDeployingStatus",
    "ReportApplicationSyncState",
    "ReportStageLogs",
    "ReportStageLogsFromLastCheckpoint",
    "SaveDeploymentSharedMetadata",
    "ReportCommandHandled",
)
FAULTS = (
    "kill_piped",
    "restart_piped",
    "stop_piped_for_a_while",
    "kill_replica",
    "stop_replica_for_a_while",
    "cut_network",
    "silence_connections",
    "half_open_connections",
    "lose_responses",
    "hold_requests",
    "repeat_requests",
    "step_clock_of_piped",
    "step_clock_of_replica",
    "lose_workspace",
    "restore_old_workspace",
    "damage_workspace",
    "fill_workspace",
    "fill_disk_of_control_plane",
    "start_duplicate",
)
# A late one is refused, so that these are only lost.
_LEASES = ("AcquirePipedLease", "ReleasePipedLease")
_UNREACHABLE = (grpc.aio.AioRpcError, Unavailable)


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass
class Observer:
    """Watches the deployments from outside and reports every status that goes back."""

    installed: FaultyInstallation
    history: StatusHistory = field(default_factory=StatusHistory)
    violations: list[str] = field(default_factory=list[str])

    async def run(self) -> None:
        while True:
            for replica in range(len(self.installed.replicas)):
                with suppress(*_UNREACHABLE):
                    await self.observe(replica, limit=40)
                    break
            await asyncio.sleep(0.2)

    async def observe(self, replica: int = 0, *, limit: int = 0) -> None:
        """Reads the newest deployments, or all of them."""
        for deployment in await self.installed.deployments(replica, limit=limit):
            self.violations += self.history.observe(deployment)


@dataclass(frozen=True)
class Recovery:
    """How many seconds everything took after healing, and which faults the round had."""

    seconds: float
    faults: frozenset[str]


class FaultInjector:
    """One installation, its users, and the faults."""

    def __init__(
        self,
        installed: FaultyInstallation,
        chance: random.Random,
        workspace: SmallDisk,
        data: SmallDisk,
    ) -> None:
        self.installed, self.chance = installed, chance
        self.workspace, self.data = workspace, data
        self.counts: Counter[str] = Counter()
        self.commands: list[str] = []
        self.duplicates: list[Program] = []
        self.recoveries: list[Recovery] = []
        self._next_faults: list[str] = []
        self._round_faults: set[str] = set()
        self.observer = Observer(installed)
        self.violations: list[str] = []

    @property
    def piped(self) -> Program:
        return self.installed.pipeds[0]

    async def round(self) -> None:
        """Faults and pushes for a while, then healing and the checks."""
        self.back_up_workspace()
        ends = time.monotonic() + ROUND_SECONDS
        observing = asyncio.create_task(self.observer.run())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._use(ends))
                tasks.create_task(self._break(ends))
            await self._heal()
            await self._check()
        finally:
            observing.cancel()

    async def _use(self, ends: float) -> None:
        """Pushes commits and requests syncs, as users do."""
        while time.monotonic() < ends:
            name = self.chance.choice(APPLICATIONS)
            dates = {}
            if self.chance.random() < 0.2:
                dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2020-01-01T00:00:00Z")  # fmt: skip
            match self.chance.random():
                case x if x < 0.75:
                    seconds = self.chance.choice((0.05, 0.2, 1.0))
                    await asyncio.to_thread(self.installed.push, name, seconds=seconds, **dates)
                    self.counts["pushes"] += 1
                case x if x < 0.8:
                    with suppress(Exception):
                        self.installed.origin.git("reset", "--hard", "--quiet", "HEAD~2")
                        self.counts["force pushes"] += 1
                case _:
                    with suppress(*_UNREACHABLE):
                        replica = self.chance.randrange(len(self.installed.replicas))
                        self.commands.append(await self.installed.sync(name, replica))
                        self.counts["syncs"] += 1
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))

    async def _break(self, ends: float) -> None:
        while time.monotonic() < ends:
            fault = self._choose()
            name = fault.__name__.replace("_", " ")
            self.counts[name] += 1
            self._round_faults.add(name)
            self._record(name)
            await fault()
            await asyncio.sleep(self.chance.uniform(0.5, 3.0))

    def _choose(self) -> Callable[[], Awaitable[None]]:
        """The next fault: in a random order, and none again before all others have happened."""
        if not self._next_faults:
            self._next_faults = self.chance.sample(FAULTS, len(FAULTS))
        return getattr(self, self._next_faults.pop())

    def _record(self, event: str) -> None:
        """Writes the time of an event beside the logs of the programs, for who reads them."""
        with (self.installed.directory / "faults.log").open("a") as file:
            file.write(f"{time.time():.2f} {event}\n")

    async def kill_piped(self) -> None:
        await self.piped.kill()
        await asyncio.sleep(self.chance.uniform(0, 2))
        await self.piped.start()

    async def restart_piped(self) -> None:
        await self.piped.stop()
        await self.piped.start()

    async def stop_piped_for_a_while(self) -> None:
        self.piped.signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(1, 6))
        self.piped.signal(signal.SIGCONT)

    async def kill_replica(self) -> None:
        number = self.chance.randrange(len(self.installed.replicas))
        await self.installed.replicas[number].kill()
        await asyncio.sleep(self.chance.uniform(0, 3))
        await self.installed.start_replica(number)

    async def stop_replica_for_a_while(self) -> None:
        replica = self.chance.choice(self.installed.replicas)
        replica.signal(signal.SIGSTOP)
        await asyncio.sleep(self.chance.uniform(1, 8))
        replica.signal(signal.SIGCONT)

    async def cut_network(self) -> None:
        self.installed.front.cut()
        await asyncio.sleep(self.chance.uniform(0.5, 6))
        self.installed.front.heal()

    async def silence_connections(self) -> None:
        self.installed.front.silence()

    async def half_open_connections(self) -> None:
        self.installed.front.silence(LinkState.HALF_OPEN)

    async def lose_responses(self) -> None:
        rpc = self.chance.choice((*_REPORTS, *_LEASES))
        self.installed.calls.losing[rpc] = self.chance.randint(1, 3)

    async def hold_requests(self) -> None:
        """Requests that arrive late, possibly after the piped that sent them has ended."""
        held = set(self.chance.sample(_REPORTS, 2))
        self.installed.calls.holding |= held
        await asyncio.sleep(self.chance.uniform(0.5, 3))
        if self.chance.random() < 0.5:
            await self.kill_piped()
        await self.installed.calls.release()

    async def repeat_requests(self) -> None:
        recorded = self.installed.calls.recorded
        for call in self.chance.sample(recorded, min(20, len(recorded))):
            if call.rpcs & set(_REPORTS):
                await self.installed.calls.send(call)
        del recorded[:-2000]

    async def step_clock_of_piped(self) -> None:
        self.piped.step_clock(self.chance.choice((-7200, -60, 0, 60, 7200)))

    async def step_clock_of_replica(self) -> None:
        replica = self.chance.choice(self.installed.replicas)
        replica.step_clock(self.chance.choice((-7200, -60, 0, 60, 7200)))

    async def lose_workspace(self) -> None:
        await self.piped.kill()
        self._clear_workspace()
        await self.piped.start()

    async def restore_old_workspace(self) -> None:
        """A workspace from a backup, which knows nothing of what came after it."""
        await self.piped.kill()
        self._clear_workspace()
        shutil.copytree(self._backup, self.workspace.directory, symlinks=True, dirs_exist_ok=True)
        await self.piped.start()

    @property
    def _backup(self) -> Path:
        return self.workspace.directory.with_name("backup")

    def back_up_workspace(self) -> None:
        """Copies the workspace once; what vanishes meanwhile is not copied."""
        if not self._backup.exists():
            with suppress(OSError, shutil.Error):
                shutil.copytree(self.workspace.directory, self._backup, symlinks=True)

    async def damage_workspace(self) -> None:
        """Garbage in a file of a workspace that is in use."""
        files = [file for file in self.workspace.files() if file.name != "lock"]
        if files:
            with suppress(OSError):
                content = self.chance.choice(("", "\0garbage", "[]", '{"stages": 7}'))
                self.chance.choice(files).write_text(content)

    async def fill_workspace(self) -> None:
        """No space in the workspace, also for a piped that is started meanwhile."""
        await asyncio.to_thread(self.workspace.fill)
        await asyncio.sleep(self.chance.uniform(1, 6))
        if self.chance.random() < 0.3:
            await self.kill_piped()
            await asyncio.sleep(self.chance.uniform(1, 3))
        self.workspace.empty()

    async def fill_disk_of_control_plane(self) -> None:
        """No space for stage logs and, with SQLite, for anything else."""
        await asyncio.to_thread(self.data.fill)
        await asyncio.sleep(self.chance.uniform(1, 6))
        if self.chance.random() < 0.3:
            # With SQLite it ends again with a message, until its supervisor finds space.
            replica = self.chance.choice(self.installed.replicas)
            await replica.kill()
            await replica.start()
            await asyncio.sleep(self.chance.uniform(1, 3))
        self.data.empty()

    async def start_duplicate(self) -> None:
        name = f"duplicate-{len(self.duplicates)}"
        self.duplicates.append(await self.installed.start_piped(name))
        await asyncio.sleep(self.chance.uniform(1, 5))

    def _clear_workspace(self) -> None:
        # Programs that outlive a killed piped for a moment may still write.
        while paths := list(self.workspace.directory.iterdir()):
            for path in paths:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    async def _heal(self) -> None:
        """Everything works again: one piped runs, all replicas run, the network is up."""
        self._record("heal")
        self.installed.front.heal()
        self.installed.calls.losing.clear()
        await self.installed.calls.release()
        for program in (*self.installed.replicas, self.piped):
            program.signal(signal.SIGCONT)
            program.step_clock(0)
        for duplicate in self.duplicates:
            await duplicate.kill()
            self.installed.pipeds.remove(duplicate)
        self.duplicates.clear()
        for number, replica in enumerate(self.installed.replicas):
            if not replica.is_running:
                await self.installed.start_replica(number)
        if not self.piped.is_running:
            await self.piped.start()

    async def _check(self) -> None:
        self._record("healed")
        # What had not been pushed during the faults must be deployed too.
        for name in APPLICATIONS:
            self.installed.push(name)
        seconds, left = await wait_until_settled(
            self._unsettled, within=HEALED_SECONDS, stays=SETTLED_SECONDS, pause=0.2
        )
        self._record(f"settled after {seconds:.1f}s")
        self.recoveries.append(Recovery(seconds, frozenset(self._round_faults)))
        self._round_faults.clear()
        self.violations += left
        await self.observer.observe()
        self.violations += self.installed.overlaps()
        self.violations += self.observer.violations
        self.observer.violations.clear()

    async def _unsettled(self) -> list[str]:
        """What is not yet as it has to be after healing."""
        for program in (*self.installed.replicas, self.piped):
            if not program.is_running:
                # It learnt only now that it has to end; its supervisor starts it again.
                self._record(f"{program.name} is started again")
                await program.start()

        @cache
        def content_of(commit: str, name: str) -> str:
            return self.installed.origin.git("rev-parse", f"{commit}:{name}")

        try:
            deployments = await self.installed.deployments()
            self.commands = [
                id_ for id_ in self.commands if not await self.installed.is_handled(id_)
            ]
            busy = [name for name in APPLICATIONS if not await self.installed.is_idle(name)]
        except _UNREACHABLE as e:
            return [f"the control plane does not answer: {e}"]
        return [
            *not_completed(deployments),
            *not_at_head(APPLICATIONS, self.installed.runs(), deployments, content_of),
            *(f"command {id_} is not handled" for id_ in self.commands),
            *(f"{name} is still deploying" for name in busy),
        ]


@asynccontextmanager
async def installation(directory: Path, replicas: int) -> AsyncGenerator[FaultyInstallation, None]:
    """One server on SQLite, or several replicas on PostgreSQL and Redis."""
    if replicas == 1:
        async with open_installation(directory, applications=APPLICATIONS) as installed:
            yield installed
        return
    postgres, redis = Postgres(), Redis()
    try:
        with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE faults")
        datastore = DatastoreSpec(
            type="POSTGRESQL", config=DatastoreConfig(url=postgres.url("faults"))
        )
        async with open_installation(
            directory,
            applications=APPLICATIONS,
            datastore=datastore,
            cache_address=f"127.0.0.1:{redis.port}",
            replica_count=replicas,
        ) as installed:
            yield installed
    finally:
        postgres.close()
        redis.close()


async def inject(directory: Path, *, replicas: int, minutes: float, seed: int) -> FaultInjector:
    """Runs rounds for so many minutes and returns what was counted."""
    ends = time.monotonic() + minutes * 60
    with ExitStack() as disks:
        workspace, data = (
            SmallDisk.mount(directory / path, megabytes=DISK_MEGABYTES)
            for path in ("piped/workspace", "data")
        )
        disks.callback(data.unmount)
        disks.callback(workspace.unmount)
        async with installation(directory, replicas) as installed:
            installed.calls.recording = set(_REPORTS)
            for name in APPLICATIONS:
                installed.push(name)
            await installed.start_piped()
            injector = FaultInjector(installed, random.Random(seed), workspace, data)
            rounds = 0
            while time.monotonic() < ends and not injector.violations:
                await injector.round()
                rounds += 1
                report(
                    f"round {rounds}: {len(installed.runs())} runs, "
                    f"{len(injector.observer.history.statuses)} deployments, "
                    f"recovery {injector.recoveries[-1].seconds:.1f}s, "
                    f"{len(injector.violations)} violations, load {os.getloadavg()[0]:.1f}"
                )
            return injector


def summary(counts: Mapping[str, int], recoveries: Sequence[Recovery]) -> list[str]:
    """Counts, with the recovery of the rounds that had each fault, and that of all rounds."""
    lines: list[str] = []
    for name, count in sorted(counts.items()):
        of_fault = sorted(each.seconds for each in recoveries if name in each.faults)
        recovery = f", recovery {_times(of_fault)}" if of_fault else ""
        lines.append(f"{count:6} {name}{recovery}")
    happened = [count for name in FAULTS if (count := counts.get(name.replace("_", " "), 0))]
    kinds = f"{len(happened)} of {len(FAULTS)} kinds"
    lines.append(f"{sum(happened)} faults of {kinds} in {len(recoveries)} rounds")
    if recoveries:
        lines.append(f"recovery: {_times(sorted(each.seconds for each in recoveries))}")
    return lines


def _times(seconds: Sequence[float]) -> str:
    return f"median {seconds[len(seconds) // 2]:.1f}s, worst {seconds[-1]:.1f}s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--directory", type=Path)
    chosen = parser.parse_args()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="pipecd-faults-"))
    report(f"seed {chosen.seed}, directory {directory}")
    injector = asyncio.run(
        inject(directory, replicas=chosen.replicas, minutes=chosen.minutes, seed=chosen.seed)
    )
    for line in summary(injector.counts, injector.recoveries):
        report(line)
    report(f"{len(injector.violations)} violations")
    for violation in injector.violations:
        report(f"  {violation}")
    sys.exit(bool(injector.violations))


if __name__ == "__main__":
    main()
