# SPDX-License-Identifier: Apache-2.0
"""The deployments of this piped that have not completed, as of the last poll."""

import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Iterable

from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Unsupported
from pipecd.piped.cache.refresh import PolledCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.ordering_pb2 import ListDeploymentsInOrderRequest
from pipecd.proto.service.piped_pb2 import ListNotCompletedDeploymentsRequest

POLL_INTERVAL = 10.0


class DeploymentCache(PolledCache):
    """Deployments that are pending, planned, running or rolling back, in the order of triggers."""

    def __init__(self, api: ControlPlaneClient, *, interval: float = POLL_INTERVAL) -> None:
        super().__init__("deployments", interval=interval)
        self._api = api
        self._deployments: tuple[Deployment, ...] = ()
        self._by_application: dict[str, set[str]] = {}
        # Deployments that this process created and that no poll has listed yet.
        self._unlisted: dict[str, Deployment] = {}
        # Deployments that are in the control plane exactly as this process created them.
        self._created: dict[str, Deployment] = {}

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

    def add(self, deployment: Deployment) -> None:
        """Adds a deployment that this piped created, unless a poll has listed it already."""
        if deployment.id in self._by_application.get(deployment.application_id, ()):
            return
        self._created[deployment.id] = self._unlisted[deployment.id] = deployment
        self._set([*self._deployments, deployment])
        self.changes.notify()

    def take_created(self, deployment_id: str) -> Deployment | None:
        """Returns a deployment as this piped created it, once; its caller may change it then.

        Returns None if it was taken before or the control plane has another version.
        """
        created = self._created.pop(deployment_id, None)
        if created is None:
            return None
        copy = Deployment()
        copy.CopyFrom(created)
        return copy

    async def poll(self) -> bool:
        added_before = set(self._unlisted)
        listed = await self._list()
        # The response may be older than a deployment that was added during the poll.
        self._unlisted = {
            id: d for id, d in self._unlisted.items() if id not in added_before | listed.keys()
        }
        listed |= self._unlisted
        self._created = {id: d for id, d in self._created.items() if listed.get(id) == d}
        before = self._deployments
        self._set(listed.values())
        return self._deployments != before

    async def _list(self) -> dict[str, Deployment]:
        """Returns the deployments by id, in the order in which they were triggered."""
        try:
            response = await self._api.list_deployments_in_order(ListDeploymentsInOrderRequest())
        except Unsupported:
            return await self._list_by_time()
        return {deployment.id: deployment for deployment in response.deployments}

    async def _list_by_time(self) -> dict[str, Deployment]:
        """Lists the deployments of upstream's control plane, which has no sequence numbers."""
        deployments: list[Deployment] = []
        cursor = ""
        while True:
            response = await self._api.list_not_completed_deployments(
                ListNotCompletedDeploymentsRequest(cursor=cursor)
            )
            deployments += response.deployments
            if is_last_page(response.cursor) or response.cursor == cursor:
                break
            cursor = response.cursor
        # The creator makes sure that no trigger is earlier than the one before it.
        deployments.sort(key=lambda d: (d.trigger.timestamp, d.created_at, d.id))
        return {deployment.id: deployment for deployment in deployments}

    def _set(self, deployments: Iterable[Deployment]) -> None:
        self._deployments = tuple(deployments)
        by_application: defaultdict[str, set[str]] = defaultdict(set)
        for deployment in self._deployments:
            by_application[deployment.application_id].add(deployment.id)
        self._by_application = by_application

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
