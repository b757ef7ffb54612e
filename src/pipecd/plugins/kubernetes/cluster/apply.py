# SPDX-License-Identifier: Apache-2.0
"""Brings objects into a cluster: all of a wave at the same time, wave after wave."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipecd.plugins.kubernetes.cluster.client import (
    APPLY,
    CONNECTIONS,
    JSON_PATCH,
    METADATA,
    METADATA_LIST,
    Client,
)
from pipecd.plugins.kubernetes.cluster.discovery import Kinds
from pipecd.plugins.kubernetes.cluster.explanation import explained
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.cluster.takeover import MANAGER, as_patch, taken_over
from pipecd.plugins.kubernetes.manifest.body import list_at, text_at, with_value
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import (
    APPLICATION,
    FORCE_REPLACE,
    REPLACE,
    is_enabled,
)
from pipecd.plugins.kubernetes.manifest.order import waves
from pipecd.sdk import UserMistake

Say = Callable[[str], None]

# A CustomResourceDefinition or a Namespace is usable so soon, and so long is waited for it.
_PAUSE = 0.1
_READY_WITHIN = 30.0
_GONE_WITHIN = 60.0
_TAKE_OVERS = 3


@dataclass(frozen=True)
class Cluster:
    """An API server and the kinds it serves; `namespace` is for objects that name none."""

    client: Client
    kinds: Kinds
    namespace: str = "default"

    async def path(self, manifest: Manifest) -> str:
        """Returns where an object lives."""
        key = manifest.key
        resource = await self.kinds.of(key)
        return resource.path(key.namespace or self.namespace, key.name)


async def apply_all(
    cluster: Cluster, manifests: Sequence[Manifest], say: Say, *, create_namespaces: bool = False
) -> None:
    """Applies objects in the order of their needs; the first failure ends it, named."""
    if create_namespaces:
        await _create_namespaces(cluster, manifests, say)
    slots = asyncio.Semaphore(CONNECTIONS)
    for wave in waves(manifests):
        known = await _marked(cluster, wave)
        await _together(partial(_apply, cluster, say, known), wave, slots)
        await _together(partial(_until_usable, cluster), wave, slots)


async def _marked(cluster: Cluster, manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Returns the metadata of objects that are there with the mark of their application, by path.

    To ask for each of them would take as long as to apply them.
    """
    places: dict[tuple[str, str], int] = {}
    for manifest in manifests:
        application = text_at(manifest.body, "metadata", "labels", APPLICATION)
        with suppress(UserMistake):
            place = (await cluster.path(manifest)).rpartition("/")[0], application
            places[place] = places.get(place, 0) + bool(application)
    known: dict[str, Any] = {}
    for (path, application), count in places.items():
        if count > 1:
            # Who may not list them asks for each.
            with suppress(Refusal):
                selector = f"{APPLICATION}={application}"
                answer = await cluster.client.get(
                    path, accept=METADATA_LIST, labelSelector=selector
                )
                known |= {f"{path}/{m['metadata']['name']}": m for m in list_at(answer, "items")}
    return known


async def _apply(cluster: Cluster, say: Say, known: Mapping[str, Any], manifest: Manifest) -> None:
    """Brings one object into the cluster in the way that its annotations ask for."""
    try:
        path = await cluster.path(manifest)
        if is_enabled(manifest, FORCE_REPLACE):
            await _recreate(cluster.client, path, manifest)
        elif is_enabled(manifest, REPLACE):
            await _replace(cluster.client, path, manifest)
        else:
            await _take_over(cluster.client, path, known.get(path))
            await _merge(cluster.client, path, manifest, say)
    except Refusal as e:
        raise explained(manifest, e) from e
    say(f"- applied {manifest.key}")


async def _take_over(client: Client, path: str, live: Any) -> None:
    """Makes ours what kubectl owns.

    That comes first: what Git names anew would stand beside what it named before, both ports of a
    Service or both containers of a pod, if only for a moment.
    """
    for _ in range(_TAKE_OVERS):
        try:
            live = live or await client.get(path, accept=METADATA)
            entries = taken_over(live)
            if entries is not None:
                patch = as_patch(live, entries)
                await client.patch(path, patch, form=JSON_PATCH, fieldManager=MANAGER)
        except Refusal as e:
            # Who may not read what is there may still be allowed to write.
            if e.code in (403, 404):
                return
            # Somebody changed the object meanwhile.
            if e.code not in (409, 422):
                raise
            live = None
        else:
            return


async def _merge(client: Client, path: str, manifest: Manifest, say: Say) -> None:
    query = {"fieldManager": MANAGER}
    try:
        await client.patch(path, manifest.body, form=APPLY, **query)
    except Refusal as e:
        if not e.is_conflict:
            raise
        for field, message in e.causes:
            say(f"- {manifest.key}: {field} is set back to what Git says ({message})")
        await client.patch(path, manifest.body, form=APPLY, force="true", **query)


async def _replace(client: Client, path: str, manifest: Manifest) -> None:
    for is_last in (False, False, True):
        try:
            await _replace_once(client, path, manifest)
        except Refusal as e:
            # Somebody changed or created the object meanwhile.
            if not (e.is_conflict or e.is_taken) or is_last:
                raise
        else:
            return


async def _replace_once(client: Client, path: str, manifest: Manifest) -> None:
    try:
        live = await client.get(path)
    except Refusal as e:
        if not e.is_missing:
            raise
        await client.create(path.rpartition("/")[0], manifest.body, fieldManager=MANAGER)
        return
    version = live["metadata"]["resourceVersion"]
    body = with_value(manifest.body, ("metadata", "resourceVersion"), version)
    await client.replace(path, body, fieldManager=MANAGER)


async def _recreate(client: Client, path: str, manifest: Manifest) -> None:
    try:
        await client.delete(path, {"propagationPolicy": "Foreground", "gracePeriodSeconds": 0})
        await _until_gone(client, path, manifest)
    except Refusal as e:
        if not e.is_missing:
            raise
    await _replace(client, path, manifest)


async def _until_gone(client: Client, path: str, manifest: Manifest) -> None:
    try:
        async with asyncio.timeout(_GONE_WITHIN):
            while True:
                await client.get(path)
                await asyncio.sleep(_PAUSE)
    except TimeoutError as e:
        raise UserMistake(
            f"{manifest.key} was deleted and is still there after {_GONE_WITHIN:g}s",
            hint="something keeps it: look at its finalizers",
        ) from e


async def _create_namespaces(cluster: Cluster, manifests: Sequence[Manifest], say: Say) -> None:
    declared = {m.name for m in manifests if m.is_builtin("", "Namespace")}
    names = {m.key.namespace for m in manifests if m.key.namespace} or {cluster.namespace}
    for name in sorted(names - declared):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await cluster.client.create("/api/v1/namespaces", body, fieldManager=MANAGER)
            say(f"- created Namespace {name}")
        except Refusal as e:
            if not e.is_taken:
                raise explained(Manifest(body), e) from e


async def _until_usable(cluster: Cluster, manifest: Manifest) -> None:
    """Waits for what others are about to use: a definition must be served."""
    if not manifest.is_builtin("apiextensions.k8s.io", "CustomResourceDefinition"):
        return
    path = await cluster.path(manifest)
    try:
        async with asyncio.timeout(_READY_WITHIN):
            while True:
                if _is_established(await cluster.client.get(path)):
                    return
                await asyncio.sleep(_PAUSE)
    except TimeoutError as e:
        raise UserMistake(f"{manifest.key} is not established after {_READY_WITHIN:g}s") from e


def _is_established(definition: Any) -> bool:
    return any(
        text_at(condition, "type") == "Established" and text_at(condition, "status") == "True"
        for condition in list_at(definition, "status", "conditions")
    )


async def _together(
    work: Callable[[Manifest], Awaitable[None]],
    manifests: Sequence[Manifest],
    slots: asyncio.Semaphore,
) -> None:
    """Works on several objects at once; what has begun is finished, and every failure told."""

    async def one(manifest: Manifest) -> None:
        async with slots:
            await work(manifest)

    results = await asyncio.gather(*map(one, manifests), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if not failures:
        return
    known = [failure for failure in failures if isinstance(failure, UserMistake)]
    if len(known) == len(failures) > 1:
        raise UserMistake("\n".join(map(str, known))) from known[0]
    raise failures[0]
