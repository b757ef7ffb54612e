# SPDX-License-Identifier: Apache-2.0
"""One pass over the applications of a repository at one head commit.

It decides for each of them whether there is a reason to deploy: a command, a new commit, or drift.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

import structlog

from pipecd.config.application import ApplicationSpec, NotificationSpec, config_path
from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror
from pipecd.git.validate import validate_hash
from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now, from_unix
from pipecd.model.command import CHAIN_COMMIT_KEY, CommandKind
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import NotFound, PipecdError, Unauthenticated, Unavailable
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.notify.event import EventType, NotificationEvent, mentions_in
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.plan import reason
from pipecd.piped.plan.stages import TargetsByPlugin, lacks_targets
from pipecd.piped.planning.baseline import Baselines, CommitTrigger, invalid_config
from pipecd.piped.planning.deployment import Cause, commit_cause, commit_message, drift_cause
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs, ConfigResult
from pipecd.piped.trigger.commands import SyncCommands, command_cause
from pipecd.piped.trigger.creator import DeploymentCreator
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.notification_pb2 import NotificationEventDeploymentTriggerFailed
from pipecd.proto.service.piped_pb2 import GetDeploymentRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_TRIGGER_FAILED = EventType.DEPLOYMENT_TRIGGER_FAILED
# Applications that are evaluated at the same time; each waits for the control plane.
_CONCURRENT_EVALUATIONS = 32
# The API sets the deploy targets of a new application with a second call.
_NEW_APPLICATION = timedelta(seconds=10)


class TriggerFailures:
    """Notifies once about each reason why an application is not triggered, while it lasts."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier
        self._notified: dict[str, str] = {}
        self._logged: dict[str, tuple[str, str]] = {}

    def decided(
        self,
        application: Application,
        commit: Commit,
        error: str,
        mentions: NotificationSpec | None,
    ) -> None:
        """An application was evaluated; `error` is what is wrong with its configuration."""
        self._logged.pop(application.id, None)
        self._notify(application, commit, error, mentions)

    def failed(
        self,
        application: Application,
        commit: Commit,
        error: PipecdError,
        mentions: NotificationSpec | None,
    ) -> None:
        """An application could not be evaluated; each commit and reason is logged once."""
        text = str(error)
        is_temporary = isinstance(error, Unavailable | Unauthenticated)
        if self._logged.get(application.id) != (commit.hash, text):
            self._logged[application.id] = (commit.hash, text)
            log.warning(
                "application not triggered, retrying"
                if is_temporary
                else "application not triggered",
                application=application.id,
                application_name=application.name,
                commit=commit.hash,
                error=text,
            )
        if not is_temporary:
            self._notify(application, commit, text, mentions)

    def _notify(
        self,
        application: Application,
        commit: Commit,
        error: str,
        mentions: NotificationSpec | None,
    ) -> None:
        # What an earlier process notified about is in the control plane.
        state = application.sync_state
        stored = state.reason if state.status == SyncStatus.INVALID_CONFIG else ""
        before = self._notified.get(application.id, stored)
        self._notified[application.id] = error
        if not error or error == before:
            return
        event = NotificationEventDeploymentTriggerFailed(
            application=application,
            commit_hash=commit.hash,
            commit_message=commit_message(commit),
            reason=error,
        )
        if mentions is not None:
            mentions_in(mentions, _TRIGGER_FAILED).add_to(event)
        key = f"{_TRIGGER_FAILED.name}/{application.id}/{commit.hash}/{error}"
        self._notifier.notify(NotificationEvent(_TRIGGER_FAILED, event, key=key))


@dataclass(frozen=True)
class TriggerContext:
    """What every pass needs."""

    api: ControlPlaneClient
    configs: ApplicationConfigs
    commands: SyncCommands
    baselines: Baselines
    creator: DeploymentCreator
    failures: TriggerFailures
    states: SyncStates
    targets: TargetsByPlugin
    now: Now


@dataclass
class TriggerPass:
    """One pass over the applications of a repository at one head commit."""

    context: TriggerContext
    mirror: Mirror
    head: Commit

    def __post_init__(self) -> None:
        self._commit_trigger = CommitTrigger(self.context.baselines, self.mirror, self.head.hash)

    async def run(self, applications: tuple[Application, ...]) -> bool:
        """Evaluates every application; returns whether a decision was possible for all of them.

        An error of one application does not affect the others.
        """
        baselines, states, commands = (
            self.context.baselines,
            self.context.states,
            self.context.commands,
        )
        due = {
            application.id: application
            for application in applications
            if baselines.of(application).commit != self.head.hash
            or states.of(application).status is SyncStatus.OUT_OF_SYNC
            or states.has_invalid_config(application)
            or commands.of(application.id)
        }
        if not due:
            return True
        paths = {id: config_path(application.git_path) for id, application in due.items()}
        configs = await self.context.configs.at(self.mirror.objects, self.head.hash, paths.values())
        limit = asyncio.Semaphore(_CONCURRENT_EVALUATIONS)

        async def decide(application: Application) -> bool:
            config = configs[paths[application.id]]
            if self._awaits_targets(application, config):
                return False
            mentions = None if isinstance(config, PipecdError) else config.spec.notification
            try:
                async with limit:
                    error = await self._evaluate(application, config)
            except PipecdError as e:
                self.context.failures.failed(application, self.head, e, mentions)
                return False
            self.context.failures.decided(application, self.head, error, mentions)
            return True

        async with asyncio.TaskGroup() as tasks:
            decisions = [tasks.create_task(decide(each)) for each in due.values()]
        return all(decision.result() for decision in decisions)

    def _awaits_targets(self, application: Application, config: ConfigResult) -> bool:
        """Whether a new application may get its deploy targets in a moment."""
        if isinstance(config, PipecdError) or self.context.baselines.of(application).commit:
            return False
        if not lacks_targets(application, config.spec.plugins, self.context.targets):
            return False
        # The clocks of the control plane and of this machine may differ.
        return abs(self.context.now() - from_unix(application.created_at)) < _NEW_APPLICATION

    async def _evaluate(self, application: Application, config: ConfigResult) -> str:
        """Deploys the application if there is a reason; returns what is wrong with its config."""
        error = invalid_config(application, config)
        if error or isinstance(config, PipecdError):
            self.context.states.set_config_error(application, error)
            for command in self.context.commands.of(application.id):
                if (
                    at_chain_commit := await self._pass_at_chain_commit(application, command)
                ) is None:
                    await self.context.commands.reject(command, error)
                else:
                    await at_chain_commit.handle_command(application, command)
            return error
        # Invalid path patterns prevent decisions on commits, but not commands.
        pattern_error = reason.invalid_patterns(config.spec.trigger.on_commit)
        self.context.states.set_config_error(application, pattern_error)
        for command in self.context.commands.of(application.id):
            if (at_chain_commit := await self._pass_at_chain_commit(application, command)) is None:
                await self._handle_command(application, config.spec, command)
            else:
                await at_chain_commit.handle_command(application, command)
        if pattern_error:
            return pattern_error
        # A command has moved the baseline to the head, so that a commit is not deployed twice.
        if not await self._trigger_on_commit(application, config.spec):
            await self._trigger_on_drift(application, config.spec)
        return ""

    async def handle_command(self, application: Application, command: Command) -> None:
        """Handles one command at the commit of this pass, and nothing else."""
        path = config_path(application.git_path)
        config = (await self.context.configs.at(self.mirror.objects, self.head.hash, [path]))[path]
        if isinstance(config, PipecdError):
            await self.context.commands.reject(command, str(config))
        else:
            await self._handle_command(application, config.spec, command)

    async def _pass_at_chain_commit(
        self, application: Application, command: Command
    ) -> "TriggerPass | None":
        """Returns the pass at the commit that a chain started with, if this repository has it.

        Later commits are not part of the chain. None if a later commit was triggered already.
        """
        hash = command.metadata.get(CHAIN_COMMIT_KEY, "")
        try:
            validate_hash(hash)
        except NotFound:
            return None
        if hash == self.head.hash or not await self.mirror.objects.has_commit(hash):
            return None
        last = self.context.baselines.of(application).commit
        if last not in ("", hash) and await self.mirror.objects.is_ancestor(hash, last):
            return None
        return TriggerPass(self.context, self.mirror, await self.mirror.objects.commit(hash))

    async def _handle_command(
        self, application: Application, spec: ApplicationSpec, command: Command
    ) -> None:
        if command.type == CommandKind.CHAIN_SYNC_APPLICATION:
            decision = reason.on_chain(spec.trigger.on_chain)
        else:
            decision = reason.on_command(spec.trigger.on_command)
        if not decision.deploy:
            await self.context.commands.reject(command, decision.reason)
            return
        try:
            deployment_id = await self._deploy(
                application, spec, command_cause(command), reason=decision.reason
            )
        except (Unavailable, Unauthenticated):
            # The command stays unhandled and is tried again.
            raise
        except PipecdError as e:
            self.context.failures.decided(application, self.head, str(e), spec.notification)
            await self.context.commands.reject(command, str(e))
            return
        await self.context.commands.succeed(command, deployment_id)

    async def _trigger_on_commit(self, application: Application, spec: ApplicationSpec) -> bool:
        baseline = self.context.baselines.of(application)
        if baseline.commit == self.head.hash:
            return False
        decision = await self._commit_trigger.decide(application, spec)
        if not decision.deploy:
            log.debug(
                "commit not deployed",
                application=application.id,
                application_name=application.name,
                commit=self.head.hash,
                reason=decision.reason,
            )
            self.context.baselines.ignore(application, self.head.hash)
            return False
        cause = commit_cause(baseline.deployment_id, self.head.hash, decision.reason)
        await self._deploy(application, spec, cause, reason=decision.reason)
        return True

    async def _trigger_on_drift(self, application: Application, spec: ApplicationSpec) -> None:
        rule = spec.trigger.on_out_of_sync
        is_out_of_sync = self.context.states.of(application).status is SyncStatus.OUT_OF_SYNC
        if rule.disabled or not is_out_of_sync:
            return
        baseline = self.context.baselines.of(application)
        last: reason.LastDeployment | None = None
        if baseline.deployment_id:
            request = GetDeploymentRequest(id=baseline.deployment_id)
            with suppress(NotFound):
                deployment = (await self.context.api.get_deployment(request)).deployment
                is_completed = DeploymentStatus(deployment.status).is_completed
                completed_at = from_unix(deployment.completed_at) if is_completed else None
                last = reason.LastDeployment(completed_at)
        decision = reason.on_out_of_sync(rule, last, now=self.context.now())
        if decision.deploy:
            cause = drift_cause(baseline.deployment_id, self.head.hash, decision.reason)
            await self._deploy(application, spec, cause, reason=decision.reason)

    async def _deploy(
        self, application: Application, spec: ApplicationSpec, cause: Cause, *, reason: str
    ) -> str:
        deployment = await self.context.creator.create(
            application, spec, cause, commit=self.head, repository=self.mirror.repository
        )
        log.info(
            "deployment triggered",
            application=application.id,
            application_name=application.name,
            deployment=deployment.id,
            commit=self.head.hash,
            reason=reason,
        )
        return deployment.id
