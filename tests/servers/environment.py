# SPDX-License-Identifier: Apache-2.0
"""A control plane, a registered piped and a repository, for tests that run one part of piped.

The parts are in `trigger.py`, `livestate.py`, `planpreview.py` and `eventwatcher.py`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Mirrors, Repository, open_mirrors
from pipecd.model.application import SyncStatus
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.application_pb2 import ApplicationSyncState
from pipecd.proto.model.command_pb2 import Command
from servers.control_plane import GatedControlPlane, LocalControlPlane, OpenControlPlane
from servers.notifier import RecordingNotifier
from servers.origin import Origin

POLL_INTERVAL = 0.03
"""Between two polls of the control plane by a cache, in seconds."""


@dataclass
class PipedEnvironment:
    """The surroundings of one part of a piped, which tests start, stop and kill."""

    plane: GatedControlPlane
    origin: Origin
    notifier: RecordingNotifier = field(default_factory=RecordingNotifier)

    @property
    def site(self) -> Repository:
        """The repository of the applications."""
        return Repository("site", self.origin.remote, "main")

    @asynccontextmanager
    async def connect(
        self, *repositories: Repository, credentials: GitCredentials | None = None
    ) -> AsyncGenerator[tuple[ControlPlaneClient, Mirrors]]:
        """The client of the piped, and mirrors of the repositories."""
        directory = self.plane.directory / "mirrors"
        async with (
            self.plane.piped.api() as api,
            open_mirrors(
                repositories, directory=directory, credentials=credentials or GitCredentials()
            ) as mirrors,
        ):
            yield api, mirrors

    async def sync_state(self, application_id: str) -> ApplicationSyncState:
        return (await self.plane.application(application_id)).sync_state

    def has_sync_status(
        self, application_id: str, status: SyncStatus, reason: str = ""
    ) -> Callable[[], Awaitable[ApplicationSyncState | None]]:
        """A condition for `eventually`: the sync state, once it has the status and the reason."""
        return partial(matching_sync_state, self.plane, application_id, status, reason)

    async def handled_command(self, command_id: str) -> Command | None:
        """The command, once it is handled."""
        command = await self.plane.cases.commands.get(command_id, by=self.plane.admin)
        return command if command.status else None


async def matching_sync_state(
    plane: LocalControlPlane, application_id: str, status: SyncStatus, reason: str = ""
) -> ApplicationSyncState | None:
    """The sync state of an application, if it has the status and the reason."""
    state = (await plane.application(application_id)).sync_state
    return state if state.status == status and reason in state.reason else None


E = TypeVar("E", bound=PipedEnvironment)
OpenEnvironment = Callable[..., AbstractAsyncContextManager[E]]


@asynccontextmanager
async def open_environment(
    kind: type[E], open_plane: OpenControlPlane, origin: Origin, **fields: Any
) -> AsyncGenerator[E]:
    """Opens an environment in which the control plane knows the repository `site`."""
    async with open_plane() as plane:
        await plane.piped.add_repository("site", origin.remote)
        yield kind(plane, origin, **fields)
