# SPDX-License-Identifier: Apache-2.0
"""One cluster and what is seen of it: a watch for every kind in use."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack

import structlog

from pipecd.plugins.kubernetes.cluster.apply import Cluster
from pipecd.plugins.kubernetes.cluster.client import open_client
from pipecd.plugins.kubernetes.cluster.discovery import Kinds, Resource
from pipecd.plugins.kubernetes.cluster.kubeconfig import connection_of
from pipecd.plugins.kubernetes.cluster.owned import kinds_in_use
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
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


class Lookout:
    """Watches the kinds that were asked for; a kind is watched from the first question on."""

    def __init__(
        self, name: str, cluster: Cluster, informer: AppStateInformer, tasks: asyncio.TaskGroup
    ) -> None:
        self.name, self.cluster, self.informer = name, cluster, informer
        self._tasks = tasks
        self._watches: dict[Scope, Watch] = {}
        self._surveyed: frozenset[Scope] | None = None

    async def see(self, scopes: Iterable[Scope]) -> None:
        """Watches kinds and returns once what is known of them is up to date.

        A kind that may not be listed is left out.
        """
        wanted = sorted(scopes)
        for scope in wanted:
            await self._watch(scope)
        watches = {scope: self._watches[scope] for scope in wanted if scope in self._watches}
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
        """Returns the kinds of which this cluster has managed objects, as looked up once.

        So objects are seen whose kind is in Git no more.
        """
        if self._surveyed is None:
            self._surveyed = frozenset(
                Scope(kind.api_version, kind.kind)
                for kind in await kinds_in_use(self.cluster, self._namespace)
            )
        return self._surveyed

    def managed(self, application: str, used: frozenset[Scope]) -> list[Sighting]:
        """Returns the objects of an application, in the version of the kinds `used` if seen so."""
        found: dict[str, Sighting] = {}
        for scope in sorted(self._watches, key=lambda scope: scope in used):
            sightings = self._watches[scope].sightings
            found |= {seen.uid: seen for seen in sightings.of_application(application)}
        return list(found.values())

    def below(self, uid: str) -> list[Sighting]:
        """Returns what an object owns."""
        found = (watch.sightings.below(uid) for watch in self._watches.values())
        return list({seen.uid: seen for each in found for seen in each}.values())

    @property
    def _namespace(self) -> str:
        return self.informer.namespace or self.cluster.namespace

    async def _watch(self, scope: Scope) -> None:
        if scope in self._watches:
            return
        try:
            resource = await self.cluster.kinds.of(Key(scope.api_version, scope.kind, "", ""))
        except UserMistake:
            # Nothing of a kind that does not exist can be live.
            return
        if scope in self._watches or not self._is_watchable(resource):
            return
        selector = "" if scope.is_owned else f"{MANAGED_BY}={BY_PIPED}"
        watch = Watch(
            self.cluster.client, resource, namespace=self.informer.namespace, selector=selector
        )
        self._watches[scope] = watch
        self._tasks.create_task(watch.run(), name=f"watch {scope.kind} of {self.name}")

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


class Lookouts:
    """The deploy targets of a piped, each opened when it is first looked at."""

    def __init__(self) -> None:
        self._known: dict[str, Lookout] = {}
        self._running = asyncio.Event()
        self._clients: AsyncExitStack
        self._tasks: asyncio.TaskGroup

    async def of(self, target: DeployTarget) -> Lookout:
        """Returns the lookout of a deploy target."""
        await self._running.wait()
        if target.name not in self._known:
            settings = target.settings(KubernetesTarget)
            connection = connection_of(settings.master_url, settings.kube_config_path)
            client = await self._clients.enter_async_context(open_client(connection))
            cluster = Cluster(client, Kinds(client), connection.namespace or DEFAULT_NAMESPACE)
            lookout = Lookout(target.name, cluster, settings.app_state_informer, self._tasks)
            return self._known.setdefault(target.name, lookout)
        return self._known[target.name]

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
