# SPDX-License-Identifier: Apache-2.0
"""The deployments of this piped that have not completed, as of the last poll."""

import base64
import json
from collections.abc import Mapping

from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Unsupported
from pipecd.piped.cache.changes import ChangedIds
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
        self._deployments: dict[str, Deployment] = {}
        self._all: tuple[Deployment, ...] | None = ()
        self._by_application: dict[str, frozenset[str]] = {}
        # Deployments that this process created and that no poll has listed yet.
        self._unlisted: dict[str, Deployment] = {}
        # Deployments that this process completed, as long as a poll may still list them.
        self._completed: set[str] = set()
        # Deployments that are in the control plane exactly as this process created them.
        self._created: dict[str, Deployment] = {}
        # Applications with another set of deployments than before.
        self.changed_applications = ChangedIds()

    @property
    def all(self) -> tuple[Deployment, ...]:
        if self._all is None:
            self._all = tuple(self._deployments.values())
        return self._all

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
        return self._by_application.get(application_id, frozenset())

    def add(self, deployment: Deployment) -> None:
        """Adds a deployment that this piped created, unless a poll has listed it already."""
        if deployment.id in self._deployments:
            return
        self._created[deployment.id] = self._unlisted[deployment.id] = deployment
        self._deployments[deployment.id] = deployment
        own = self.not_completed_of(deployment.application_id)
        self._changed_of(deployment.application_id, own | {deployment.id})

    def remove_completed(self, deployment_id: str) -> None:
        """Removes a deployment that this piped completed, also from polls in progress."""
        self._completed.add(deployment_id)
        self._unlisted.pop(deployment_id, None)
        self._created.pop(deployment_id, None)
        if (deployment := self._deployments.pop(deployment_id, None)) is not None:
            own = self.not_completed_of(deployment.application_id)
            self._changed_of(deployment.application_id, own - {deployment_id})

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
        added_before, completed_before = set(self._unlisted), set(self._completed)
        listed = await self._list()
        # The response may be older than what was added or completed during the poll.
        self._unlisted = {
            id: d for id, d in self._unlisted.items() if id not in added_before | listed.keys()
        }
        self._completed -= completed_before
        listed = {id: d for id, d in listed.items() if id not in self._completed} | self._unlisted
        self._created = {id: d for id, d in self._created.items() if listed.get(id) == d}
        return self._set(listed)

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

    def _set(self, deployments: dict[str, Deployment]) -> bool:
        """Replaces the deployments; returns whether they or their order changed."""
        before, by_application_before = self.all, self._by_application
        self._deployments, self._all = deployments, None
        self._by_application = _ids_by_application(deployments)
        self.changed_applications.notify(
            id
            for id in by_application_before.keys() | self._by_application.keys()
            if by_application_before.get(id) != self._by_application.get(id)
        )
        return self.all != before

    def _changed_of(self, application_id: str, deployment_ids: frozenset[str]) -> None:
        self._all = None
        if deployment_ids:
            self._by_application[application_id] = deployment_ids
        else:
            self._by_application.pop(application_id, None)
        self.changed_applications.notify((application_id,))
        self.changes.notify()

    def _with_status(self, *statuses: DeploymentStatus) -> tuple[Deployment, ...]:
        return tuple(d for d in self.all if d.status in statuses)


def _ids_by_application(deployments: Mapping[str, Deployment]) -> dict[str, frozenset[str]]:
    ids: dict[str, set[str]] = {}
    for deployment in deployments.values():
        ids.setdefault(deployment.application_id, set()).add(deployment.id)
    return {application: frozenset(own) for application, own in ids.items()}


def is_last_page(cursor: str) -> bool:
    """Returns whether no page follows; upstream's server sends `{}` then and refuses it later."""
    if not cursor:
        return True
    try:
        return json.loads(base64.b64decode(cursor)) == {}
    except ValueError:
        return False
