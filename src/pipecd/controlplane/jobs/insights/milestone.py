# SPDX-License-Identifier: Apache-2.0
"""Hands on every deployment that has ended since the last time.

How far it came is kept in a file of its own, which moves on only when everything was taken. Each
time it goes back a little, because a piped that was cut off tells late how a deployment ended; so
takers meet deployments again and must count them once.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.insight.gojson import go_json
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound
from pipecd.proto.model.deployment_pb2 import Deployment

UPSTREAM_MILESTONE = "insights/milestone.json"
OUR_MILESTONE = "insights/ext-milestone.json"

# The longest range that can be asked for; nobody will look at what is older.
FIRST_LOOK_BACK = timedelta(days=731)
LOOK_BACK = timedelta(hours=24)

_KEY = "deployment_completed_at_milestone"

# The project, its deployments, and the time before which nothing will be handed on again.
Take = Callable[[str, Sequence[Deployment], int], Awaitable[None]]


async def hand_on(stores: Stores, path: str, take: Take, *, now: Now = utc_now) -> int:
    """Hands on what ended up to now, project by project; answers how many there were."""
    end = to_unix(now())
    milestone = Milestone(stores.files, path)
    await milestone.read()
    since = max(end - int(FIRST_LOOK_BACK.total_seconds()), milestone.settled_before)
    handed_on = 0
    async for part in stores.deployments.iterate_completed(since, end):
        for project, deployments in _by_project(part).items():
            await take(project, deployments, milestone.settled_before)
        handed_on += len(part)
        await milestone.move_to(part[-1].completed_at)
    await milestone.move_to(end)
    return handed_on


class Milestone:
    """Up to when everything was taken, in unix seconds; it never goes back."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path = files, path
        self._reached = 0

    @property
    def settled_before(self) -> int:
        """What ended before then is not looked at again."""
        return max(0, self._reached - int(LOOK_BACK.total_seconds()))

    async def read(self) -> None:
        """Reads how far it came; without a file that is nowhere."""
        try:
            content = await self._files.get(self._path)
        except NotFound:
            return
        self._reached = decoded(self._path, content, _reached)

    async def move_to(self, reached: int) -> None:
        if reached > self._reached:
            await self._files.put(self._path, go_json({_KEY: reached}))
            self._reached = reached


def _reached(content: bytes) -> int:
    return int(json.loads(content)[_KEY])


def _by_project(deployments: Iterable[Deployment]) -> dict[str, list[Deployment]]:
    found: dict[str, list[Deployment]] = {}
    for deployment in deployments:
        found.setdefault(deployment.project_id, []).append(deployment)
    return found
