# SPDX-License-Identifier: Apache-2.0
"""What runs of one application on one cluster: its tree of objects, and whether it is as in Git."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipecd.plugins.kubernetes.cluster.client import CONNECTIONS
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.live.drift import drift
from pipecd.plugins.kubernetes.live.lookout import Lookout
from pipecd.plugins.kubernetes.live.scope import Scope, scopes
from pipecd.plugins.kubernetes.live.sighting import Sighting, sighting
from pipecd.plugins.kubernetes.manifest.body import with_value, without
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import LiveState, PipecdError, Resource, Source, SyncState, SyncStatus, UserMistake


@dataclass(frozen=True)
class Declared:
    """An application as Git declares it."""

    application: str
    source: Source
    manifests: Sequence[Manifest]


async def live_state(lookout: Lookout, declared: Declared) -> LiveState:
    """Returns what runs for an application on a cluster."""
    found = [await _placed(lookout, manifest) for manifest in declared.manifests]
    compared = [manifest for manifest in found if manifest is not None]
    used = frozenset(Scope(m.key.api_version, m.kind) for m in compared)
    await lookout.see(scopes(used | await lookout.survey(), lookout.informer))
    managed = lookout.managed(declared.application, used)
    managed += await _unlisted(lookout, declared.application, compared, managed)
    sync = drift(
        [each.manifest for each in managed],
        compared,
        declared.source.commit,
        declared.source.ignored_fields(),
    )
    return LiveState(resources_of(lookout, managed), sync)


async def without_manifests(lookout: Lookout, application: str, why: UserMistake) -> LiveState:
    """Returns what runs for an application whose manifests in Git cannot be read."""
    await lookout.see(scopes(await lookout.survey(), lookout.informer))
    managed = lookout.managed(application, frozenset())
    return LiveState(resources_of(lookout, managed), SyncState(SyncStatus.INVALID_CONFIG, str(why)))


# The worst of several clusters counts.
_WORST = (SyncStatus.INVALID_CONFIG, SyncStatus.UNKNOWN, SyncStatus.OUT_OF_SYNC, SyncStatus.SYNCED)


def merged(states: Mapping[str, LiveState | PipecdError]) -> LiveState:
    """Returns what runs on all clusters; one that cannot be looked at makes the whole unknown."""
    found = {name: each for name, each in states.items() if isinstance(each, LiveState)}
    failures = [each for each in states.values() if isinstance(each, PipecdError)]
    if failures and not found:
        raise failures[0]
    if len(states) == 1:
        return next(iter(found.values()))
    syncs = {name: _sync(each) for name, each in states.items()}
    status = min((sync.status for sync in syncs.values()), key=_WORST.index, default=_WORST[-1])
    untidy = {name: s for name, s in syncs.items() if s.status is not SyncStatus.SYNCED}
    return LiveState(
        [resource for each in found.values() for resource in each.resources],
        SyncState(
            status,
            "\n".join(f"{name}: {sync.summary}" for name, sync in untidy.items()),
            "\n".join(f"{name}: {sync.details or sync.summary}" for name, sync in untidy.items()),
        ),
    )


def _sync(state: LiveState | PipecdError) -> SyncState:
    if isinstance(state, LiveState):
        return state.sync
    return SyncState(SyncStatus.UNKNOWN, str(state))


def resources_of(lookout: Lookout, managed: Iterable[Sighting]) -> list[Resource]:
    """Returns objects and everything below them, level by level."""
    found = {seen.uid: seen for seen in managed}
    level = list(found.values())
    while level:
        below = (child for seen in level for child in lookout.below(seen.uid))
        level = list({child.uid: child for child in below if child.uid not in found}.values())
        found |= {child.uid: child for child in level}
    return [_resource(seen, lookout.name, found.keys()) for seen in found.values()]


def _resource(seen: Sighting, target: str, known: Iterable[str]) -> Resource:
    key = seen.key
    return Resource(
        id=seen.uid,
        name=key.name,
        kind=key.kind,
        target=target,
        health=seen.verdict.health,
        health_text=seen.verdict.text,
        parents=tuple(owner for owner in seen.owners if owner in known),
        metadata={
            "Namespace": key.namespace,
            "API Version": key.api_version,
            "Kind": key.kind,
        },
        created_at=seen.created_at,
    )


async def _placed(lookout: Lookout, manifest: Manifest) -> Manifest | None:
    """Returns a manifest in the namespace that the server gives it, None for one out of sight."""
    try:
        resource = await lookout.cluster.kinds.of(manifest.key)
    except UserMistake:
        # An object of a kind that the cluster does not know is missing.
        return manifest
    if not resource.is_namespaced:
        placed = manifest.with_body(without(manifest.body, "metadata", "namespace"))
    else:
        place = manifest.key.namespace or lookout.cluster.namespace
        placed = manifest.with_body(with_value(manifest.body, ("metadata", "namespace"), place))
    return placed if lookout.is_in_sight(placed, resource) else None


async def _unlisted(
    lookout: Lookout, application: str, declared: Sequence[Manifest], managed: Sequence[Sighting]
) -> list[Sighting]:
    """Returns objects that are there without having been listed.

    The first generation of upstream set no labels, and a piped may be allowed to read what it may
    not list.
    """
    known = {each.key.identity for each in managed}
    slots = asyncio.Semaphore(CONNECTIONS)

    async def found(manifest: Manifest) -> Sighting | None:
        async with slots:
            try:
                path = await lookout.cluster.path(manifest)
                body = await lookout.cluster.client.get(path)
            except UserMistake:
                return None
            except Refusal as e:
                if not e.is_missing:
                    raise
                return None
        return sighting(body, manifest.key.api_version, manifest.kind)

    answers = await asyncio.gather(*(found(m) for m in declared if m.key.identity not in known))
    return [each for each in answers if each and each.application == application]
