# SPDX-License-Identifier: Apache-2.0
"""Random faults over a whole installation, and the checks that hold in spite of them.

A round pushes commits and requests syncs while faults are injected, then heals everything and waits.
Checked are: no status goes back, no application runs two scripts at once, the last deployment to run is
that of the head commit, nothing is left 60 seconds after healing.

`python -m faults.fault_injection --minutes 15 --replicas 2` (with tests on the path) prints counts.
"""

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import psycopg

from faults.installation import FaultyInstallation, Program, open_installation
from faults.network import LinkState
from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Unavailable
from servers.databases import Postgres, Redis

APPLICATIONS = ("cart", "shop", "mail")
HEALED_SECONDS = 60.0
ROUND_SECONDS = 20.0
_REPORTS = (
    "CreateDeploymentInOrder",
    "ReportDeploymentPlanned",
    "ReportDeploymentStatusChanged",
    "ReportStageStatusChanged",
    "ReportDeploymentCompleted",
    "ReportApplicationMostRecentDeployment",
    "ReportApplicationDeployingStatus",
    "ReportStageLogsFromLastCheckpoint",
    "ReportCommandHandled",
)
_UNREACHABLE = (grpc.aio.AioRpcError, Unavailable)


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass
class Observer:
    """Watches all deployments from outside and reports every status that goes back."""

    installed: FaultyInstallation
    violations: list[str] = field(default_factory=list[str])
    statuses: dict[str, DeploymentStatus] = field(default_factory=dict[str, DeploymentStatus])
    stages: dict[tuple[str, str], StageStatus] = field(
        default_factory=dict[tuple[str, str], StageStatus]
    )

    async def run(self) -> None:
        while True:
            for replica in range(len(self.installed.replicas)):
                with suppress(*_UNREACHABLE):
                    await self.observe(replica)
                    break
            await asyncio.sleep(0.2)

    async def observe(self, replica: int = 0) -> None:
        for deployment in await self.installed.deployments(replica):
            before = self.statuses.get(deployment.id, DeploymentStatus.PENDING)
            status = DeploymentStatus(deployment.status)
            if status < before or (before.is_completed and status is not before):
                self.violations.append(f"{deployment.id} went from {before.name} to {status.name}")
            self.statuses[deployment.id] = status
            for stage in deployment.stages:
                key = (deployment.id, stage.id)
                was = self.stages.get(key, StageStatus.NOT_STARTED_YET)
                now = StageStatus(stage.status)
                if now < was or (was.is_completed and now is not was):
                    self.violations.append(f"{key} went from {was.name} to {now.name}")
                if status.is_completed and now is StageStatus.RUNNING:
                    self.violations.append(f"{key} runs although {deployment.id} is {status.name}")
                self.stages[key] = now


class FaultInjector:
    """One installation, its users, and the faults."""

    def __init__(self, installed: FaultyInstallation, chance: random.Random) -> None:
        self.installed, self.chance = installed, chance
        self.counts: Counter[str] = Counter()
        self.duplicates: list[Program] = []
        self.recoveries: list[float] = []
        self.observer = Observer(installed)
        self.violations: list[str] = []

    @property
    def piped(self) -> Program:
        return self.installed.pipeds[0]

    async def round(self) -> None:
        """Faults and pushes for a while, then healing and the checks."""
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
                        await self.installed.sync(name, replica)
                        self.counts["syncs"] += 1
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))

    async def _break(self, ends: float) -> None:
        faults: list[Callable[[], Awaitable[None]]] = [
            self.kill_piped,
            self.restart_piped,
            self.stop_piped_for_a_while,
            self.kill_replica,
            self.stop_replica_for_a_while,
            self.cut_network,
            self.silence_connections,
            self.half_open_connections,
            self.lose_responses,
            self.hold_requests,
            self.repeat_requests,
            self.step_clock_of_piped,
            self.step_clock_of_replica,
            self.lose_workspace,
            self.restore_old_workspace,
            self.damage_workspace,
            self.start_duplicate,
        ]
        while time.monotonic() < ends:
            fault = self.chance.choice(faults)
            self.counts[fault.__name__.replace("_", " ")] += 1
            await fault()
            await asyncio.sleep(self.chance.uniform(0.5, 3.0))

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
        self.installed.calls.losing[self.chance.choice(_REPORTS)] = self.chance.randint(1, 3)

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
            if call.name in _REPORTS:
                await self.installed.calls.send(call)
        del recorded[:-2000]

    async def step_clock_of_piped(self) -> None:
        self.piped.step_clock(self.chance.choice((-7200, -60, 0, 60, 7200)))

    async def step_clock_of_replica(self) -> None:
        replica = self.chance.choice(self.installed.replicas)
        replica.step_clock(self.chance.choice((-7200, -60, 0, 60, 7200)))

    async def lose_workspace(self) -> None:
        await self.piped.kill()
        shutil.rmtree(self._workspace, ignore_errors=True)
        await self.piped.start()

    async def restore_old_workspace(self) -> None:
        """A workspace from a backup, which knows nothing of what came after it."""
        await self.piped.kill()
        backup = self._workspace.with_name("backup")
        if backup.exists():
            shutil.rmtree(self._workspace, ignore_errors=True)
            shutil.copytree(backup, self._workspace, symlinks=True)
        elif self._workspace.exists():
            shutil.copytree(self._workspace, backup, symlinks=True)
        await self.piped.start()

    async def damage_workspace(self) -> None:
        """Garbage in a file of a workspace that is in use."""
        files = [f for f in self._workspace.rglob("*") if f.is_file() and f.name != "lock"]
        if files:
            with suppress(OSError):
                content = self.chance.choice(("", "\0garbage", "[]", '{"stages": 7}'))
                self.chance.choice(files).write_text(content)

    async def start_duplicate(self) -> None:
        name = f"duplicate-{len(self.duplicates)}"
        self.duplicates.append(await self.installed.start_piped(name))
        await asyncio.sleep(self.chance.uniform(1, 5))

    @property
    def _workspace(self) -> Path:
        return self.installed.directory / "piped" / "workspace"

    async def _heal(self) -> None:
        """Everything works again: one piped runs, all replicas run, the network is up."""
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
        healed = time.monotonic()
        # What had not been pushed during the faults must be deployed too.
        for name in APPLICATIONS:
            self.installed.push(name)
        try:
            await self.installed.eventually(self._is_settled, within=HEALED_SECONDS)
        except AssertionError:
            self.violations.append(f"not settled {HEALED_SECONDS:g}s after healing")
            await self._explain()
        else:
            self.recoveries.append(time.monotonic() - healed)
        self.violations += self.installed.overlaps()
        self.violations += self.observer.violations
        self.observer.violations.clear()

    async def _is_settled(self) -> bool:
        if not await self.installed.all_completed():
            return False
        return all(self._last_run_is_head(name) for name in APPLICATIONS)

    def _last_run_is_head(self, name: str) -> bool:
        runs = [run for run in self.installed.runs() if run.application == name]
        if not runs:
            return False
        git = self.installed.origin.git
        return git("rev-parse", f"{runs[-1].commit}:{name}") == git("rev-parse", f"HEAD:{name}")

    async def _explain(self) -> None:
        """Prints what is left, for whoever reads the report."""
        with suppress(*_UNREACHABLE):
            for deployment in await self.installed.deployments():
                if not DeploymentStatus(deployment.status).is_completed:
                    status = DeploymentStatus(deployment.status).name
                    report(f"left: {deployment.id} {deployment.application_name} {status}")
        for name in APPLICATIONS:
            if not self._last_run_is_head(name):
                report(f"last run is not the head: {name}")


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
    async with installation(directory, replicas) as installed:
        installed.calls.recording = set(_REPORTS)
        for name in APPLICATIONS:
            installed.push(name)
        await installed.start_piped()
        injector = FaultInjector(installed, random.Random(seed))
        rounds = 0
        while time.monotonic() < ends:
            await injector.round()
            rounds += 1
            report(
                f"round {rounds}: {len(installed.runs())} runs, "
                f"{len(injector.observer.statuses)} deployments, "
                f"recovery {injector.recoveries[-1] if injector.recoveries else -1:.1f}s, "
                f"{len(injector.violations)} violations",
            )
            if injector.violations:
                break
        return injector


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
    for name, count in sorted(injector.counts.items()):
        report(f"{count:6} {name}")
    recoveries = sorted(injector.recoveries)
    if recoveries:
        report(f"recovery: median {recoveries[len(recoveries) // 2]:.1f}s, worst {recoveries[-1]:.1f}s")  # fmt: skip
    report(f"{len(injector.violations)} violations")
    for violation in injector.violations:
        report(f"  {violation}")
    sys.exit(bool(injector.violations))


if __name__ == "__main__":
    main()
