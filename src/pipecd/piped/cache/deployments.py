# SPDX-License-Identifier: Apache-2.0
"""The deployments of this piped that have not completed, as of the last poll."""

import base64
import binascii
import json
from collections import defaultdict

from pipecd.model.deployment import DeploymentStatus
from pipecd.piped.cache.refresh import PolledCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import ListNotCompletedDeploymentsRequest

POLL_INTERVAL = 10.0


class DeploymentCache(PolledCache):
    """Deployments that are pending, planned, running or rolling back; oldest first."""

    def __init__(self, api: ControlPlaneClient, *, interval: float = POLL_INTERVAL) -> None:
        super().__init__("deployments", interval=interval)
        self._api = api
        self._deployments: tuple[Deployment, ...] = ()
        self._by_application: dict[str, set[str]] = {}

    @property
    def all(self) -> tuple[Deployment, ...]:
        return self._deployments

    @property
    def pending(self) -> tuple[Deployment, ...]:
        return self._with_status(DeploymentStatus.PENDING)

    @property
    def planned(self) -> tuple[Deployment, ...]:
        return self._with_status(DeploymentStatus.PLANNED)

    @property
    def running(self) -> tuple[Deployment, ...]:
        """Running deployments, including those that roll back."""
        return self._with_status(DeploymentStatus.RUNNING, DeploymentStatus.ROLLING_BACK)

    def not_completed_of(self, application_id: str) -> frozenset[str]:
        """Returns the ids of the deployments of an application that have not completed."""
        return frozenset(self._by_application.get(application_id, ()))

    async def poll(self) -> bool:
        deployments: dict[str, Deployment] = {}
        cursor = ""
        while True:
            response = await self._api.list_not_completed_deployments(
                ListNotCompletedDeploymentsRequest(cursor=cursor)
            )
            deployments.update((deployment.id, deployment) for deployment in response.deployments)
            if is_last_page(response.cursor) or response.cursor == cursor:
                break
            cursor = response.cursor
        before = self._deployments
        self._deployments = tuple(sorted(deployments.values(), key=lambda d: (d.created_at, d.id)))
        by_application: defaultdict[str, set[str]] = defaultdict(set)
        for deployment in self._deployments:
            by_application[deployment.application_id].add(deployment.id)
        self._by_application = by_application
        return self._deployments != before

    def _with_status(self, *statuses: DeploymentStatus) -> tuple[Deployment, ...]:
        return tuple(d for d in self._deployments if d.status in statuses)


def is_last_page(cursor: str) -> bool:
    """Returns whether no page follows; upstream's server sends `{}` then and refuses it later."""
    if not cursor:
        return True
    try:
        return json.loads(base64.b64decode(cursor)) == {}
    except (binascii.Error, ValueError):
        return False
