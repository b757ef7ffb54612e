# SPDX-License-Identifier: Apache-2.0
"""The applications of this piped, as of the last poll."""

from pipecd.piped.cache.refresh import PolledCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service.piped_pb2 import ListApplicationsRequest

POLL_INTERVAL = 60.0


class ApplicationCache(PolledCache):
    """The enabled applications that this piped deploys."""

    def __init__(self, api: ControlPlaneClient, *, interval: float = POLL_INTERVAL) -> None:
        super().__init__("applications", interval=interval)
        self._api = api
        self._applications: dict[str, Application] = {}

    @property
    def all(self) -> tuple[Application, ...]:
        return tuple(self._applications.values())

    def get(self, application_id: str) -> Application | None:
        return self._applications.get(application_id)

    def of_repository(self, repository_id: str) -> tuple[Application, ...]:
        return tuple(a for a in self.all if a.git_path.repo.id == repository_id)

    async def poll(self) -> bool:
        response = await self._api.list_applications(ListApplicationsRequest())
        before, self._applications = self._applications, {a.id: a for a in response.applications}
        return self._applications != before
