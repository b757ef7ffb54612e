# SPDX-License-Identifier: Apache-2.0
"""One cluster and what is seen of it: a watch for every kind in use."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf

import structlog

from pipecd.plugins.kubernetes.cluster.apply import Cluster
from pipecd.plugins.kubernetes.cluster.client import open_client
from pipecd.plugins.kubernetes.cluster.discovery import Kinds, Resource
from pipecd.plugins.kubernetes.cluster.kubeconfig import connection_of
from pipecd.plugins.kubernetes.cluster.owned import kinds_in_use
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.figures import Figures
from pipecd.plugins.kubernetes.live.news import Count, News, Tell
from pipecd.plugins.kubernetes.live.scope import Scope, is_excluded
from pipecd.plugins.kubernetes.live.sighting import Sighting
from pipecd.plugins.kubernetes.live.watch import Watch
from pipecd.plugins.kubernetes.manifest.key import DEFAULT_NAMESPACE, Key
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import BY_PIPED, MANAGED_BY
from pipecd.plugins.kubernetes.target import AppStateInformer, KubernetesTarget
from pipecd.sdk import DeployTarget, Unavailable, UserMistake

logger = structlog.get_logger()

# So long somebody who asks waits for the first list of a kind.
_PATIENCE = 20.0
_PAUSE = 1.0
# Everybody looks several times within this; a kind that nobody asked for is used no more. What the
# cluster has is looked up as often, so that a kind may be asked for so long after its last object.
_UNUSED = 1800.0


@dataclass
class _Watched:
    """A watch, its task, and when somebody asked for it last."""

    watch: Watch
    task: asyncio.Task[None]
    asked_at: float


class Lookout:
    """Watches the kinds that were asked for, from the first question on and while they are used."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        informer: AppStateInformer,
        tasks: asyncio.TaskGroup,
        tell: Tell,
        count: Count,
    ) -> None:
        self.name, self.cluster, self.informer = name, cluster, informer
        self._tasks = tasks
        self._watched: dict[Scope, _Watched] = {}
        self._surveyed: frozenset[Scope] = frozenset()
        self._surveyed_at = -inf
        self._news = News(self.applications_of, tell, count)
        tasks.create_task(self._news.run(), name=f"news of {name}")
        tasks.create_task(self._end_unused(), name=f"unused watches of {name}")

    async def see(self, scopes: Iterable[Scope]) -> None:
        """Watches kinds and returns once what is known of them is up to date.

        A kind that may not be listed is left out.
        """
        wanted = sorted(scopes)
        for scope in wanted:
            await self._watch(scope)
        watches = {s: self._watched[s].watch for s in wanted if s in self._watched}
        try:
            async with asyncio.timeout(_PATIENCE):
                for scope, watch in watches.items():
                    await self._ready(scope, watch)
        except TimeoutError as e:
            problems = [watch.problem for watch in watches.values() if watch.problem]
            raise Unavailable(
                f"what runs on {self.name} is not known"
                + (f": {problems[0]}" if problems else ", its objects are not listed yet")
            ) from e

    def is_in_sight(self, manifest: Manifest, resource: Resource) -> bool:
        """Reports whether the deploy target wants an object to be looked at."""
        if is_excluded(Scope(resource.api_version, resource.kind), self.informer):
            return False
        return self.informer.namespace in ("", manifest.key.namespace)

    async def survey(self) -> frozenset[Scope]:
        """Returns the kinds of which this cluster has managed objects, looked up now and then.

        So objects are seen whose kind is in Git no more.
        """
        if _now() >= self._surveyed_at + _UNUSED:
            self._surveyed = frozenset(
                Scope(kind.api_version, kind.kind)
                for kind in await kinds_in_use(self.cluster, self._namespace)
            )
            self._surveyed_at = _now()
        return self._surveyed

    def managed(self, application: str, used: frozenset[Scope]) -> list[Sighting]:
        """Returns the objects of an application, in the version of the kinds `used` if seen so."""
        found: dict[str, Sighting] = {}
        for scope in sorted(self._watched, key=lambda scope: scope in used):
            sightings = self._watched[scope].watch.sightings
            found |= {seen.uid: seen for seen in sightings.of_application(application)}
        return list(found.values())

    def below(self, uid: str) -> list[Sighting]:
        """Returns what an object owns."""
        found = (each.watch.sightings.below(uid) for each in self._watched.values())
        return list({seen.uid: seen for each in found for seen in each}.values())

    def applications_of(self, seen: Sighting) -> set[str]:
        """Returns the applications that an object belongs to, itself or through its owners."""
        found: set[str] = set()
        known, level = {seen.uid}, [seen]
        while level:
            found |= {each.application for each in level if each.application}
            above = {owner for each in level for owner in each.owners} - known
            known |= above
            level = [owner for uid in above for owner in self._by_uid(uid)]
        return found

    def _by_uid(self, uid: str) -> list[Sighting]:
        found = (each.watch.sightings.of(uid) for each in self._watched.values())
        return [seen for seen in found if seen is not None]

    @property
    def _namespace(self) -> str:
        return self.informer.namespace or self.cluster.namespace

    async def _watch(self, scope: Scope) -> None:
        if scope in self._watched:
            self._watched[scope].asked_at = _now()
            return
        try:
            resource = await self.cluster.kinds.of(Key(scope.api_version, scope.kind, "", ""))
        except UserMistake:
            # Nothing of a kind that does not exist can be live.
            return
        if scope in self._watched or not self._is_watchable(resource):
            return
        watch = Watch(
            self.cluster.client,
            resource,
            self._news.note,
            heard=self._news.heard,
            namespace=self.informer.namespace,
            selector="" if scope.is_owned else f"{MANAGED_BY}={BY_PIPED}",
        )
        task = self._tasks.create_task(watch.run(), name=f"watch {scope.kind} of {self.name}")
        self._watched[scope] = _Watched(watch, task, asked_at=_now())

    async def _end_unused(self) -> None:
        while True:
            asked_at = [each.asked_at for each in self._watched.values()]
            await asyncio.sleep(min(asked_at, default=_now()) + _UNUSED - _now())
            for scope, each in list(self._watched.items()):
                if _now() >= each.asked_at + _UNUSED:
                    each.task.cancel()
                    del self._watched[scope]

    def _is_watchable(self, resource: Resource) -> bool:
        in_reach = resource.is_namespaced or not self.informer.namespace
        return in_reach and resource.verbs >= {"list", "watch"}

    async def _ready(self, scope: Scope, watch: Watch) -> None:
        try:
            await watch.ready()
        except Refusal as e:
            logger.warning(
                "a kind cannot be watched", target=self.name, kind=scope.kind, error=str(e)
            )


def _now() -> float:
    return asyncio.get_running_loop().time()


class Lookouts:
    """The deploy targets of a piped, each opened when it is first looked at."""

    def __init__(self, tell: Tell, figures: Figures) -> None:
        self._tell, self._figures = tell, figures
        self._known: dict[str, Lookout] = {}
        # Of those who look first at the same time, one opens and all others find it open.
        self._opening = asyncio.Lock()
        self._running = asyncio.Event()
        self._clients: AsyncExitStack
        self._tasks: asyncio.TaskGroup

    async def of(self, target: DeployTarget) -> Lookout:
        """Returns the lookout of a deploy target."""
        await self._running.wait()
        async with self._opening:
            if target.name not in self._known:
                self._known[target.name] = await self._open(target)
            return self._known[target.name]

    async def _open(self, target: DeployTarget) -> Lookout:
        settings = target.settings(KubernetesTarget)
        connection = connection_of(settings.master_url, settings.kube_config_path)
        client = await self._clients.enter_async_context(
            open_client(connection, answered=self._figures.answered)
        )
        return Lookout(
            target.name,
            Cluster(client, Kinds(client), connection.namespace or DEFAULT_NAMESPACE),
            settings.app_state_informer,
            self._tasks,
            self._tell,
            self._figures.heard,
        )

    async def run(self) -> None:
        """Lets the watches run until it is cancelled; after a failure all of them begin anew."""
        while True:
            try:
                async with AsyncExitStack() as self._clients, asyncio.TaskGroup() as self._tasks:
                    self._running.set()
                    await asyncio.Future()
            except* Exception:
                logger.exception("the watches failed and begin anew")
            self._running.clear()
            self._known.clear()
            await asyncio.sleep(_PAUSE)
