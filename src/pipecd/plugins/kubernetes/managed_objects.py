# SPDX-License-Identifier: Apache-2.0
"""Lists and deletes the objects on a cluster that an application manages."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.apply import LogLine
from pipecd.plugins.kubernetes.client import CONNECTIONS, METADATA_LIST, ApiError
from pipecd.plugins.kubernetes.cluster import ApiResource, Cluster
from pipecd.plugins.kubernetes.manifest import (
    APPLICATION,
    BY_PIPED,
    MANAGED_BY,
    Manifest,
    ResourceKey,
    apply_rank,
    managing_application,
)
from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import list_at, map_at

_REQUIRED_VERBS = frozenset({"list", "delete"})


async def list_managed(
    cluster: Cluster, application: str, labels: Mapping[str, str], *, kind: str = ""
) -> list[Manifest]:
    """Returns the metadata of the objects that an application manages, without owned objects."""
    labels = {MANAGED_BY: BY_PIPED, APPLICATION: application, **labels}
    selector = _label_selector(labels)
    objects = await _list_kinds(cluster, cluster.namespace, kind, labelSelector=selector)
    return [
        Manifest(
            {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "metadata": map_at(item, "metadata"),
            }
        )
        for resource, items in objects.items()
        for item in items
        if managing_application(item) == application
    ]


async def list_managed_kinds(cluster: Cluster, namespace: str) -> list[ApiResource]:
    """Returns the kinds of which a piped manages objects."""
    selector = _label_selector({MANAGED_BY: BY_PIPED})
    objects = await _list_kinds(cluster, namespace, "", labelSelector=selector, limit="1")
    return [resource for resource, items in objects.items() if items]


def _label_selector(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


async def _list_kinds(
    cluster: Cluster, namespace: str, kind: str, **query: str
) -> dict[ApiResource, Sequence[Any]]:
    """Lists the metadata of one kind or of every kind, several kinds concurrently.

    A kind that the piped may not list in the whole cluster is listed in `namespace`.
    """
    slots = asyncio.Semaphore(CONNECTIONS)

    async def list_kind(resource: ApiResource) -> Sequence[Any]:
        async with slots:
            namespaces = ("", namespace) if resource.is_namespaced else ("",)
            for scope in namespaces:
                try:
                    path = resource.path(scope)
                    response = await cluster.client.get(path, accept=METADATA_LIST, **query)
                    return list_at(response, "items")
                except ApiError as e:
                    if e.code not in (403, 404, 405):
                        raise
        return ()

    kinds = [
        each
        for each in await cluster.discovery.preferred()
        if each.verbs >= _REQUIRED_VERBS and kind in ("", each.kind)
    ]
    return dict(zip(kinds, await asyncio.gather(*map(list_kind, kinds)), strict=True))


async def delete_all(
    cluster: Cluster, application: str, manifests: Iterable[Manifest], log: LogLine
) -> None:
    """Deletes the objects that the application still manages, Services first.

    The error lists every failure.
    """
    failures: list[str] = []
    for manifest in in_order_of_deletion(manifests):
        try:
            path = await cluster.path(manifest)
            live = map_at(await cluster.client.get(path), "metadata")
            labels = {**map_at(live, "annotations"), **map_at(live, "labels")}
            if labels.get(APPLICATION) != application:
                log(f"- {manifest.key} belongs to another application and is not deleted")
                continue
            await cluster.client.delete(
                path, {"propagationPolicy": "Background", "preconditions": {"uid": live["uid"]}}
            )
            log(f"- deleted {manifest.key}")
        except ApiError as e:
            if not e.is_not_found:
                failures.append(f"{manifest.key} was not deleted: {e}")
    if failures:
        raise UserMistake("\n".join(failures))


def in_order_of_deletion(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Sorts Services first, then workloads, what they use, and cluster-wide objects last."""

    def sort_key(manifest: Manifest) -> tuple[bool, int]:
        return not manifest.is_builtin("", "Service"), -apply_rank(manifest)

    return sorted(manifests, key=sort_key)


def surplus_objects(
    live: Sequence[Manifest], desired: Sequence[Manifest], namespace: str
) -> list[Manifest]:
    """Returns the live objects that are not desired; `namespace` is the default one."""

    def identity(key: ResourceKey) -> tuple[str, str, str]:
        return key.group.lower(), key.kind.lower(), key.name

    desired_keys = {(identity(m.key), m.key.namespace or namespace) for m in desired}
    desired_keys |= {(identity(m.key), "") for m in desired}
    return [m for m in live if (identity(m.key), m.key.namespace) not in desired_keys]
