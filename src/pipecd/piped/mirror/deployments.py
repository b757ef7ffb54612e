# SPDX-License-Identifier: Apache-2.0
"""The deployments of this piped that have not ended, as of the last refresh."""

import asyncio
import base64
import binascii
import json
from collections import defaultdict
from collections.abc import Iterable

from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import PipecdError
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.changes import Changes
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.trouble import Trouble
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import ListNotCompletedDeploymentsRequest

EVERY = 10.0


class DeploymentMirror:
    """Deployments that wait to be planned or carried out, or are being carried out."""

    def __init__(self, api: ControlPlaneClient, *, every: float = EVERY) -> None:
        self._api = api
        self._deployments: tuple[Deployment, ...] = ()
        self._open: dict[str, frozenset[str]] = {}
        self._is_read = asyncio.Event()
        # How many polls have begun, and which of them the copy is from.
        self._polls, self._copied = 0, 0
        self._is_copied = asyncio.Condition()
        self._trouble = Trouble("deployments")
        self.pace = Pace(every)
        self.changes = Changes()

    @property
    def all(self) -> tuple[Deployment, ...]:
        return self._deployments

    @property
    def pending(self) -> tuple[Deployment, ...]:
        return self._in(DeploymentStatus.PENDING)

    @property
    def planned(self) -> tuple[Deployment, ...]:
        return self._in(DeploymentStatus.PLANNED)

    @property
    def running(self) -> tuple[Deployment, ...]:
        """Those being carried out, a rollback included."""
        return self._in(DeploymentStatus.RUNNING, DeploymentStatus.ROLLING_BACK)

    def open_of(self, application_id: str) -> frozenset[str]:
        """The ids of the deployments of an application that have not ended."""
        return self._open.get(application_id, frozenset())

    def refresh_soon(self) -> None:
        """Asks for a new copy without waiting for it."""
        self.pace.soon()

    async def read(self) -> None:
        """Waits until there is a first copy."""
        await self._is_read.wait()

    async def refreshed(self) -> None:
        """Requests a new copy and waits for it."""
        number = self._polls + 1
        self.pace.soon()
        async with self._is_copied:
            await self._is_copied.wait_for(lambda: self._copied >= number)

    async def run(self) -> None:
        while True:
            await self._refresh()
            await self.pace.wait()

    def _in(self, *statuses: DeploymentStatus) -> tuple[Deployment, ...]:
        return tuple(d for d in self._deployments if d.status in statuses)

    async def _refresh(self) -> None:
        self._polls += 1
        try:
            found = await self._list()
        except PipecdError as e:
            self._trouble.met(e)
            return
        self._trouble.over()
        self._is_read.set()
        if found != self._deployments:
            self._deployments, self._open = found, _by_application(found)
            self.changes.notify()
        async with self._is_copied:
            self._copied = self._polls
            self._is_copied.notify_all()

    async def _list(self) -> tuple[Deployment, ...]:
        found: dict[str, Deployment] = {}
        cursor = ""
        while True:
            answer = await self._api.list_not_completed_deployments(
                ListNotCompletedDeploymentsRequest(cursor=cursor)
            )
            found.update((deployment.id, deployment) for deployment in answer.deployments)
            if is_last_page(answer.cursor) or answer.cursor == cursor:
                break
            cursor = answer.cursor
        in_order = sorted(found.values(), key=lambda d: (d.created_at, d.id))
        return tuple(in_order)


def _by_application(deployments: Iterable[Deployment]) -> dict[str, frozenset[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for deployment in deployments:
        found[deployment.application_id].add(deployment.id)
    return {application: frozenset(ids) for application, ids in found.items()}


def is_last_page(cursor: str) -> bool:
    """Whether nothing follows; upstream's server gives a cursor of `{}` and refuses it later."""
    if not cursor:
        return True
    try:
        return json.loads(base64.b64decode(cursor)) == {}
    except (binascii.Error, ValueError):
        return False
