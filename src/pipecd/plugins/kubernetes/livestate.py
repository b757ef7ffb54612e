# SPDX-License-Identifier: Apache-2.0
"""The live state of an application: its objects on a cluster as a tree, and its sync status."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from pipecd.plugins.kubernetes.client import CONNECTIONS, ApiError
from pipecd.plugins.kubernetes.drift import sync_state
from pipecd.plugins.kubernetes.informer import ClusterInformer, WatchedKind, watched_kinds
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.watch import ObservedObject, observe
from pipecd.sdk import LiveState, PipecdError, Resource, Source, SyncState, SyncStatus, UserMistake
from pipecd.sdk.unstructured import with_value, without

# The first status that one of several clusters has counts.
_BY_SEVERITY = (
    SyncStatus.INVALID_CONFIG,
    SyncStatus.UNKNOWN,
    SyncStatus.OUT_OF_SYNC,
    SyncStatus.SYNCED,
)


async def live_state(
    informer: ClusterInformer, application: str, source: Source, manifests: Sequence[Manifest]
) -> LiveState:
    """Returns the live state of an application on one cluster; the manifests are those of Git."""
    namespaced = [await _with_namespace(informer, manifest) for manifest in manifests]
    declared = [manifest for manifest in namespaced if manifest is not None]
    used = frozenset(WatchedKind(m.key.api_version, m.kind) for m in declared)
    kinds = watched_kinds(used | await informer.managed_kinds(), informer.settings)
    await informer.wait_for_sync(kinds)
    managed = informer.managed(application, used)
    unlisted = await _get_unlisted(informer, application, declared, managed)
    managed += unlisted
    drifts = informer.drifts.compare(
        application,
        managed,
        declared,
        source.ignored_fields(),
        is_watched=not unlisted,
    )
    return LiveState(resource_tree(informer, managed), sync_state(drifts, source.commit))


async def live_state_without_manifests(
    informer: ClusterInformer, application: str, error: UserMistake
) -> LiveState:
    """Returns the live state of an application whose manifests cannot be loaded."""
    await informer.wait_for_sync(watched_kinds(await informer.managed_kinds(), informer.settings))
    managed = informer.managed(application, frozenset())
    informer.drifts.compare(application, managed, (), {})
    sync = SyncState(SyncStatus.INVALID_CONFIG, str(error))
    return LiveState(resource_tree(informer, managed), sync)


def merge_live_states(states: Mapping[str, LiveState | PipecdError]) -> LiveState:
    """Merges the live states of all clusters; an error on one makes the sync status unknown."""
    live = {name: state for name, state in states.items() if isinstance(state, LiveState)}
    errors = [state for state in states.values() if isinstance(state, PipecdError)]
    if errors and not live:
        raise errors[0]
    if len(states) == 1:
        return next(iter(live.values()))
    syncs = {
        name: state.sync
        if isinstance(state, LiveState)
        else SyncState(SyncStatus.UNKNOWN, str(state))
        for name, state in states.items()
    }
    not_synced = {name: s for name, s in syncs.items() if s.status is not SyncStatus.SYNCED}
    return LiveState(
        [resource for state in live.values() for resource in state.resources],
        SyncState(
            min(
                (sync.status for sync in syncs.values()),
                key=_BY_SEVERITY.index,
                default=SyncStatus.SYNCED,
            ),
            "\n".join(f"{name}: {sync.summary}" for name, sync in not_synced.items()),
            "\n".join(
                f"{name}: {sync.details or sync.summary}" for name, sync in not_synced.items()
            ),
        ),
    )


def resource_tree(informer: ClusterInformer, managed: Iterable[ObservedObject]) -> list[Resource]:
    """Returns managed objects and everything that they own, level by level."""
    objects = {observed.uid: observed for observed in managed}
    level = list(objects.values())
    while level:
        owned = (each for observed in level for each in informer.owned_by(observed.uid))
        level = list({each.uid: each for each in owned if each.uid not in objects}.values())
        objects |= {each.uid: each for each in level}
    return [
        Resource(
            id=observed.uid,
            name=observed.key.name,
            kind=observed.key.kind,
            target=informer.name,
            health=observed.health.status,
            health_text=observed.health.message,
            parents=tuple(owner for owner in observed.owners if owner in objects),
            metadata={
                "Namespace": observed.key.namespace,
                "API Version": observed.key.api_version,
                "Kind": observed.key.kind,
            },
            created_at=observed.created_at,
        )
        for observed in objects.values()
    ]


async def _with_namespace(informer: ClusterInformer, manifest: Manifest) -> Manifest | None:
    """Returns a manifest in the namespace that the server gives it, None if it is not selected."""
    try:
        resource = await informer.cluster.discovery.resource(manifest.key)
    except UserMistake:
        # An object of a kind that the cluster does not serve is missing.
        return manifest
    namespaced, namespace = manifest, manifest.key.namespace
    if resource.is_namespaced and not namespace:
        path = ("metadata", "namespace")
        namespaced = manifest.with_body(with_value(manifest.body, path, informer.cluster.namespace))
    elif not resource.is_namespaced:
        namespaced = manifest.with_body(without(manifest.body, "metadata", "namespace"))
    return namespaced if informer.is_selected(namespaced, resource) else None


async def _get_unlisted(
    informer: ClusterInformer,
    application: str,
    declared: Sequence[Manifest],
    managed: Sequence[ObservedObject],
) -> list[ObservedObject]:
    """Gets the declared objects that no watch has listed.

    Upstream's first generation set no labels, and a piped may be allowed to get objects that it may
    not list.
    """
    listed = {each.key.identity for each in managed}
    slots = asyncio.Semaphore(CONNECTIONS)

    async def get(manifest: Manifest) -> ObservedObject | None:
        async with slots:
            try:
                path = await informer.cluster.path(manifest)
                body = await informer.cluster.client.get(path)
            except UserMistake:
                return None
            except ApiError as e:
                if not e.is_not_found:
                    raise
                return None
        return observe(body, manifest.key.api_version, manifest.kind)

    objects = await asyncio.gather(*(get(m) for m in declared if m.key.identity not in listed))
    return [each for each in objects if each and each.application == application]
