# SPDX-License-Identifier: Apache-2.0
"""One look at the applications of a repository: which of them has a reason to deploy?

Facts are gathered here (commits, files, commands, the last deployment); `piped.plan.reason`
decides.
"""

from dataclasses import dataclass

import structlog

from pipecd.config.application.spec import ApplicationSpec
from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror
from pipecd.git.validate import validate_hash
from pipecd.model.application import SyncStatus
from pipecd.model.clock import Now, from_unix, to_unix
from pipecd.model.command import CHAIN_COMMIT_KEY, CommandKind
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import NotFound, PipecdError, Unauthenticated, Unavailable
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan import reason
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.planning.deployment import Cause, commit_cause, drift_cause
from pipecd.piped.planning.judgement import Judgement, mistake_in
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import Configs, Read
from pipecd.piped.source.sources import config_path
from pipecd.piped.trigger.commands import SyncCommands, cause_of
from pipecd.piped.trigger.creation import Creation
from pipecd.piped.trigger.failures import TriggerFailures
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.service.piped_pb2 import GetDeploymentRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class Tools:
    """What every round needs."""

    api: ControlPlaneClient
    configs: Configs
    commands: SyncCommands
    baselines: Baselines
    creation: Creation
    failures: TriggerFailures
    states: SyncStates
    now: Now


@dataclass
class Round:
    """One round over the applications of a repository at one head."""

    tools: Tools
    mirror: Mirror
    head: Commit

    def __post_init__(self) -> None:
        self._judgement = Judgement(self.tools.baselines, self.mirror, self.head.hash)

    async def run(self, applications: tuple[Application, ...]) -> bool:
        """Looks at every application; whether all of them could be decided on.

        OutageLog with one does not touch the others.
        """
        wanted = {a.id: a for a in applications if self._is_worth_a_look(a)}
        if not wanted:
            return True
        paths = {id_: config_path(a.git_path) for id_, a in wanted.items()}
        configs = await self.tools.configs.at(self.mirror.objects, self.head.hash, paths.values())
        is_done = True
        for id_, application in wanted.items():
            config = configs[paths[id_]]
            mentions = None if isinstance(config, PipecdError) else config.spec.notification
            try:
                mistake = await self._look(application, config)
            except PipecdError as e:
                is_done = False
                self.tools.failures.failed(application, self.head, e, mentions)
            else:
                self.tools.failures.looked(application, self.head, mistake, mentions)
        return is_done

    def _is_worth_a_look(self, application: Application) -> bool:
        return (
            self.tools.baselines.of(application).commit != self.head.hash
            or self.tools.states.of(application).status is SyncStatus.OUT_OF_SYNC
            or self.tools.states.has_invalid_config(application)
            or bool(self.tools.commands.of(application.id))
        )

    async def _look(self, application: Application, config: Read) -> str:
        """Deploys the application if there is a reason to; what is wrong with it, if anything."""
        mistake = mistake_in(application, config)
        if mistake or isinstance(config, PipecdError):
            self.tools.states.set_config_error(application, mistake)
            for command in self.tools.commands.of(application.id):
                await self.tools.commands.refused(command, mistake)
            return mistake
        # Commits cannot be judged by broken patterns, but what a person asks for can be done.
        unclear = reason.pattern_mistake(config.spec.trigger.on_commit)
        if unclear:
            self.tools.states.set_config_error(application, unclear)
        else:
            self.tools.states.set_config_error(application, "")
        for command in self.tools.commands.of(application.id):
            if (then := await self._at_beginning(application, command)) is not None:
                await then.obey(application, command)
            else:
                await self._follow(application, config.spec, command)
        if unclear:
            return unclear
        # A command has moved the baseline to the head, so a commit is not deployed twice.
        if not await self._by_commit(application, config.spec):
            await self._by_drift(application, config.spec)
        return ""

    async def obey(self, application: Application, command: Command) -> None:
        """Does what a command asks for with the commit of this round, and nothing else."""
        path = config_path(application.git_path)
        config = (await self.tools.configs.at(self.mirror.objects, self.head.hash, [path]))[path]
        if isinstance(config, PipecdError):
            await self.tools.commands.refused(command, str(config))
        else:
            await self._follow(application, config.spec, command)

    async def _at_beginning(self, application: Application, command: Command) -> "Round | None":
        """The round at the commit that a chain began with, if it is of this repository.

        What was pushed since then is not meant; what was deployed since then is not taken back.
        """
        began = command.metadata.get(CHAIN_COMMIT_KEY, "")
        try:
            validate_hash(began)
        except NotFound:
            return None
        if began == self.head.hash or not await self.mirror.objects.has_commit(began):
            return None
        commit = await self.mirror.objects.commit(began)
        if to_unix(commit.created_at) < self.tools.baselines.of(application).at.written:
            return None
        return Round(self.tools, self.mirror, commit)

    async def _follow(
        self, application: Application, spec: ApplicationSpec, command: Command
    ) -> None:
        if command.type == CommandKind.CHAIN_SYNC_APPLICATION:
            decision = reason.on_chain(spec.trigger.on_chain)
        else:
            decision = reason.on_command(spec.trigger.on_command)
        if not decision.deploy:
            await self.tools.commands.refused(command, decision.reason)
            return
        try:
            deployment_id = await self._deploy(
                application, spec, cause_of(command), because=decision.reason
            )
        except (Unavailable, Unauthenticated):
            # That passes, and the command is still there.
            raise
        except PipecdError as e:
            self.tools.failures.looked(application, self.head, str(e), spec.notification)
            await self.tools.commands.refused(command, str(e))
            return
        await self.tools.commands.succeeded(command, deployment_id)

    async def _by_commit(self, application: Application, spec: ApplicationSpec) -> bool:
        baseline = self.tools.baselines.of(application)
        if baseline.commit == self.head.hash:
            return False
        decision = await self._judgement.on_commit(application, spec)
        if not decision.deploy:
            log.debug("commit not deployed", application=application.id, reason=decision.reason)
            self.tools.baselines.seen(application, self.head.hash)
            return False
        cause = commit_cause(baseline.deployment_id, self.head.hash, decision.reason)
        await self._deploy(application, spec, cause, because=decision.reason)
        return True

    async def _by_drift(self, application: Application, spec: ApplicationSpec) -> None:
        rule = spec.trigger.on_out_of_sync
        is_drift = self.tools.states.of(application).status is SyncStatus.OUT_OF_SYNC
        if rule.disabled or not is_drift:
            return
        baseline = self.tools.baselines.of(application)
        last = await self._last_deployment(baseline.deployment_id)
        decision = reason.on_out_of_sync(rule, last, now=self.tools.now())
        if decision.deploy:
            cause = drift_cause(baseline.deployment_id, self.head.hash, decision.reason)
            await self._deploy(application, spec, cause, because=decision.reason)

    async def _last_deployment(self, deployment_id: str) -> reason.LastDeployment | None:
        if not deployment_id:
            return None
        try:
            answer = await self.tools.api.get_deployment(GetDeploymentRequest(id=deployment_id))
        except NotFound:
            return None
        deployment = answer.deployment
        if not DeploymentStatus(deployment.status).is_completed:
            return reason.LastDeployment(None)
        return reason.LastDeployment(from_unix(deployment.completed_at))

    async def _deploy(
        self, application: Application, spec: ApplicationSpec, cause: Cause, *, because: str
    ) -> str:
        deployment = await self.tools.creation.create(
            application,
            spec,
            cause,
            commit=self.head,
            repository=self.mirror.repository,
        )
        log.info(
            "deployment triggered",
            application=application.id,
            deployment=deployment.id,
            commit=self.head.hash,
            reason=because,
        )
        return deployment.id
