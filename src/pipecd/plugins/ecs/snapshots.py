# SPDX-License-Identifier: Apache-2.0
"""What runs in the clusters, read for all services at once.

Piped asks for each application by itself. So the services that it asks for are remembered and
described together, ten by ten, and the tasks of a cluster are listed once. What was read counts
for half a minute, or until a stage changes the service, which is then read without the others.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pipecd.plugins.ecs.api import MAX_SERVICES, Ecs, TaskSet
from pipecd.sdk.aws import AwsRejection
from pipecd.sdk.cache import LruCache
from pipecd.sdk.unstructured import Body, list_at, text_at

_FRESH_SECONDS = 30.0
# A service that nobody asks for any more is forgotten.
_REMEMBERED_SECONDS = 600.0
_CACHED_DEFINITIONS = 1000


@dataclass(frozen=True)
class ServiceState:
    """A service with its task sets and tasks."""

    service: Body
    task_sets: Sequence[TaskSet]
    tasks: Sequence[Body]

    @property
    def task_definition(self) -> str:
        """The ARN of the task definition that serves: that of the primary task set."""
        primary = next((each for each in self.task_sets if each.is_primary), None)
        return primary.task_definition if primary else text_at(self.service, "taskDefinition")


@dataclass
class _Cluster:
    """What is known about one cluster, by the names of its services."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    asked: dict[str, float] = field(default_factory=dict[str, float])
    read: dict[str, float] = field(default_factory=dict[str, float])
    services: dict[str, Body] = field(default_factory=dict[str, Body])
    tasks: dict[str, list[Body]] = field(default_factory=dict[str, list[Body]])
    tasks_read: float = float("-inf")


@dataclass
class Snapshots:
    """The snapshots of all clusters."""

    clock: Callable[[], float] = time.monotonic
    _clusters: dict[tuple[str, str], _Cluster] = field(
        default_factory=dict[tuple[str, str], _Cluster]
    )
    _task_sets: LruCache[str, TaskSet] = field(
        default_factory=lambda: LruCache[str, TaskSet](_CACHED_DEFINITIONS)
    )
    _definitions: LruCache[str, Body] = field(
        default_factory=lambda: LruCache[str, Body](_CACHED_DEFINITIONS)
    )

    def forget(self, target: str, cluster: str, name: str) -> None:
        """Lets the next request for a service read it again."""
        known = self._clusters.get((target, cluster))
        if known:
            known.read.pop(name, None)
            known.tasks_read = float("-inf")

    async def service(self, ecs: Ecs, cluster: str, name: str) -> ServiceState | None:
        """Returns a service as it was at most half a minute ago, None if there is none."""
        known = self._clusters.setdefault((ecs.account.target, cluster), _Cluster())
        known.asked[name] = self.clock()
        async with known.lock:
            now = self.clock()
            if name not in known.read:
                unread = [each for each in known.asked if each not in known.read]
                await self._read_services(ecs, cluster, known, unread)
            elif now - known.read[name] > _FRESH_SECONDS:
                # All are read at once, so that they grow old together.
                self._forget_unused(known, now)
                await self._read_services(ecs, cluster, known, known.asked)
            if now - known.tasks_read > _FRESH_SECONDS:
                await self._read_tasks(ecs, cluster, known, now)
            service = known.services.get(name)
            if service is None:
                return None
            task_sets = await self._tagged(ecs, service)
        return ServiceState(service, task_sets, known.tasks.get(f"service:{name}", []))

    async def standalone_tasks(self, ecs: Ecs, cluster: str, family: str) -> list[Body]:
        """Returns the tasks of a task definition that no service has started."""
        known = self._clusters.setdefault((ecs.account.target, cluster), _Cluster())
        async with known.lock:
            now = self.clock()
            if now - known.tasks_read > _FRESH_SECONDS:
                await self._read_tasks(ecs, cluster, known, now)
            return known.tasks.get(f"family:{family}", [])

    async def task_definition(self, ecs: Ecs, name: str) -> Body | None:
        """Returns a task definition; a revision never changes, the newest of a family does."""
        known = self._definitions.get(name)
        if known is not None:
            return known
        try:
            answer = await ecs.account.call(
                "ecs",
                "describe_task_definition",
                about=f"the task definition {name}",
                taskDefinition=name,
            )
        except AwsRejection as e:
            # AWS has no code of its own for a task definition that does not exist.
            if e.code == "ClientException":
                return None
            raise
        if name.startswith("arn:"):
            self._definitions.put(name, answer["taskDefinition"])
        return answer["taskDefinition"]

    def _forget_unused(self, known: _Cluster, now: float) -> None:
        for name in [n for n, at in known.asked.items() if now - at > _REMEMBERED_SECONDS]:
            for values in (known.asked, known.read, known.services):
                values.pop(name, None)

    async def _read_services(
        self, ecs: Ecs, cluster: str, known: _Cluster, names: Iterable[str]
    ) -> None:
        now, names = self.clock(), sorted(names)
        for begin in range(0, len(names), MAX_SERVICES):
            batch = names[begin : begin + MAX_SERVICES]
            found = await ecs.find_services(cluster, batch)
            for name in batch:
                known.read[name] = now
                known.services.pop(name, None)
            known.services |= {text_at(each, "serviceName"): each for each in found}

    async def _read_tasks(self, ecs: Ecs, cluster: str, known: _Cluster, now: float) -> None:
        known.tasks = {}
        for task in await ecs.tasks(cluster):
            known.tasks.setdefault(text_at(task, "group"), []).append(task)
        known.tasks_read = now

    async def _tagged(self, ecs: Ecs, service: Body) -> list[TaskSet]:
        """Returns the task sets of a service with their tags, which are read once."""
        task_sets = [TaskSet(each) for each in list_at(service, "taskSets")]
        if any(self._task_sets.get(each.arn) is None for each in task_sets):
            for each in await ecs.task_sets(service):
                self._task_sets.put(each.arn, each)
        tagged: list[TaskSet] = []
        for each in task_sets:
            known = self._task_sets.get(each.arn)
            tags = list_at(known.document if known else None, "tags")
            tagged.append(TaskSet({**each.document, "tags": tags}))
        return tagged
