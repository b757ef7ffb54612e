# SPDX-License-Identifier: Apache-2.0
"""The applications of this piped, as of the last refresh."""

import asyncio

from pipecd.model.errors import PipecdError
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.changes import Changes
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.trouble import Trouble
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service.piped_pb2 import ListApplicationsRequest

EVERY = 60.0


class ApplicationMirror:
    """The enabled applications that this piped deploys."""

    def __init__(self, api: ControlPlaneClient, *, every: float = EVERY) -> None:
        self._api = api
        self._applications: dict[str, Application] = {}
        self._is_read = asyncio.Event()
        self._reads = 0
        self._trouble = Trouble("applications")
        self.pace = Pace(every)
        self.changes = Changes()

    @property
    def all(self) -> tuple[Application, ...]:
        return tuple(self._applications.values())

    @property
    def reads(self) -> int:
        """How often the list was read, so that a waiter can tell a newer copy from an older."""
        return self._reads

    def get(self, application_id: str) -> Application | None:
        return self._applications.get(application_id)

    def of_repository(self, repository_id: str) -> tuple[Application, ...]:
        return tuple(a for a in self.all if a.git_path.repo.id == repository_id)

    def refresh_soon(self) -> None:
        """Asks for a new copy without waiting for it."""
        self.pace.soon()

    async def read(self) -> None:
        """Waits until there is a first copy."""
        await self._is_read.wait()

    async def run(self) -> None:
        while True:
            await self._refresh()
            await self.pace.wait()

    async def _refresh(self) -> None:
        try:
            answer = await self._api.list_applications(ListApplicationsRequest())
        except PipecdError as e:
            self._trouble.met(e)
            return
        self._trouble.over()
        found = {application.id: application for application in answer.applications}
        self._reads += 1
        first = not self._is_read.is_set()
        self._is_read.set()
        if first or found != self._applications:
            self._applications = found
            self.changes.notify()
