# SPDX-License-Identifier: Apache-2.0
"""A trigger between a real control plane and a real repository."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.clock import utc_now
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.command_handlers import UnknownApplicationHandler
from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.trigger.trigger import Trigger
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2
from servers.control_plane import GatedControlPlane, OpenControlPlane, running
from servers.notifier import RecordingNotifier
from servers.origin import Origin

LOOK_EVERY = 0.03


@dataclass
class Scene:
    """A control plane that knows one repository, and what a test asks about it."""

    plane: GatedControlPlane
    heard: RecordingNotifier = field(default_factory=RecordingNotifier)

    @property
    def seen_file(self) -> Path:
        return self.plane.directory / "workspace" / "trigger" / "seen.json"

    @asynccontextmanager
    async def triggering(
        self, *repositories: Repository, every: float = 0.1, now: Any = utc_now
    ) -> AsyncGenerator[Trigger]:
        """The triggering part of a piped; leaving the block kills it."""
        directory = self.plane.directory / "mirrors"
        async with (
            self.plane.piped.api() as api,
            open_mirrors(
                repositories, directory=directory, credentials=GitCredentials()
            ) as mirrors,
        ):
            applications = ApplicationCache(api, interval=LOOK_EVERY)
            deployments = DeploymentCache(api, interval=LOOK_EVERY)
            trigger = Trigger(
                api=api,
                applications=applications,
                deployments=deployments,
                commands=CommandCache(api, interval=LOOK_EVERY),
                heads=RepositoryHeads(mirrors),
                mirrors=mirrors,
                configs=ApplicationConfigs(load_catalog()),
                baselines=Baselines(IgnoredCommits(self.seen_file)),
                notifier=self.heard,
                states=SyncStates(api, applications, deployments, now=now),
                interval=every,
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

    async def made(self, application_id: str = "") -> list[Deployment]:
        """The deployments that have not ended."""
        async with self.plane.piped.api() as api:
            answer = await api.list_not_completed_deployments(
                piped_pb2.ListNotCompletedDeploymentsRequest()
            )
        return [d for d in answer.deployments if application_id in ("", d.application_id)]

    def has_made(self, count: int, application_id: str = "") -> Callable[[], Any]:
        """A question for `eventually`: are there so many deployments?"""

        async def ask() -> list[Deployment]:
            found = await self.made(application_id)
            return found if len(found) >= count else []

        return ask

    async def settle(self) -> None:
        """Waits until the mirrors were read many times more, so that nothing is under way."""
        wanted = self.plane.gate.count("ListUnhandledCommands") + 12
        async with asyncio.timeout(10):
            while self.plane.gate.count("ListUnhandledCommands") < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def settled(self, command_id: str) -> Any:
        """The command once it was handled."""
        command = await self.plane.cases.commands.get(command_id, by=self.plane.admin)
        return command if command.status else None


@pytest.fixture
def site(origin: Origin) -> Repository:
    return Repository("site", origin.remote, "main")


@pytest.fixture
def open_scene(
    open_plane: OpenControlPlane, origin: Origin
) -> Callable[[], AbstractAsyncContextManager[Scene]]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Scene]:
        async with open_plane() as plane:
            await plane.piped.add_repository("site", origin.remote)
            yield Scene(plane)

    return opened
