# SPDX-License-Identifier: Apache-2.0
"""Notices a reason to deploy and makes the deployment: commits, commands, drift, chains."""

import asyncio
from dataclasses import dataclass

import structlog

from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import Head, RepositoryHeads
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.notify.notice import Notices
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import Configs
from pipecd.piped.trigger.commands import SyncCommands
from pipecd.piped.trigger.creation import Creation
from pipecd.piped.trigger.failures import TriggerFailures
from pipecd.piped.trigger.round import Round, Tools
from pipecd.proto.model.application_pb2 import Application

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_AGAIN_AFTER_TROUBLE = 5.0


@dataclass(kw_only=True)
class Trigger:
    """Follows every repository in a task of its own, so that a broken one holds up no other."""

    api: ControlPlaneClient
    applications: ApplicationCache
    deployments: DeploymentCache
    commands: CommandCache
    heads: RepositoryHeads
    mirrors: Mirrors
    configs: Configs
    baselines: Baselines
    notices: Notices
    states: SyncStates
    every: float = 60.0
    now: Now = utc_now

    def __post_init__(self) -> None:
        self._commands = SyncCommands(self.commands)
        self._tools = Tools(
            api=self.api,
            configs=self.configs,
            commands=self._commands,
            baselines=self.baselines,
            creation=Creation(
                self.api, self.deployments, self.baselines, self.notices, now=self.now
            ),
            failures=TriggerFailures(self.notices),
            states=self.states,
            now=self.now,
        )

    async def run(self) -> None:
        # Before these are known, nothing is known about what was triggered before.
        await self.applications.wait_until_loaded()
        await self.deployments.wait_until_loaded()
        await self._tools.creation.take_up(self.applications.all, self.deployments.all)
        await self.baselines.load()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tend_homeless(), name="applications without a repository")
            for mirror in self.mirrors:
                tasks.create_task(self._follow(mirror), name=f"trigger {mirror.repository.id}")

    async def _follow(self, mirror: Mirror) -> None:
        id_ = mirror.repository.id
        watch = watch_any(
            self.heads.changes_of(id_),
            self.applications.changes,
            self._commands.changes,
            self.states.drift,
        )
        while True:
            at_most = self.every
            try:
                is_done = await self._round(mirror)
            except PipecdError as e:
                log.warning("repository not checked for triggers", repository=id_, error=str(e))
                is_done = False
            if not is_done:
                at_most = min(at_most, _AGAIN_AFTER_TROUBLE)
            await self.baselines.save({application.id for application in self.applications.all})
            await watch.wait(at_most)

    async def _round(self, mirror: Mirror) -> bool:
        """One look at everything of a repository; whether all of it could be decided on."""
        id_ = mirror.repository.id
        applications = self.applications.of_repository(id_)
        head = self.heads.of(id_)
        if any(self._commands.of(application.id) for application in applications):
            # Who asks for a sync means what is pushed by now.
            head = await self.heads.poll(id_)
        if head.error is not None and not isinstance(head.error, Unavailable):
            await self._refuse(applications, str(head.error))
        elif head.commit is not None:
            return await Round(self._tools, mirror, head.commit).run(applications)
        elif head != Head():
            log.debug("repository was never reached", repository=id_)
        return True

    async def _tend_homeless(self) -> None:
        """Tells about applications whose repository is not in the configuration of this piped."""
        watch = watch_any(self.applications.changes, self._commands.changes)
        while True:
            for application in self.applications.all:
                repository = application.git_path.repo.id
                if repository not in self.mirrors:
                    await self._refuse(
                        (application,),
                        f"repository {repository!r} is not in the configuration of this piped; "
                        "add it under repositories, or choose another piped",
                    )
            await watch.wait(self.every)

    async def _refuse(self, applications: tuple[Application, ...], why: str) -> None:
        for application in applications:
            self.states.set_config_error(application, why)
            for command in self._commands.of(application.id):
                await self._commands.refused(command, why)
