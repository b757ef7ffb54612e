# SPDX-License-Identifier: Apache-2.0
"""The trigger of a piped between a control plane and a repository."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipecd.config.catalog import load_catalog
from pipecd.git.mirror import Repository
from pipecd.model.clock import Now, utc_now
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.command_handlers import UnknownApplicationHandler
from pipecd.piped.plan.stages import TargetsByPlugin
from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.trigger.trigger import Trigger
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.ordering_pb2 import ListDeploymentsInOrderRequest
from servers.control_plane import running
from servers.environment import POLL_INTERVAL, PipedEnvironment

NO_TARGETS: TargetsByPlugin = {}


@dataclass
class TriggerEnvironment(PipedEnvironment):
    """Runs a trigger; what it creates stays pending, as there is no deployer."""

    @property
    def ignored_commits_file(self) -> Path:
        return self.plane.directory / "workspace" / "trigger" / "seen.json"

    @asynccontextmanager
    async def triggering(
        self,
        *repositories: Repository,
        interval: float = 0.1,
        now: Now = utc_now,
        targets: TargetsByPlugin = NO_TARGETS,
    ) -> AsyncGenerator[Trigger]:
        """Runs the trigger with the repositories; leaving the block kills it."""
        async with self.connect(*repositories) as (api, mirrors):
            applications = ApplicationCache(api, interval=POLL_INTERVAL)
            deployments = DeploymentCache(api, interval=POLL_INTERVAL)
            trigger = Trigger(
                api=api,
                applications=applications,
                deployments=deployments,
                commands=CommandCache(api, interval=POLL_INTERVAL),
                heads=RepositoryHeads(mirrors),
                mirrors=mirrors,
                configs=ApplicationConfigs(load_catalog()),
                baselines=Baselines(IgnoredCommits(self.ignored_commits_file)),
                notifier=self.notifier,
                states=SyncStates(api, applications, deployments, now=now),
                targets=targets,
                interval=interval,
                now=now,
            )
            components = (
                applications,
                deployments,
                trigger.commands,
                trigger.heads,
                trigger.states,
                trigger,
                UnknownApplicationHandler(trigger.commands, applications),
            )
            async with running(*components):
                yield trigger

    async def open_deployments(self, application_id: str = "") -> list[Deployment]:
        """The deployments that are not completed, of all applications or of one."""
        async with self.plane.piped.api() as api:
            listed = await api.list_deployments_in_order(ListDeploymentsInOrderRequest())
        return [d for d in listed.deployments if application_id in ("", d.application_id)]

    def has_deployments(
        self, count: int, application_id: str = ""
    ) -> Callable[[], Awaitable[list[Deployment] | None]]:
        """A condition for `eventually`: the open deployments, once there are so many."""
        return partial(self._at_least, count, application_id)

    async def _at_least(self, count: int, application_id: str) -> list[Deployment] | None:
        deployments = await self.open_deployments(application_id)
        return deployments if len(deployments) >= count else None

    async def wait_until_idle(self) -> None:
        """Waits until the caches were refreshed many times more, so that nothing is under way."""
        polls = self.plane.gate.count("ListUnhandledCommands") + 12
        async with asyncio.timeout(10):
            while self.plane.gate.count("ListUnhandledCommands") < polls:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


OpenTrigger = Callable[[], AbstractAsyncContextManager[TriggerEnvironment]]
