# SPDX-License-Identifier: Apache-2.0
"""One installation under a schedule: it is used and broken for a while, healed, and checked."""

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.applications import CONFIG, FaultyApplication, Platform, Shape
from faults.history import Evidence, History, Notification, Requested, Resources, read_truth
from faults.injection import RECORDED, Injector
from faults.model import Head, StatusObserver, SyncState, Violation, check, unsettled
from faults.schedule import Scene, Step
from faults.whole_installation import (
    HOOK,
    Options,
    WholeInstallation,
    open_whole_installation,
)
from faults.workload import APPROVING, UNANSWERED, Workload, waiting_stage
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus, ManualOperation
from pipecd.piped.notify.event import EventType
from pipecd.proto.model import command_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import web_pb2

HEALED_SECONDS = 60.0
# The first deployments of all applications may take longer on a busy machine.
CALM_SECONDS = 240.0
# After it has settled, nothing may change any more.
SETTLED_SECONDS = 2.0
# What the programs of an installation cause themselves.
_LOAD_PER_CORE = 4.0
_POLL_SECONDS = 0.25
_NEWEST = 60
_EVENTS_PAGE = 1000
_CALL_SECONDS = 15.0
_TRACEBACK = re.compile(rb"Traceback \(most recent call last\)")


@dataclass
class Trial:
    """Runs schedules on one installation and collects the violations."""

    installed: WholeInstallation
    history: History
    workload: Workload
    injector: Injector
    observer: StatusObserver = field(default_factory=StatusObserver)
    violations: list[Violation] = field(default_factory=list[Violation])
    recoveries: list[float] = field(default_factory=list[float])
    deployments: list[Deployment] = field(default_factory=list[Deployment])
    seen_logs: dict[tuple[str, str], list[str]] = field(
        default_factory=dict[tuple[str, str], list[str]]
    )
    first_resources: dict[int, Resources] = field(default_factory=dict[int, Resources])
    _checked_logs: set[str] = field(default_factory=set[str])
    _log_offsets: dict[Path, int] = field(default_factory=dict[Path, int])
    _open_requests: set[str] = field(default_factory=set[str])

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

    async def settle_first(self) -> None:
        """Waits until every application is deployed for the first time."""
        await self._observed(self._settle(CALM_SECONDS))
        self.recoveries.clear()

    async def run(self, steps: Sequence[Step]) -> list[Violation]:
        """Carries out a schedule, heals and checks; returns the violations."""
        self.installed.calls.recording = set(RECORDED)
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
        await self._settle(healed_seconds())
        await self._check()

    # Observing

    async def _observe(self) -> None:
        """Reads the newest deployments again and again, and sometimes the log of one that runs."""
        while True:
            for replica in range(len(self.installed.replicas)):
                with suppress(*UNANSWERED):
                    await self._read_deployments(replica, limit=_NEWEST)
                    await self._read_running_logs(replica)
                    break
            await asyncio.sleep(_POLL_SECONDS)

    async def _read_deployments(self, replica: int = 0, *, limit: int = 0) -> list[Deployment]:
        async with self.installed.api(replica) as api:
            request = pb.ListDeploymentsRequest(limit=limit)
            answer = await api.ListDeployments(request, timeout=_CALL_SECONDS)
        listed = list(answer.deployments)
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
        return listed

    async def _read_running_logs(self, replica: int) -> None:
        running = [
            id for id, s in self.observer.deployments.items() if s is DeploymentStatus.RUNNING
        ]
        if running:
            self.seen_logs.update(await self._logs(running[-1], replica))

    async def _logs(self, deployment: str, replica: int = 0) -> dict[tuple[str, str], list[str]]:
        async with self.installed.api(replica) as api:
            request = pb.ListStageLogsRequest(deployment_id=deployment)
            answer = await api.ListStageLogs(request, timeout=_CALL_SECONDS)
        return {
            (deployment, stage): [block.log for block in log.blocks]
            for stage, log in answer.stage_logs.items()
        }

    def _report(self, violations: Iterable[Violation]) -> None:
        known = {str(violation) for violation in self.violations}
        for violation in violations:
            if str(violation) not in known:
                known.add(str(violation))
                self.violations.append(violation)
                self.history.add(violation.lane or "users", str(violation), "violation")

    # Settling

    async def _settle(self, within: float) -> None:
        """Waits until nothing is left, and stays so; what is left after the time is a violation."""
        started, settled_at = time.monotonic(), 0.0
        while True:
            left, now = await self._left(), time.monotonic()
            if left and settled_at:
                settled_at, after = 0.0, "after everything had settled: "
                if now - started > within:
                    self._report(Violation(v.rule, f"{after}{v.text}", v.lane) for v in left)
                    break
            elif left:
                if now - started > within:
                    self._report(left)
                    break
            elif not settled_at:
                settled_at = now
            elif now - settled_at >= SETTLED_SECONDS:
                now = settled_at
                break
            await asyncio.sleep(_POLL_SECONDS)
        self.recoveries.append(now - started)
        self.history.add("network", f"settled after {now - started:.1f} s", "harness")
        await self._measure_first()

    async def _left(self) -> list[Violation]:
        await self.injector.start_ended()
        try:
            for name in tuple(self.workload.disabled):
                await self.workload.enable(name)
            await self._approve_all()
            self.deployments = await self._read_deployments()
            applications = await self._applications()
            unhandled = await self._unhandled()
        except UNANSWERED as e:
            text = f"the control plane does not answer: {type(e).__name__} {str(e)[:300]}"
            return [Violation("nothing is stuck", text)]
        heads = await asyncio.to_thread(self._heads)
        left = list(unhandled)
        for name, application in tuple(self.installed.applications.items()):
            left += self._left_of(application, heads[name], applications.get(name))
        return left

    def _left_of(
        self, application: FaultyApplication, head: Head, registered: Application | None
    ) -> list[Violation]:
        name = application.name
        if registered is None:
            text = f"{name} is not registered any more"
            return [Violation("nothing acknowledged is lost", text, name)]
        state = registered.sync_state
        sync = SyncState(SyncStatus(state.status), state.short_reason, registered.deploying)
        contents = {commit: of.get(name, "") for commit, of in self.installed.contents.items()}
        if application.shape is Shape.FOLLOWER:
            # Commits do not trigger it; nothing of it may be left open.
            head = Head(head.content, is_broken=head.is_broken)
            contents |= dict.fromkeys(contents, head.content)
        return unsettled(application, head, self.deployments, contents, sync=sync)

    async def _approve_all(self) -> None:
        for deployment in self.deployments:
            if DeploymentStatus(deployment.status) is not DeploymentStatus.RUNNING:
                continue
            if stage := waiting_stage(deployment, ManualOperation.APPROVE):
                for person in APPROVING:
                    request = Requested(
                        "approve", deployment.application_name, person=person,
                        deployment=deployment.id, stage=stage.id,
                    )  # fmt: skip
                    if not any(
                        r.stage == stage.id and r.person == person and r.is_acknowledged
                        for r in self.workload.requests
                    ):
                        await self.workload.approve_stage(deployment, stage, request.person)

    async def _applications(self) -> dict[str, Application]:
        async with self.installed.api() as api:
            answer = await api.ListApplications(pb.ListApplicationsRequest(), timeout=_CALL_SECONDS)
        return {application.name: application for application in answer.applications}

    async def _unhandled(self) -> list[Violation]:
        """The commands and events that are not handled yet."""
        left: list[Violation] = []
        for request in self.workload.requests:
            if not request.id or request.id in self._open_requests or request.kind == "event":
                continue
            if await self._is_handled(request.id):
                self._open_requests.add(request.id)
            else:
                text = f"{request.kind} {request.id} is not handled"
                left.append(Violation("nothing is stuck", text, request.application))
        if any(request.kind == "event" for request in self.workload.requests):
            for event in (await self._events()).values():
                if not event.status:
                    left.append(Violation("nothing is stuck", f"event {event.id} is not handled"))
        return left

    async def _command(self, id_: str) -> Command:
        async with self.installed.api() as api:
            request = pb.GetCommandRequest(command_id=id_)
            return (await api.GetCommand(request, timeout=_CALL_SECONDS)).command

    async def _is_handled(self, id_: str) -> bool:
        return (await self._command(id_)).status != command_pb2.COMMAND_NOT_HANDLED_YET

    async def _events(self) -> dict[str, Event]:
        async with self.installed.web() as web:
            answer = await web.ListEvents(
                web_pb2.ListEventsRequest(page_size=_EVENTS_PAGE),
                metadata=self.installed.cookie(),
                timeout=_CALL_SECONDS,
            )
        return {event.id: event for event in answer.events}

    # What runs

    def _heads(self) -> dict[str, Head]:
        """The head of each application and what its target says, while nobody pushes."""
        origin, truth = self.installed.origin, read_truth(self.installed.targets.truth)
        self.installed.read_contents()
        contents = self.installed.contents
        head = contents[origin.git("rev-parse", "HEAD")]
        heads: dict[str, Head] = {}
        for name, application in tuple(self.installed.applications.items()):
            text = (origin.path / name / CONFIG).read_text() if name in head else ""
            if name not in head:
                # A force push removed its files: its configuration is missing.
                heads[name] = Head("", is_broken=True)
                continue
            content, is_broken = head[name], text.endswith("}]\n")
            heads[name] = Head(content, is_broken=is_broken)
            match application.platform:
                case Platform.SCRIPT:
                    runs = [t for t in truth if t.application == name and t.what == "begin" and not t.label.startswith("undo")]  # fmt: skip
                    if runs:
                        ends = {t.pid for t in truth if t.what == "end" and t.application == name}
                        running = contents.get(runs[-1].commit, {}).get(name, "")
                        heads[name] = Head(content, is_broken, running, runs[-1].pid in ends)
                case Platform.PROCESS:
                    starts = [t for t in truth if t.application == name and t.what == "start"]
                    if starts:
                        running = contents.get(starts[-1].commit, {}).get(name, "")
                        heads[name] = Head(content, is_broken, running)
                case Platform.TERRAFORM | Platform.KUBERNETES:
                    nonce = self._nonce(application)
                    is_head = nonce is not None and f"# {nonce}\n" in text
                    heads[name] = Head(content, is_broken, content if is_head else "other")
        return heads

    def _nonce(self, application: FaultyApplication) -> str | None:
        """The revision that runs, by the state of Terraform or the objects of the cluster."""
        name = application.name
        with suppress(OSError, ValueError, LookupError):
            if application.platform is Platform.TERRAFORM:
                file = self.installed.directory / "states" / f"{name}.tfstate"
                (resource,) = json.loads(file.read_text())["resources"]
                return str(resource["instances"][0]["attributes"]["input"]["value"])
            assert self.installed.kubernetes is not None
            namespace = self.installed.targets.namespace
            path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
            return str(self.installed.kubernetes.ask("GET", path)["data"]["revision"])
        return None

    # Checking

    async def _check(self) -> None:
        self._report(check(await self._evidence()))

    async def _evidence(self) -> Evidence:
        installed, requests = self.installed, self.workload.requests
        logs: dict[tuple[str, str], list[str]] = {}
        scripts = {a.name for a in installed.applications.values() if a.platform is Platform.SCRIPT}
        for deployment in self.deployments:
            is_new = deployment.id not in self._checked_logs
            if is_new and deployment.application_name in scripts:
                self._checked_logs.add(deployment.id)
                with suppress(*UNANSWERED):
                    logs |= await self._logs(deployment.id)
        commands = {r.id: await self._command(r.id) for r in requests if r.id and r.kind != "event"}
        return Evidence(
            applications=tuple(installed.applications.values()),
            deployments=self.deployments,
            truth=read_truth(installed.targets.truth),
            requests=requests,
            commands=commands,
            events=await self._events(),
            event_commits=await asyncio.to_thread(self._event_commits),
            is_history_rewritten=self.injector.is_repository_recreated,
            notifications=[*_notifications(installed)],
            lost_workspaces=frozenset(self.injector.lost_workspaces),
            interruptions={
                piped.id: self.injector.interruptions(piped)
                for piped in installed.pipeds
                if not piped.is_launched
            }
            | {
                # The launcher restarts its piped by itself.
                piped.id: [line.at for line in read_truth(installed.targets.truth)]
                for piped in installed.pipeds
                if piped.is_launched
            },
            completed_at=self.observer.completed_at,
            completed_stages=self.observer.completed_stages,
            logs=logs,
            seen_logs=self.seen_logs,
            tracebacks=self._tracebacks(),
            resources=self._resources(),
        )

    def _event_commits(self) -> dict[str, int]:
        subjects = self.installed.origin.git("log", "--all", "--reflog", "--format=%s").splitlines()
        counts: dict[str, int] = {}
        for subject in subjects:
            if subject.startswith("event "):
                value = subject.removeprefix("event ")
                counts[value] = counts.get(value, 0) + 1
        return counts

    def _tracebacks(self) -> list[str]:
        """The tracebacks that programs have logged since the last check."""
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
                found.append(f"{program.name}: {text}")
        return found

    async def _measure_first(self) -> None:
        for program in self.installed.programs:
            if program.pid not in self.first_resources and (used := _used(program.pid)):
                self.first_resources[program.pid] = used

    def _resources(self) -> list[tuple[str, Resources, Resources]]:
        rows: list[tuple[str, Resources, Resources]] = []
        for program in self.installed.programs:
            first, now = self.first_resources.get(program.pid), _used(program.pid)
            if first is not None and now is not None:
                rows.append((program.name, first, now))
        return rows


def healed_seconds() -> float:
    """The time to recover in: longer while other work keeps the processors busy."""
    overload = os.getloadavg()[0] / (_LOAD_PER_CORE * (os.cpu_count() or 1))
    return HEALED_SECONDS * max(1.0, overload)


def _notifications(installed: WholeInstallation) -> Iterable[Notification]:
    offset = time.time() - time.monotonic()
    for delivery in tuple(installed.hooks.at(HOOK)):
        metadata = delivery.json["Metadata"]
        deployment = (metadata.get("deployment") or {}).get("id", "")
        yield Notification(delivery.at + offset, deployment, EventType(delivery.json["Type"]).name)


def _used(pid: int) -> Resources | None:
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        memory = int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024
        threads = int(re.findall(r"Threads:\s+(\d+)", status)[0])
        return Resources(pid, memory, threads, len([*Path(f"/proc/{pid}/fd").iterdir()]))
    return None


@asynccontextmanager
async def open_trial(directory: Path, options: Options) -> AsyncGenerator[Trial, None]:
    """An installation on which everything has been deployed once."""
    history = History.begin(directory / "history.jsonl")
    async with open_whole_installation(directory, options) as installed:
        trial = Trial(
            installed, history, Workload(installed, history), Injector(installed, history)
        )
        await trial.settle_first()
        yield trial
