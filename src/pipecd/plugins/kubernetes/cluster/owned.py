# SPDX-License-Identifier: Apache-2.0
"""The objects of a cluster that belong to an application, and their end."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.cluster.apply import Cluster, Say
from pipecd.plugins.kubernetes.cluster.client import CONNECTIONS, METADATA_LIST
from pipecd.plugins.kubernetes.cluster.discovery import Resource
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.manifest.body import list_at, map_at
from pipecd.plugins.kubernetes.manifest.key import Key
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import (
    APPLICATION,
    BY_PIPED,
    MANAGED_BY,
    managing_application,
)
from pipecd.plugins.kubernetes.manifest.order import rank
from pipecd.sdk import UserMistake

_NEEDED = frozenset({"list", "delete"})


async def owned(
    cluster: Cluster, application: str, labels: Mapping[str, str], *, kind: str = ""
) -> list[Manifest]:
    """Returns the objects of an application, without what they own in turn; only their metadata."""
    marks = {MANAGED_BY: BY_PIPED, APPLICATION: application, **labels}
    selector = _selector(marks)
    found = await _listed(cluster, cluster.namespace, kind, labelSelector=selector)
    return [
        _object(item, resource)
        for resource, items in found.items()
        for item in items
        if managing_application(item) == application
    ]


async def kinds_in_use(cluster: Cluster, namespace: str) -> list[Resource]:
    """Returns the kinds of which some piped manages objects."""
    selector = _selector({MANAGED_BY: BY_PIPED})
    found = await _listed(cluster, namespace, "", labelSelector=selector, limit="1")
    return [resource for resource, items in found.items() if items]


def _selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


async def _listed(
    cluster: Cluster, namespace: str, kind: str, **query: str
) -> dict[Resource, Sequence[Any]]:
    """Lists the metadata of objects of a kind, or of every kind, several kinds at once.

    Where the whole cluster may not be listed, `namespace` is.
    """
    slots = asyncio.Semaphore(CONNECTIONS)

    async def of_kind(resource: Resource) -> Sequence[Any]:
        async with slots:
            # A piped may be allowed to see some kinds only, or one namespace only.
            places = ("", namespace) if resource.is_namespaced else ("",)
            for place in places:
                try:
                    path = resource.path(place)
                    answer = await cluster.client.get(path, accept=METADATA_LIST, **query)
                    return list_at(answer, "items")
                except Refusal as e:
                    if e.code not in (403, 404, 405):
                        raise
        return ()

    kinds = [
        each
        for each in await cluster.kinds.preferred()
        if each.verbs >= _NEEDED and kind in ("", each.kind)
    ]
    return dict(zip(kinds, await asyncio.gather(*map(of_kind, kinds)), strict=True))


def _object(item: Any, resource: Resource) -> Manifest:
    body = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": map_at(item, "metadata"),
    }
    return Manifest(body)


async def delete_all(
    cluster: Cluster, application: str, manifests: Iterable[Manifest], say: Say
) -> None:
    """Deletes objects, first those that lead traffic to others; every failure is told."""
    failures: list[str] = []
    for manifest in in_order_of_deletion(manifests):
        try:
            await _delete(cluster, application, manifest, say)
        except Refusal as e:
            failures.append(f"{manifest.key} was not deleted: {e}")
    if failures:
        raise UserMistake("\n".join(failures))


def in_order_of_deletion(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Returns Services first, then workloads, then what these use, cluster-wide objects last."""

    def place(manifest: Manifest) -> tuple[bool, int]:
        return not manifest.is_builtin("", "Service"), -rank(manifest)

    return sorted(manifests, key=place)


async def _delete(cluster: Cluster, application: str, manifest: Manifest, say: Say) -> None:
    """Deletes one object if it is still there and still belongs to the application."""
    path = await cluster.path(manifest)
    try:
        live = await cluster.client.get(path)
        marks = {**map_at(live, "metadata", "annotations"), **map_at(live, "metadata", "labels")}
        if marks.get(APPLICATION) != application:
            say(f"- {manifest.key} belongs to somebody else and is left alone")
            return
        uid = live["metadata"]["uid"]
        await cluster.client.delete(
            path, {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        )
    except Refusal as e:
        if not e.is_missing:
            raise
        return
    say(f"- deleted {manifest.key}")


def missing_from(
    live: Sequence[Manifest], wanted: Sequence[Manifest], namespace: str
) -> list[Manifest]:
    """Returns what is live and not wanted; objects that name no namespace are in `namespace`."""

    def identity(key: Key) -> tuple[str, str, str]:
        return key.group.lower(), key.kind.lower(), key.name

    kept = {(identity(m.key), m.key.namespace or namespace) for m in wanted}
    kept |= {(identity(m.key), "") for m in wanted}
    return [m for m in live if (identity(m.key), m.key.namespace) not in kept]
