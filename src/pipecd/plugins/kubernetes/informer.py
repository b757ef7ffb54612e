# SPDX-License-Identifier: Apache-2.0
"""Caches the live objects of clusters: one watch for every kind that applications use.

`ClusterInformers` holds a `ClusterInformer` per deploy target. A kind is watched from the first
time that a live state needs it until no live state has needed it for half an hour.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from math import inf
from typing import Protocol, TypeAlias

import structlog

from pipecd.plugins.kubernetes.client import ApiError
from pipecd.plugins.kubernetes.cluster import ApiResource, Cluster, open_cluster
from pipecd.plugins.kubernetes.config import AppStateInformer, KubernetesTarget
from pipecd.plugins.kubernetes.drift_cache import DriftCache
from pipecd.plugins.kubernetes.managed_objects import list_managed_kinds
from pipecd.plugins.kubernetes.manifest import (
    BY_PIPED,
    MANAGED_BY,
    Manifest,
    ResourceKey,
)
from pipecd.plugins.kubernetes.metrics import Metrics
from pipecd.plugins.kubernetes.watch import ObservedObject, ResourceWatch
from pipecd.sdk import DeployTarget, Unavailable, UserMistake

logger = structlog.get_logger()

# How long a live state waits for the first list of a kind.
_SYNC_TIMEOUT = 20.0
# Every live state is queried several times within this period. A watch that none of them used is
# stopped, and the managed kinds of the cluster are listed again.
_IDLE_TIMEOUT = 1800.0
_RESTART_DELAY = 1.0
# A rollout changes its workload, a ReplicaSet and many Pods at once: they become one notification.
_BATCH_DELAY = 0.1
# Comparing more objects at a time would hold up the event loop.
_COMPARED_AT_ONCE = 20

_APPS, _BATCH = "apps/v1", "batch/v1"

NotifyApplications: TypeAlias = Callable[[Collection[str]], None]
"""Receives the ids of the applications whose live state changed."""


class RecordEvent(Protocol):
    """Records an event of a watch, handled if it concerns an application."""

    def __call__(self, event: str, *, is_handled: bool) -> None: ...


@dataclass(frozen=True, order=True)
class WatchedKind:
    """A kind to watch: its managed objects, or all of them if others own them (`is_owned`)."""

    api_version: str
    kind: str
    is_owned: bool = False

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]


_POD = WatchedKind("v1", "Pod", is_owned=True)
_REPLICA_SET = WatchedKind(_APPS, "ReplicaSet", is_owned=True)
_JOB = WatchedKind(_BATCH, "Job", is_owned=True)
_OWNED_KINDS: dict[tuple[str, str], tuple[WatchedKind, ...]] = {
    ("apps", "Deployment"): (_REPLICA_SET, _POD),
    ("apps", "ReplicaSet"): (_POD,),
    ("apps", "StatefulSet"): (_POD,),
    ("apps", "DaemonSet"): (_POD,),
    ("", "ReplicationController"): (_POD,),
    ("batch", "Job"): (_POD,),
    ("batch", "CronJob"): (_JOB, _POD),
    ("", "Service"): (WatchedKind("discovery.k8s.io/v1", "EndpointSlice", is_owned=True),),
}
# What the controller of a custom resource usually creates.
_OWNED_BY_CUSTOM_RESOURCE = (
    _REPLICA_SET,
    _JOB,
    _POD,
    WatchedKind(_APPS, "Deployment", is_owned=True),
    WatchedKind(_APPS, "StatefulSet", is_owned=True),
    WatchedKind("v1", "Service", is_owned=True),
)


def watched_kinds(
    used: Iterable[WatchedKind], settings: AppStateInformer
) -> frozenset[WatchedKind]:
    """Returns the kinds to watch for the kinds in use, by the settings of the deploy target."""
    managed = [kind for kind in used if not is_excluded(kind, settings)]
    owned: list[WatchedKind] = []
    for kind in managed:
        is_custom_resource = "." in kind.group and not kind.group.endswith(".k8s.io")
        default = _OWNED_BY_CUSTOM_RESOURCE if is_custom_resource else ()
        owned += _OWNED_KINDS.get((kind.group, kind.kind), default)
    included = (
        WatchedKind(matcher.api_version, matcher.kind, is_owned=True)
        for matcher in settings.include_resources
        if matcher.kind
    )
    selected = (kind for kind in (*owned, *included) if not is_excluded(kind, settings))
    return frozenset((*managed, *selected))


def is_excluded(kind: WatchedKind, settings: AppStateInformer) -> bool:
    """Reports whether `excludeResources` of the deploy target names a kind."""
    return any(
        matcher.api_version == kind.api_version and matcher.kind in ("", kind.kind)
        for matcher in settings.exclude_resources
    )


class ChangeNotifier:
    """Batches changes of objects into notifications of the applications that they concern.

    A change with which the live state stays the same, as `changes_live_state` says, concerns none.
    The applications of an object are resolved when a batch is sent, because the owner of an object
    may be listed after it. Events are counted at that time too.
    """

    def __init__(
        self,
        applications_of: Callable[[ObservedObject], Iterable[str]],
        changes_live_state: Callable[[ObservedObject], bool],
        notify: NotifyApplications,
        record_event: RecordEvent,
    ) -> None:
        self._applications_of, self._notify = applications_of, notify
        self._changes_live_state = changes_live_state
        self._record_event = record_event
        self._changed: dict[str, ObservedObject] = {}
        self._events: list[tuple[str, ObservedObject]] = []
        self._has_work = asyncio.Event()

    def object_changed(self, observed: ObservedObject) -> None:
        """Adds an object that was added, changed or deleted."""
        self._changed[observed.uid] = observed
        self._has_work.set()

    def event_received(self, event: str, observed: ObservedObject) -> None:
        """Adds an event of a watch, whether or not it changed the object."""
        self._events.append((event, observed))
        self._has_work.set()

    async def run(self) -> None:
        """Sends batches until it is cancelled."""
        while True:
            await self._has_work.wait()
            await asyncio.sleep(_BATCH_DELAY)
            self._has_work.clear()
            changed, self._changed = self._changed, {}
            events, self._events = self._events, []
            objects = {observed.uid: observed for _, observed in events} | changed
            applications = {uid: set(self._applications_of(o)) for uid, o in objects.items()}
            for event, observed in events:
                self._record_event(event, is_handled=bool(applications[observed.uid]))
            concerned: set[str] = set()
            for number, (uid, observed) in enumerate(changed.items(), start=1):
                if not applications[uid] <= concerned and self._changes_live_state(observed):
                    concerned |= applications[uid]
                if number % _COMPARED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if concerned:
                self._notify(concerned)


@dataclass
class _RunningWatch:
    """A watch, its task, and when a live state used it last."""

    watch: ResourceWatch
    task: asyncio.Task[None]
    used_at: float


class ClusterInformer:
    """Caches the live objects of one cluster, for the kinds that live states need."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        settings: AppStateInformer,
        tasks: asyncio.TaskGroup,
        notify: NotifyApplications,
        record_event: RecordEvent,
    ) -> None:
        self.name, self.cluster, self.settings = name, cluster, settings
        self._tasks = tasks
        self._watches: dict[WatchedKind, _RunningWatch] = {}
        self._managed_kinds: frozenset[WatchedKind] = frozenset()
        self._managed_kinds_listed_at = -inf
        self.drifts = DriftCache()
        self._notifier = ChangeNotifier(
            self.applications_of, self._changes_live_state, notify, record_event
        )
        tasks.create_task(self._notifier.run(), name=f"change notifier of {name}")
        tasks.create_task(self._stop_idle_watches(), name=f"idle watches of {name}")

    async def wait_for_sync(self, kinds: Iterable[WatchedKind]) -> None:
        """Watches kinds and returns once their cached objects are up to date.

        A kind that the piped may not list is left out.
        """
        requested = sorted(kinds)
        for kind in requested:
            await self._start_watch(kind)
        watches = {k: self._watches[k].watch for k in requested if k in self._watches}
        try:
            async with asyncio.timeout(_SYNC_TIMEOUT):
                for kind, watch in watches.items():
                    await self._wait_for_watch(kind, watch)
        except TimeoutError as e:
            errors = [watch.error for watch in watches.values() if watch.error]
            raise Unavailable(
                f"the live state on deploy target {self.name} is unavailable"
                + (f": {errors[0]}" if errors else ", its objects are not listed yet")
            ) from e

    def is_selected(self, manifest: Manifest, resource: ApiResource) -> bool:
        """Reports whether the settings of the deploy target include an object."""
        if is_excluded(WatchedKind(resource.api_version, resource.kind), self.settings):
            return False
        return self.settings.namespace in ("", manifest.key.namespace)

    async def managed_kinds(self) -> frozenset[WatchedKind]:
        """Returns the kinds of which the cluster has managed objects, listed every half an hour.

        With them the live state also has objects whose kind is no longer in Git.
        """
        if _now() >= self._managed_kinds_listed_at + _IDLE_TIMEOUT:
            namespace = self.settings.namespace or self.cluster.namespace
            self._managed_kinds = frozenset(
                WatchedKind(resource.api_version, resource.kind)
                for resource in await list_managed_kinds(self.cluster, namespace)
            )
            self._managed_kinds_listed_at = _now()
        return self._managed_kinds

    def managed(self, application: str, preferred: frozenset[WatchedKind]) -> list[ObservedObject]:
        """Returns the objects of an application, in the API versions of `preferred` if watched."""
        objects: dict[str, ObservedObject] = {}
        for kind in sorted(self._watches, key=lambda kind: kind in preferred):
            store = self._watches[kind].watch.objects
            objects |= {each.uid: each for each in store.of_application(application)}
        return list(objects.values())

    def owned_by(self, uid: str) -> list[ObservedObject]:
        """Returns the objects that an object owns."""
        owned = (each.watch.objects.owned_by(uid) for each in self._watches.values())
        return list({observed.uid: observed for each in owned for observed in each}.values())

    def applications_of(self, observed: ObservedObject) -> set[str]:
        """Returns the applications that an object belongs to, directly or through its owners."""
        applications: set[str] = set()
        visited, level = {observed.uid}, [observed]
        while level:
            applications |= {each.application for each in level if each.application}
            owners = {owner for each in level for owner in each.owners} - visited
            visited |= owners
            cached = (
                each.watch.objects.get(uid) for uid in owners for each in self._watches.values()
            )
            level = [owner for owner in cached if owner is not None]
        return applications

    def _changes_live_state(self, observed: ObservedObject) -> bool:
        if not observed.application:
            # Only objects that an application manages are compared with Git.
            return True
        stored = (each.watch.objects.get(observed.uid) for each in self._watches.values())
        is_stored = any(each is observed for each in stored)
        return self.drifts.changes_live_state(observed, is_deleted=not is_stored)

    async def _start_watch(self, kind: WatchedKind) -> None:
        if kind in self._watches:
            self._watches[kind].used_at = _now()
            return
        try:
            key = ResourceKey(kind.api_version, kind.kind, "", "")
            resource = await self.cluster.discovery.resource(key)
        except UserMistake:
            # A kind that the cluster does not serve has no live objects.
            return
        is_in_namespace = resource.is_namespaced or not self.settings.namespace
        is_watchable = is_in_namespace and resource.verbs >= {"list", "watch"}
        if kind in self._watches or not is_watchable:
            return
        watch = ResourceWatch(
            self.cluster.client,
            resource,
            self._notifier.object_changed,
            on_event=self._notifier.event_received,
            namespace=self.settings.namespace,
            selector="" if kind.is_owned else f"{MANAGED_BY}={BY_PIPED}",
        )
        task = self._tasks.create_task(watch.run(), name=f"watch {kind.kind} of {self.name}")
        self._watches[kind] = _RunningWatch(watch, task, used_at=_now())

    async def _stop_idle_watches(self) -> None:
        while True:
            used_at = [each.used_at for each in self._watches.values()]
            await asyncio.sleep(min(used_at, default=_now()) + _IDLE_TIMEOUT - _now())
            for kind, each in list(self._watches.items()):
                if _now() >= each.used_at + _IDLE_TIMEOUT:
                    each.task.cancel()
                    del self._watches[kind]
            self.drifts.remove_unused()

    async def _wait_for_watch(self, kind: WatchedKind, watch: ResourceWatch) -> None:
        try:
            await watch.wait_for_sync()
        except ApiError as e:
            logger.warning(
                "the API server refuses to list a kind, its objects are not shown",
                target=self.name,
                kind=kind.kind,
                error=str(e),
            )


def _now() -> float:
    return asyncio.get_running_loop().time()


class ClusterInformers:
    """The informers of all deploy targets of a piped, each started when it is first used."""

    def __init__(self, notify: NotifyApplications, metrics: Metrics) -> None:
        self._notify, self._metrics = notify, metrics
        self._informers: dict[str, ClusterInformer] = {}
        # Concurrent first uses of a deploy target start one informer.
        self._start_lock = asyncio.Lock()
        self._running = asyncio.Event()
        self._clusters: AsyncExitStack
        self._tasks: asyncio.TaskGroup

    async def informer(self, target: DeployTarget) -> ClusterInformer:
        """Returns the informer of a deploy target."""
        await self._running.wait()
        async with self._start_lock:
            if target.name not in self._informers:
                settings = target.settings(KubernetesTarget)
                self._informers[target.name] = ClusterInformer(
                    target.name,
                    await self._clusters.enter_async_context(
                        open_cluster(settings, record_response=self._metrics.record_response)
                    ),
                    settings.app_state_informer,
                    self._tasks,
                    self._notify,
                    self._metrics.record_event,
                )
            return self._informers[target.name]

    def expire(self, application: str) -> None:
        """Makes the next change of an application on any cluster a reason to read it again."""
        for informer in self._informers.values():
            informer.drifts.expire(application)

    async def run(self) -> None:
        """Runs the watches until it is cancelled; a failure restarts all of them."""
        while True:
            try:
                async with AsyncExitStack() as self._clusters, asyncio.TaskGroup() as self._tasks:
                    self._running.set()
                    await asyncio.Future()
            except* Exception:
                logger.exception("cluster informers failed, restarting", delay=_RESTART_DELAY)
            self._running.clear()
            self._informers.clear()
            await asyncio.sleep(_RESTART_DELAY)
