# SPDX-License-Identifier: Apache-2.0
"""What users and operators do to an installation: every operation of a schedule is a method here."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from subprocess import CalledProcessError
from typing import Any

import grpc
import grpc.aio
import httpx2

from faults.applications import CONFIG, FaultyApplication, Platform, Revision
from faults.evidence import Requested, saved_setting
from faults.history import History
from faults.program import Program, Release
from faults.registration import PEOPLE, REPOSITORY
from faults.schedule import Step
from faults.whole_installation import VERSIONS, FaultyPiped, WholeInstallation
from pipecd.model.deployment import DeploymentStatus, ManualOperation, StageStatus
from pipecd.model.errors import Unavailable
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import web_pb2

UNANSWERED = (grpc.aio.AioRpcError, Unavailable, ConnectionError, httpx2.HTTPError, TimeoutError)
_TIMEOUT = 10.0
# Codes of an answer that says that nothing was done.
_REFUSED = frozenset({
    grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED,
})  # fmt: skip
_FLOOD_LINES = 5000
# The time of a commit whose author has a wrong clock, or rebased it.
_LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC).timestamp()


@dataclass
class Workload:
    """Carries out the operations and records what was acknowledged."""

    installed: WholeInstallation
    history: History
    requests: list[Requested] = field(default_factory=list[Requested])
    revisions: dict[str, Revision] = field(default_factory=dict[str, Revision])
    """The revisions that users pushed, by their nonce."""
    added: list[str] = field(default_factory=list[str])
    disabled: set[str] = field(default_factory=set[str])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    _upgrades: int = 0

    async def run(self, step: Step) -> None:
        """Carries out an operation; without an answer its outcome is unknown."""
        self.counts[step.name] = self.counts.get(step.name, 0) + 1
        lane = str(step.options.get("application") or step.options.get("piped", "users"))
        try:
            await getattr(self, step.name)(**step.options)
        except UNANSWERED as e:
            self.history.add(lane, f"{step.name}: no answer ({_brief(e)})", "operation")

    @asynccontextmanager
    async def _requesting(self, request: Requested) -> AsyncGenerator[list[str], None]:
        """Records a request: with the id that is put into the list, or as one without an answer."""
        ids: list[str] = []
        request = replace(request, at=time.time())
        try:
            yield ids
        except grpc.aio.AioRpcError as e:
            if e.code() in _REFUSED:
                text = f"{request.kind}: refused ({e.details()})"
                self.history.add(request.application or "users", text, "operation")
                return
            self.requests.append(request)
            raise
        except UNANSWERED:
            self.requests.append(request)
            raise
        done = replace(request, id=ids[0] if ids else "", answered_at=time.time())
        self.requests.append(done)
        text = f"{request.kind} {request.value or request.person} acknowledged"
        self.history.add(request.application or "users", text, "operation", id=done.id)

    def _next(self, **changes: Any) -> Revision:
        revision = replace(Revision(nonce=time.time_ns()), **changes)
        self.revisions[str(revision.nonce)] = revision
        return revision

    # Git

    async def push(
        self, application: str, *, seconds: float, lines: int, fails: bool, is_old: bool
    ) -> None:
        revision = self._next(seconds=seconds, lines=lines, fails=fails)
        at = _LONG_AGO if is_old else None
        commit = await self.installed.push({application: revision}, at=at)
        fails_text = " which fails" if fails else ""
        self.history.add(application, f"push {commit[:7]}{fails_text}", "operation")

    async def burst(self, *, applications: list[str], count: int) -> None:
        for _ in range(count):
            revisions = {name: self._next() for name in applications}
            commit = await self.installed.push(revisions)
            self.history.add("git", f"push {commit[:7]} of {', '.join(revisions)}", "operation")

    async def flood(self, application: str) -> None:
        """A revision whose script prints thousands of lines."""
        revision = self._next(lines=_FLOOD_LINES)
        commit = await self.installed.push({application: revision})
        self.history.add(application, f"push {commit[:7]} with many lines", "operation")

    async def break_config(self, application: str) -> None:
        revision = self._next(is_broken=True)
        commit = await self.installed.push({application: revision})
        self.history.add(application, f"push {commit[:7]} with a broken file", "operation")

    async def force_push(self) -> None:
        with suppress(CalledProcessError):
            async with self.installed.git_lock:
                await asyncio.to_thread(self.installed.origin.force_push, "HEAD~2")
            self.history.add("git", "force push of the commit before the last two", "operation")

    async def revert(self) -> None:
        with suppress(CalledProcessError):
            async with self.installed.git_lock:
                await asyncio.to_thread(self.installed.origin.revert)
            self.history.add("git", "revert of the last commit", "operation")

    # Commands

    async def sync(self, application: str, *, replica: int) -> None:
        id_ = self.installed.application_ids[application]
        request = pb.SyncApplicationRequest(application_id=id_)
        async with (
            self._requesting(Requested("sync", application)) as ids,
            self.installed.api(replica) as api,
        ):
            ids.append((await api.SyncApplication(request, timeout=_TIMEOUT)).command_id)

    async def cancel(self, application: str, *, kind: str) -> None:
        deployment = await self.open_deployment(application)
        if deployment is None:
            return
        request = web_pb2.CancelDeploymentRequest(deployment_id=deployment.id)
        if kind:
            setattr(request, kind, True)
        requested = Requested("cancel", application, deployment=deployment.id, value=kind)
        async with self._requesting(requested) as ids, self.installed.web() as web:
            answer = await web.CancelDeployment(
                request, metadata=self.installed.cookie(), timeout=_TIMEOUT
            )
            ids.append(answer.command_id)

    async def approve(self, application: str, *, person: str, count: int) -> None:
        """Approves once, or twice at the same moment at different replicas."""
        deployment, stage = await self._waiting(application, ManualOperation.APPROVE)
        if deployment is None or stage is None:
            return
        async with asyncio.TaskGroup() as tasks:
            for number in range(count):
                replica = number % len(self.installed.replicas)
                tasks.create_task(self.approve_stage(deployment, stage, person, replica))

    async def approve_stage(
        self, deployment: Deployment, stage: PipelineStage, person: str, replica: int = 0
    ) -> None:
        request = web_pb2.ApproveStageRequest(deployment_id=deployment.id, stage_id=stage.id)
        requested = Requested(
            "approve",
            deployment.application_name,
            person=person,
            deployment=deployment.id,
            stage=stage.id,
        )
        with suppress(*UNANSWERED):
            async with self._requesting(requested) as ids, self.installed.web(replica) as web:
                answer = await web.ApproveStage(
                    request, metadata=self.installed.cookie(person), timeout=_TIMEOUT
                )
                ids.append(answer.command_id)

    async def reject(self, application: str, *, person: str) -> None:
        deployment, stage = await self._waiting(application, ManualOperation.APPROVE)
        if deployment is not None and stage is not None:
            # It has no command that a user could ask about.
            self.requests.append(
                Requested("reject", application, deployment=deployment.id, stage=stage.id)
            )
            await self.installed.reject(deployment.id, stage.id, person)
            self.history.add(application, f"rejected by {person}", "operation")

    async def skip(self, application: str) -> None:
        deployment, stage = await self._waiting(application, ManualOperation.SKIP)
        if deployment is None or stage is None:
            return
        request = web_pb2.SkipStageRequest(deployment_id=deployment.id, stage_id=stage.id)
        requested = Requested("skip", application, deployment=deployment.id, stage=stage.id)
        async with self._requesting(requested) as ids, self.installed.web() as web:
            answer = await web.SkipStage(
                request, metadata=self.installed.cookie(), timeout=_TIMEOUT
            )
            ids.append(answer.command_id)

    async def register_event(self, application: str) -> None:
        value = f"v{time.time_ns()}"
        event = self.installed.applications[application].event
        request = pb.RegisterEventRequest(name=event, data=value)
        requested = Requested("event", application, value=value)
        async with self._requesting(requested) as ids, self.installed.api() as api:
            ids.append((await api.RegisterEvent(request, timeout=_TIMEOUT)).event_id)

    async def preview(self, application: str) -> None:
        installed = self.installed
        branch = f"preview-{time.time_ns()}"
        async with installed.git_lock:
            revision = Revision(nonce=time.time_ns())
            files = installed.targets.files(installed.applications[application], revision)
            commit = await asyncio.to_thread(
                installed.origin.commit, files, "a proposal", branch=branch
            )
        request = pb.RequestPlanPreviewRequest(
            repo_remote_url=installed.origin.remote,
            head_branch=branch,
            head_commit=commit,
            base_branch="main",
            timeout=30,
        )
        at = time.time()
        async with installed.api() as api:
            commands = (await api.RequestPlanPreview(request, timeout=_TIMEOUT)).commands
        nonce = str(revision.nonce)
        for command in commands:
            self.requests.append(Requested("preview", application, id=command, value=nonce, at=at))
        self.history.add(application, f"preview of {commit[:7]} requested", "operation")

    # Applications

    async def add_application(self, piped: int) -> None:
        installed = self.installed
        name = f"x{len(self.added):02}-{time.time_ns() % 100000}"
        application = FaultyApplication(name, Platform.SCRIPT, piped)
        installed.applications[name] = application
        await installed.push({name: self._next()})
        path = ApplicationGitPath(
            repo=ApplicationGitRepository(id=REPOSITORY),
            path=name,
            config_filename=CONFIG,
        )
        request = pb.AddApplicationRequest(
            name=name, piped_id=installed.pipeds[piped].id, git_path=path, platform_provider="p"
        )
        try:
            async with installed.api() as api:
                added = await api.AddApplication(request, timeout=_TIMEOUT)
        except UNANSWERED:
            # It may be registered nevertheless; nothing is expected of it.
            del installed.applications[name]
            raise
        installed.application_ids[name] = added.application_id
        self.added.append(name)
        self.history.add(name, "application added", "operation")

    async def edit_application(self, application: str, *, config: str = CONFIG) -> None:
        """Saves another configuration file, from which the next deployments come.

        For scripts also a platform provider, which is a name that only users see; the other platforms
        have deploy targets.
        """
        installed = self.installed
        is_script = installed.applications[application].platform is Platform.SCRIPT
        provider = f"p{time.time_ns()}" if is_script else ""
        request = pb.UpdateApplicationRequest(
            application_id=installed.application_ids[application],
            piped_id=installed.pipeds[installed.applications[application].piped].id,
            git_path=ApplicationGitPath(
                repo=ApplicationGitRepository(id=REPOSITORY),
                path=application,
                config_filename=config,
            ),
            platform_provider=provider,
        )
        requested = Requested("edit", application, value=saved_setting(provider, config))
        async with self._requesting(requested) as ids, installed.api() as api:
            answer = await api.UpdateApplication(request, timeout=_TIMEOUT)
            ids.append(answer.application_id)

    async def disable_application(self, application: str) -> None:
        """Disables an application for a second."""
        id_ = self.installed.application_ids[application]
        self.disabled.add(application)
        self.requests.append(Requested("disable", application, at=time.time()))
        async with self.installed.api() as api:
            request = pb.DisableApplicationRequest(application_id=id_)
            await api.DisableApplication(request, timeout=_TIMEOUT)
        self.history.add(application, "application disabled", "operation")
        await asyncio.sleep(1)
        await self.enable(application)

    async def enable(self, application: str) -> None:
        id_ = self.installed.application_ids[application]
        async with self.installed.api() as api:
            request = pb.EnableApplicationRequest(application_id=id_)
            await api.EnableApplication(request, timeout=_TIMEOUT)
        self.disabled.discard(application)
        self.history.add(application, "application enabled", "operation")

    async def delete_application(self) -> None:
        """Deletes an application that was added before."""
        if not self.added:
            return
        name = self.added.pop(0)
        del self.installed.applications[name]
        async with self.installed.api() as api:
            id_ = self.installed.application_ids[name]
            request = pb.DeleteApplicationRequest(application_id=id_)
            await api.DeleteApplication(request, timeout=_TIMEOUT)
        self.history.add(name, "application deleted", "operation")

    # Operators

    async def rotate_key(self, piped: int) -> None:
        """Adds a key, restarts the piped with it, and deletes the old one."""
        faulty, cookie = self.installed.pipeds[piped], self.installed.cookie()
        async with faulty.program.lock:
            async with self.installed.web() as web:
                request = web_pb2.RecreatePipedKeyRequest(id=faulty.id)
                answer = await web.RecreatePipedKey(request, metadata=cookie, timeout=_TIMEOUT)
            faulty.key = answer.key
            await self._restart(faulty)
        async with self.installed.web() as web:
            deletion = web_pb2.DeleteOldPipedKeysRequest(piped_id=faulty.id)
            await web.DeleteOldPipedKeys(deletion, metadata=cookie, timeout=_TIMEOUT)
        self.history.add(faulty.program.name, "key rotated", "operation")

    async def restart_piped(self, piped: int) -> None:
        faulty = self.installed.pipeds[piped]
        async with faulty.program.lock:
            await self._restart(faulty)
        self.history.add(faulty.program.name, "restarted by an operator", "operation")

    async def _restart(self, faulty: FaultyPiped) -> None:
        await faulty.program.stop()
        await self.installed.start_piped(faulty)

    async def upgrade_piped(self) -> None:
        """Sets another desired version for the piped that a launcher runs."""
        faulty = next((piped for piped in self.installed.pipeds if piped.is_launched), None)
        if faulty is None:
            return
        self._upgrades += 1
        version = VERSIONS[self._upgrades % len(VERSIONS)]
        request = web_pb2.UpdatePipedDesiredVersionRequest(version=version, piped_ids=[faulty.id])
        async with self.installed.web() as web:
            await web.UpdatePipedDesiredVersion(
                request, metadata=self.installed.cookie(), timeout=_TIMEOUT
            )
        self.history.add(faulty.program.name, f"desired version {version}", "operation")

    async def upgrade_control_plane(self) -> None:
        """Replaces the replicas one after the other, by the next release if there are several."""
        name, release = next_release(self.installed.options.releases, self.installed.replicas[0])
        for number, replica in enumerate(self.installed.replicas):
            async with replica.lock:
                await replica.stop()
                replica.release = release
                await replica.start()
            self.history.add(replica.name, f"replaced by {name}", "operation")
            if number + 1 < len(self.installed.replicas):
                await asyncio.sleep(2)

    async def install(self, program: str, *, release: str) -> None:
        """Replaces a replica or a piped by another version."""
        replaced = next(each for each in self.installed.programs if each.name == program)
        async with replaced.lock:
            await replaced.stop()
            replaced.release = self.installed.options.releases[release]
            await replaced.start()
        self.history.add(program, f"{release} version installed", "operation")

    # What is asked about

    async def open_deployment(self, application: str) -> Deployment | None:
        """A deployment of the application that is not completed."""
        request = pb.ListDeploymentsRequest(
            application_ids=[self.installed.application_ids[application]], limit=5
        )
        async with self.installed.api() as api:
            listed = (await api.ListDeployments(request, timeout=_TIMEOUT)).deployments
        return next((d for d in listed if not DeploymentStatus(d.status).is_completed), None)

    async def _waiting(
        self, application: str, operation: ManualOperation
    ) -> tuple[Deployment | None, PipelineStage | None]:
        deployment = await self.open_deployment(application)
        if deployment is None:
            return None, None
        return deployment, waiting_stage(deployment, operation)


def next_release(releases: Mapping[str, Release], program: Program) -> tuple[str, Release]:
    """The name of the release that comes after that of a program, and the release."""
    names = [*releases]
    present = next((n for n, name in enumerate(names) if releases[name] == program.release), -1)
    if not names:
        return "the same version", program.release
    name = names[(present + 1) % len(names)]
    return f"the {name} version", releases[name]


def waiting_stage(deployment: Deployment, operation: ManualOperation) -> PipelineStage | None:
    """The running stage that a user may approve or skip."""
    running = (s for s in deployment.stages if StageStatus(s.status) is StageStatus.RUNNING)
    return next((stage for stage in running if stage.available_operation == operation), None)


def _brief(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {(error.details() or '')[:80]}"
    return f"{type(error).__name__}: {str(error)[:80]}"


APPROVING = PEOPLE[:2]
"""Who approves what still waits when everything is healed."""
