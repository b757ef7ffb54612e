# SPDX-License-Identifier: Apache-2.0
"""One installation under a schedule: it is used and broken for a while, healed, and checked."""

import asyncio
import os
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from faults.acknowledged import AcknowledgedLogs, ReportedTimes, answered
from faults.applications import FaultyApplication, Platform
from faults.ending import IS_GONE, Head, SyncState, may_be_refused, unsettled, unstored_settings
from faults.evidence import FOREVER, Evidence, Notification, Resources, saved_setting
from faults.execution_rules import chains
from faults.history import History
from faults.injection import RECORDED, Injector
from faults.model import check
from faults.network import RecordedCall
from faults.observer import StatusObserver
from faults.reader import Reader, StageLogs
from faults.resources import used_by
from faults.running import TargetReader
from faults.schedule import Scene, Step
from faults.truth import event_commits
from faults.upstream import NOT_PROMISED
from faults.violation import Violation
from faults.whole_installation import (
    HOOK,
    Options,
    WholeInstallation,
    open_whole_installation,
)
from faults.workload import APPROVING, UNANSWERED, Workload, waiting_stage
from pipecd.model.application import SyncStatus
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, ManualOperation
from pipecd.piped.notify.event import EventType
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import ReportApplicationSyncStateRequest
from servers.load import patient

HEALED_SECONDS = 60.0
# The first deployments of all applications take longer than what is left after a fault.
CALM_SECONDS = 240.0
# After it has settled, nothing may change any more.
SETTLED_SECONDS = 2.0
_POLL_SECONDS = 0.25
# How many logs that were right before are read again in every round.
_LOGS_AGAIN = 10
_LOG_ATTEMPTS = 3
_TRACEBACK = re.compile(rb"Traceback \(most recent call last\)")


@dataclass(frozen=True)
class Late:
    """What was not done 60 seconds after healing, on a machine that was busy with other things."""

    seconds: float
    load: float
    left: Sequence[str]


@dataclass
class LogReading:
    """The logs that were read for a check, and the deployments whose logs could not be read."""

    logs: StageLogs = field(default_factory=StageLogs)
    read: set[str] = field(default_factory=set[str])
    unread: set[str] = field(default_factory=set[str])


@dataclass
class Trial:
    """Runs schedules on one installation and collects the violations."""

    installed: WholeInstallation
    history: History
    workload: Workload
    injector: Injector
    reader: Reader
    observer: StatusObserver = field(default_factory=StatusObserver)
    violations: list[Violation] = field(default_factory=list[Violation])
    recoveries: list[float] = field(default_factory=list[float])
    late: list[Late] = field(default_factory=list[Late])
    seen_logs: StageLogs = field(default_factory=StageLogs)
    acknowledged: AcknowledgedLogs = field(default_factory=AcknowledgedLogs)
    reported: ReportedTimes = field(default_factory=ReportedTimes)
    first_resources: dict[str, Resources] = field(default_factory=dict[str, Resources])
    _heads: Mapping[str, Head] = field(default_factory=dict[str, Head])
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    _checked_logs: list[str] = field(default_factory=list[str])
    _log_offsets: dict[Path, int] = field(default_factory=dict[Path, int])

    @property
    def scene(self) -> Scene:
        """What the next schedule can choose from."""
        installed = self.installed
        return Scene(
            layout=installed.options.layout,
            applications=installed.options.applications,
            pipeds=len(installed.pipeds),
            replicas=len(installed.replicas),
            has_small_disks=installed.data_disk is not None,
        )

    @property
    def deployments(self) -> list[Deployment]:
        """All of them in the order in which they were created, as far as a client can tell."""
        seen = self.observer.first_seen
        return sorted(
            self.reader.deployments.values(),
            key=lambda each: (seen.get(each.id, FOREVER), each.created_at),
        )

    @property
    def has_lost_commits(self) -> bool:
        """Whether an application cannot be deployed any more: nobody has the commit that runs."""
        return any(IS_GONE in each.status_reason for each in self.reader.deployments.values())

    @property
    def targets(self) -> TargetReader:
        return TargetReader(self.installed, self.workload.revisions)

    async def settle_first(self, within: float) -> None:
        """Waits until every application is deployed for the first time."""
        await self._observed(self._settle(within))
        self.recoveries.clear()
        self.late.clear()
        self.first_resources = self.used()

    async def run(self, steps: Sequence[Step]) -> list[Violation]:
        """Carries out a schedule, heals and checks; returns the violations."""
        self.installed.calls.recording = set(RECORDED)
        await self.injector.back_up_workspaces()
        before = len(self.violations)
        await self._observed(self._carry_out(steps))
        return self.violations[before:]

    async def _observed(self, work: Any) -> None:
        observing = asyncio.create_task(self._observe())
        try:
            await work
        finally:
            observing.cancel()
            await asyncio.wait({observing})

    async def _carry_out(self, steps: Sequence[Step]) -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for step in sorted(steps, key=lambda step: step.at):
                await asyncio.sleep(max(0, began + step.at - time.monotonic()))
                runner = self.injector.run if step.is_fault else self.workload.run
                tasks.create_task(runner(step))
        await self.injector.heal()
        await self._settle(patient(HEALED_SECONDS))
        await self._check()

    # Observing

    async def _observe(self) -> None:
        """Reads the newest deployments of every replica again and again, and a log of one that runs."""
        while True:
            for replica in range(len(self.installed.replicas)):
                with suppress(*UNANSWERED):
                    await self._read_deployments(partial(self.reader.newest, replica))
                    await self._read_running_logs(replica)
            await asyncio.sleep(_POLL_SECONDS)

    def take_response(self, call: RecordedCall, response: bytes) -> None:
        """Takes a call of a piped that was answered; sync states are part of the timeline."""
        self.acknowledged.take(call, response)
        self.reported.take(call, response, time.time())
        self.injector.lease_grants.take(call, response, time.time())
        names = {id_: name for name, id_ in self.installed.application_ids.items()}
        for rpc, request in answered(call, response):
            if rpc == "ReportApplicationSyncState":
                report = ReportApplicationSyncStateRequest.FromString(request)
                state = report.state
                text = f"reported as {SyncStatus(state.status).name} ({state.timestamp})"
                self.history.add(names.get(report.application_id, "users"), text, "status")

    async def _read_deployments(self, read: Callable[[], Awaitable[list[Deployment]]]) -> None:
        """Reads and compares; an answer is compared with those that came before it was requested."""
        async with self._reading:
            self._compare(await read())

    def _compare(self, listed: Sequence[Deployment]) -> None:
        before = dict(self.observer.deployments)
        self._report(self.observer.observe(listed, at=time.time()))
        for deployment in listed:
            status = DeploymentStatus(deployment.status)
            if before.get(deployment.id) is not status:
                text = (
                    f"{deployment.id[:8]} at {deployment.trigger.commit.hash[:7]} is {status.name}"
                )
                if status.is_completed and status is not DeploymentStatus.SUCCESS:
                    text = f"{text}: {deployment.status_reason[:120]}"
                lane = deployment.application_name
                self.history.add(lane, text, "status", deployment=deployment.id)

    async def _read_running_logs(self, replica: int) -> None:
        running = [
            id for id, s in self.observer.deployments.items() if s is DeploymentStatus.RUNNING
        ]
        if running:
            self.seen_logs.update(await self.reader.logs(running[-1], replica))

    def _report(self, violations: Iterable[Violation]) -> None:
        known = {str(violation) for violation in self.violations}
        for violation in violations:
            if str(violation) not in known and self._is_promised(violation):
                known.add(str(violation))
                self.violations.append(violation)
                self.history.add(violation.lane or "users", str(violation), "violation")

    def _is_promised(self, violation: Violation) -> bool:
        """Whether it is our programs that promise this rule."""
        application = self.installed.applications.get(violation.lane)
        is_ours = application is None or application.upstream is None
        return is_ours or violation.rule not in NOT_PROMISED

    # Settling

    async def _settle(self, within: float) -> None:
        """Waits until nothing is left, and stays so; what is left after the time is a violation.

        The rule is 60 seconds. On a busy machine there is more time, and what is late is recorded.
        """
        started, settled_at, late = time.monotonic(), 0.0, None
        while True:
            left, now = await self._left(), time.monotonic()
            after = "after everything had settled: " if settled_at else ""
            if left:
                settled_at = 0.0
                texts = [f"{v.rule}: {after}{v.text}" for v in left]
                if now - started > within:
                    self._report(Violation(v.rule, f"{after}{v.text}", v.lane) for v in left)
                    break
                if late is None and now - started > HEALED_SECONDS:
                    late = texts
            elif not settled_at:
                settled_at = now
            elif now - settled_at >= SETTLED_SECONDS:
                now = settled_at
                break
            await asyncio.sleep(_POLL_SECONDS)
        self.recoveries.append(now - started)
        if late is not None:
            self.late.append(Late(now - started, os.getloadavg()[0], late))
        self.history.add("network", f"settled after {now - started:.1f} s", "harness")

    async def _left(self) -> list[Violation]:
        await self.injector.start_ended()
        try:
            for name in tuple(self.workload.disabled):
                await self.workload.enable(name)
            await self._approve_all()
            await self._read_deployments(self.reader.changed)
            applications = await self.reader.applications()
            heads = await asyncio.to_thread(self.targets.heads)
            unhandled = await self._unhandled(heads)
            chains_now = await self.reader.chains()
        except UNANSWERED as e:
            return [_unanswered(e)]
        self._heads = heads
        deployments = self.deployments
        evidence = Evidence(
            applications=tuple(self.installed.applications.values()),
            deployments=deployments,
            chains=chains_now,
            requests=self.workload.requests,
            broken_commits=self.targets.broken_commits(),
            first_seen=self.observer.first_seen,
            completed_at=self.observer.completed_at,
        )
        left = [*unhandled, *chains(evidence)]
        for name, application in tuple(self.installed.applications.items()):
            left += self._left_of(application, heads[name], applications.get(name), deployments)
        return [violation for violation in left if self._is_promised(violation)]

    def _left_of(
        self,
        application: FaultyApplication,
        head: Head,
        registered: Application | None,
        deployments: Sequence[Deployment],
    ) -> list[Violation]:
        name = application.name
        if registered is None:
            text = f"{name} is not registered any more"
            return [Violation("nothing acknowledged is lost", text, name)]
        state = registered.sync_state
        sync = SyncState(SyncStatus(state.status), state.short_reason, registered.deploying)
        contents = {commit: of.get(name, "") for commit, of in self.installed.contents.items()}
        own = [each for each in deployments if each.application_name == name]
        explained = {each.id for each in own if self._may_be_refused(each, application)}
        left = unsettled(application, head, own, contents, sync=sync, explained=explained)
        return left or unstored_settings(
            application,
            head,
            config=registered.git_path.config_filename,
            description=registered.description,
            labels=registered.labels,
        )

    def _may_be_refused(self, deployment: Deployment, application: FaultyApplication) -> bool:
        return may_be_refused(
            deployment,
            application,
            requests=self.workload.requests,
            faults=self.injector.faults,
            first_seen=self.observer.first_seen.get(deployment.id, 0.0),
            completed_at=self.observer.completed_at.get(deployment.id, FOREVER),
        )

    async def _approve_all(self) -> None:
        for deployment in self.deployments:
            if DeploymentStatus(deployment.status) is not DeploymentStatus.RUNNING:
                continue
            if stage := waiting_stage(deployment, ManualOperation.APPROVE):
                approved = {
                    request.person
                    for request in self.workload.requests
                    if request.stage == stage.id and request.is_acknowledged
                }
                for person in APPROVING:
                    if person not in approved:
                        await self.workload.approve_stage(deployment, stage, person)

    async def _unhandled(self, heads: Mapping[str, Head]) -> list[Violation]:
        """The commands and events that are not handled yet.

        Nobody watches the events of an application whose file is broken.
        """
        unwatched = {
            application.event
            for name, application in self.installed.applications.items()
            if name in heads and heads[name].is_broken
        }
        left: list[Violation] = []
        for request in self.workload.requests:
            if not request.is_command:
                continue
            status = CommandStatus((await self.reader.command(request.id)).status)
            if status is CommandStatus.NOT_HANDLED_YET:
                text = f"{request.kind} {request.id} is not handled"
                left.append(Violation("nothing is stuck", text, request.application))
        if any(request.kind == "event" for request in self.workload.requests):
            for event in (await self.reader.events()).values():
                if not event.status and event.name not in unwatched:
                    left.append(Violation("nothing is stuck", f"event {event.id} is not handled"))
        return left

    # Checking

    async def _check(self) -> None:
        ends = time.monotonic() + patient(HEALED_SECONDS)
        while True:
            try:
                await self._read_deployments(self.reader.all)
                evidence = await self._evidence()
            except UNANSWERED as e:
                if time.monotonic() > ends:
                    self._report([_unanswered(e)])
                    return
                await asyncio.sleep(_POLL_SECONDS)
            else:
                self._report(check(evidence))
                return

    async def _evidence(self) -> Evidence:
        installed, requests = self.installed, self.workload.requests
        deployments = self.deployments
        commands = {r.id: await self.reader.command(r.id) for r in requests if r.is_command}
        completed = (CommandStatus.SUCCEEDED, CommandStatus.FAILED)
        previews = {
            request.id: await self.reader.preview(request.id)
            for request in requests
            if request.kind == "preview"
            and request.is_acknowledged
            and CommandStatus(commands[request.id].status) in completed
        }
        registered = await self.reader.applications()
        chains_now, events = await self.reader.chains(), await self.reader.events()
        commits = await asyncio.to_thread(self._event_commits)
        # What is seen while the logs are read may be newer than they are.
        seen = {stage: list(lines) for stage, lines in self.seen_logs.items()}
        acknowledged = {stage: set(lines) for stage, lines in self.acknowledged.lines.items()}
        # Last, because a log that was read is not read in every check.
        reading = await self._read_logs(deployments)
        return Evidence(
            applications=tuple(installed.applications.values()),
            piped_ids=[piped.id for piped in installed.pipeds],
            deployments=deployments,
            chains=chains_now,
            truth=installed.truth.read(),
            cluster_writes=installed.truth.writes,
            failing=self.targets.failing(),
            broken_commits=self.targets.broken_commits(),
            broken={name for name, head in self._heads.items() if head.is_broken},
            running_programs=self.targets.running_programs(),
            requests=requests,
            commands=commands,
            previews=previews,
            settings={
                name: saved_setting(each.platform_provider, each.git_path.config_filename)
                for name, each in registered.items()
            },
            revisions=self.targets.revisions_by_commit(),
            cluster_settings=await asyncio.to_thread(self.targets.cluster_settings),
            events=events,
            event_commits=commits,
            notifications=[*_notifications(installed)],
            faults=self.injector.faults,
            interruptions={
                piped.id: self.injector.interruptions(piped) for piped in installed.pipeds
            },
            lease_grants=self.injector.lease_grants.times,
            first_seen=self.observer.first_seen,
            completed_at=self.observer.completed_at,
            completed_stages=self.observer.completed_stages,
            reported_created=dict(self.reported.created),
            reported_completed=dict(self.reported.completed),
            reported_stages=dict(self.reported.stages),
            read_logs=reading.read,
            unread_logs=reading.unread,
            logs=reading.logs,
            seen_logs=seen,
            acknowledged_logs=acknowledged,
            tracebacks=self._tracebacks(),
            resources=[
                (name, self.first_resources[name], now)
                for name, now in self.used().items()
                if name in self.first_resources
            ],
        )

    async def _read_logs(self, deployments: Sequence[Deployment]) -> LogReading:
        """Reads the logs of deployments that are new, and of some that were right before."""
        scripts = {
            each.name
            for each in self.installed.applications.values()
            if each.platform is Platform.SCRIPT
        }
        known = set(self._checked_logs)
        new = [d.id for d in deployments if d.application_name in scripts and d.id not in known]
        present = [id_ for id_ in self._checked_logs if id_ in self.reader.deployments]
        chance = random.Random(len(self._checked_logs))
        again = chance.sample(present, min(_LOGS_AGAIN, len(present)))
        reading = LogReading()
        for id_ in (*new, *again):
            for _ in range(_LOG_ATTEMPTS):
                with suppress(*UNANSWERED):
                    reading.logs |= await self.reader.logs(id_)
                    reading.read.add(id_)
                    break
                await asyncio.sleep(_POLL_SECONDS)
            else:
                reading.unread.add(id_)
        self._checked_logs += [id_ for id_ in new if id_ in reading.read]
        return reading

    def _event_commits(self) -> dict[str, int]:
        self.installed.read_contents()
        return event_commits(self.installed.messages, self.installed.parents)

    def _tracebacks(self) -> list[str]:
        """The tracebacks that programs of this version have logged since the last check."""
        releases = self.installed.options.releases.values()
        earlier = [str(release.sources) for release in releases if release.sources]
        found: list[str] = []
        for program in (*self.installed.programs, *self.installed.duplicates):
            file = program.log_file
            with file.open("rb") as log:
                log.seek(self._log_offsets.get(file, 0))
                content = log.read()
                self._log_offsets[file] = log.tell()
            for match in _TRACEBACK.finditer(content):
                begin = content.rfind(b"\n", 0, match.start()) + 1
                text = content[begin : match.end() + 1500].decode(errors="replace")
                if not any(sources in text for sources in earlier):
                    found.append(f"{program.name}: {text}")
        return found

    def used(self) -> dict[str, Resources]:
        """What the replicas and the pipeds themselves use."""
        pids = {replica.name: replica.pid for replica in self.installed.replicas}
        pids |= {piped.program.name: piped.pid for piped in self.installed.pipeds}
        used = {name: used_by(pid) for name, pid in pids.items()}
        return {name: resources for name, resources in used.items() if resources is not None}


def _unanswered(error: Exception) -> Violation:
    text = f"the control plane does not answer: {type(error).__name__} {str(error)[:300]}"
    return Violation("nothing is stuck", text)


def _notifications(installed: WholeInstallation) -> Iterable[Notification]:
    offset = time.time() - time.monotonic()
    for delivery in tuple(installed.hooks.at(HOOK)):
        metadata = delivery.json["Metadata"]
        deployment, stage = (
            (metadata.get(of) or {}).get("id", "") for of in ("deployment", "stage")
        )
        type_ = EventType(delivery.json["Type"]).name
        yield Notification(delivery.at + offset, deployment, type_, stage)


@asynccontextmanager
async def open_trial(
    directory: Path, options: Options, *, first_seconds: float | None = None
) -> AsyncGenerator[Trial, None]:
    """An installation on which everything has been deployed once, within so many seconds.

    By default that is long enough for all applications on a machine that is busy with other things.
    """
    history = History.begin(directory / "history.jsonl")
    async with open_whole_installation(directory, options) as installed:
        trial = Trial(
            installed,
            history,
            Workload(installed, history),
            Injector(installed, history),
            Reader(installed),
        )
        installed.calls.on_response = trial.take_response
        await trial.settle_first(first_seconds or patient(CALM_SECONDS))
        yield trial
