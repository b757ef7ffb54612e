# SPDX-License-Identifier: Apache-2.0
"""Triggers deployments: on commits, commands, drift and deployment chains."""

import asyncio
from dataclasses import dataclass, field

import structlog

from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandKind
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHead, RepositoryHeads
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.plan.stages import TargetsByPlugin
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.trigger.commands import SyncCommands
from pipecd.piped.trigger.creator import DeploymentCreator
from pipecd.piped.trigger.trigger_pass import TriggerContext, TriggerFailures, TriggerPass
from pipecd.proto.model.application_pb2 import Application

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_RETRY_INTERVAL = 5.0


@dataclass(kw_only=True)
class Trigger:
    """Watches each repository in a task of its own, so that one does not delay another."""

    api: ControlPlaneClient
    applications: ApplicationCache
    deployments: DeploymentCache
    commands: CommandCache
    heads: RepositoryHeads
    mirrors: Mirrors
    configs: ApplicationConfigs
    baselines: Baselines
    notifier: Notifier
    states: SyncStates
    targets: TargetsByPlugin = field(default_factory=dict[str, tuple[str, ...]])
    """The deploy targets of this piped."""
    interval: float = 60.0
    now: Now = utc_now

    def __post_init__(self) -> None:
        self._commands = SyncCommands(self.commands)
        self._context = TriggerContext(
            api=self.api,
            configs=self.configs,
            commands=self._commands,
            baselines=self.baselines,
            creator=DeploymentCreator(
                self.api, self.deployments, self.baselines, self.notifier, now=self.now
            ),
            failures=TriggerFailures(self.notifier),
            states=self.states,
            targets=self.targets,
            now=self.now,
        )

    async def run(self) -> None:
        # Without these lists it is unknown what was triggered before.
        await self.applications.wait_until_loaded()
        await self.deployments.wait_until_loaded()
        await self._context.creator.adopt(self.applications.all, self.deployments.all)
        await self.baselines.load()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                self._reject_unknown_repositories(), name="applications of unknown repositories"
            )
            for mirror in self.mirrors:
                tasks.create_task(self._watch(mirror), name=f"trigger {mirror.repository.id}")

    async def _watch(self, mirror: Mirror) -> None:
        id = mirror.repository.id
        watch = watch_any(
            self.heads.changes_of(id),
            self.applications.changes,
            self._commands.changes,
            self.states.drift,
        )
        while True:
            all_decided = True
            applications = self.applications.of_repository(id)
            try:
                head = self.heads.of(id)
                if any(self._commands.of(application.id) for application in applications):
                    # A sync command deploys what is pushed by now.
                    head = await self.heads.poll(id)
                if head.error is not None and not isinstance(head.error, Unavailable):
                    # Git hosts answer "not found" during an outage, too, which chains wait out.
                    await self._reject(applications, str(head.error), with_chains=False)
                elif head.commit is not None:
                    trigger_pass = TriggerPass(self._context, mirror, head.commit)
                    all_decided = await trigger_pass.run(applications)
                elif head != RepositoryHead():
                    log.debug("repository not fetched yet", repository=id)
            except PipecdError as e:
                log.warning("trigger failed, retrying", repository=id, error=str(e))
                all_decided = False
            await self.baselines.save({application.id for application in self.applications.all})
            await watch.wait(self.interval if all_decided else min(self.interval, _RETRY_INTERVAL))

    async def _reject_unknown_repositories(self) -> None:
        """Marks applications invalid whose repository is not in the configuration of piped."""
        watch = watch_any(self.applications.changes, self._commands.changes)
        while True:
            for application in self.applications.all:
                repository = application.git_path.repo.id
                if repository not in self.mirrors:
                    await self._reject(
                        (application,),
                        f"repository {repository!r} is not in the configuration of this piped; "
                        "add it under repositories, or choose another piped",
                    )
            await watch.wait(self.interval)

    async def _reject(
        self, applications: tuple[Application, ...], error: str, *, with_chains: bool = True
    ) -> None:
        for application in applications:
            self.states.set_config_error(application, error)
            for command in self._commands.of(application.id):
                if with_chains or command.type != CommandKind.CHAIN_SYNC_APPLICATION:
                    await self._commands.reject(command, error)
