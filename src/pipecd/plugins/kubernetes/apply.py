# SPDX-License-Identifier: Apache-2.0
"""Applies objects to a cluster by server-side apply, wave by wave."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipecd.plugins.kubernetes.client import (
    APPLY,
    CONNECTIONS,
    JSON_PATCH,
    METADATA,
    METADATA_LIST,
    ApiError,
    KubernetesClient,
)
from pipecd.plugins.kubernetes.cluster import Cluster
from pipecd.plugins.kubernetes.manifest import (
    APPLICATION,
    FORCE_REPLACE,
    REPLACE,
    Manifest,
    is_enabled,
    waves,
)
from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import (
    condition_of,
    list_at,
    map_at,
    text_at,
    with_value,
)

FIELD_MANAGER = "piped"
# Upstream applies with kubectl, on the client or on the server. Fields of a replaced object belong
# to an `Update` of piped until the object is applied.
_PREVIOUS_MANAGERS = frozenset(
    {("kubectl-client-side-apply", "Update"), ("kubectl", "Apply"), (FIELD_MANAGER, "Update")}
)


def migrated_managed_fields(live: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Returns the managed fields of an object with those of kubectl moved to piped.

    So a field that is removed from Git is removed from the cluster. None means that kubectl manages
    no field.
    """
    entries = list_at(live, "metadata", "managedFields")
    previous = [entry for entry in entries if _is_previous_manager(entry)]
    if not previous:
        return None
    own = [entry for entry in entries if _is_own(entry)]
    fields: Mapping[str, Any] = {}
    for entry in (*own, *previous):
        fields = _merged_fields(fields, map_at(entry, "fieldsV1"))
    template = (*own, *previous)[0]
    migrated = {**template, "manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    rest = [entry for entry in entries if not _is_previous_manager(entry) and not _is_own(entry)]
    return [*rest, migrated]


def managed_fields_patch(
    live: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the patch that writes managed fields if the object has not changed meanwhile."""
    version = live["metadata"]["resourceVersion"]
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
    ]


def _is_previous_manager(entry: Mapping[str, Any]) -> bool:
    return (entry.get("manager"), entry.get("operation")) in _PREVIOUS_MANAGERS and not entry.get(
        "subresource"
    )


def _is_own(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply"


def _merged_fields(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _merged_fields(map_at(first, key), map_at(second, key))
        if key in first and key in second
        else (first[key] if key in first else second[key])
        for key in {**first, **second}
    }


_FIX_MANIFEST = "correct the manifest in Git"
_HINTS_BY_REASON = {"Forbidden": "grant the piped a role that allows it", "Invalid": _FIX_MANIFEST}
_WEBHOOK_HINT = "an admission webhook or policy of the cluster refused it; its message says why"
# The first phrase that a message contains decides.
_HINTS_BY_MESSAGE = (
    ("being terminated", "wait until the namespace is gone, then sync again"),
    (
        "failed calling webhook",
        "an admission webhook of the cluster does not respond; check that its pods run",
    ),
    ("denied the request", _WEBHOOK_HINT),
    ("denied request", _WEBHOOK_HINT),
    (
        "illegal base64 data",
        f"{_FIX_MANIFEST}: data is in base64, plain text belongs under stringData",
    ),
    (
        "expected string, got",
        f"{_FIX_MANIFEST}: quote a number, true or false that is meant as text",
    ),
)
# API servers put this before the value that they refuse.
_BEFORE_VALUE = ", got "


def apply_error(manifest: Manifest, error: ApiError) -> UserMistake:
    """Returns an error with the object, its file, the cause and a hint."""
    origin = f" ({manifest.origin})" if manifest.origin else ""
    message = error.message
    if manifest.is_builtin("", "Secret"):
        message = message.partition(_BEFORE_VALUE)[0]
    hints = [hint for phrase, hint in _HINTS_BY_MESSAGE if phrase in error.message]
    if error.is_immutable:
        hint = (
            f"this field cannot be changed; annotate the manifest with {FORCE_REPLACE}: enabled "
            "to delete and recreate the object"
        )
    elif hints:
        hint = hints[0]
    elif error.is_schema_error:
        hint = _FIX_MANIFEST
    else:
        hint = error.hint or _HINTS_BY_REASON.get(error.reason, "")
    return UserMistake(f"{manifest.key}{origin} was not applied: {message}", hint=hint)


LogLine = Callable[[str], None]

_POLL_INTERVAL = 0.1
_ESTABLISHED_TIMEOUT = 30.0
_DELETED_TIMEOUT = 60.0
_MIGRATION_ATTEMPTS = 3
_REPLACE_ATTEMPTS = 3
# With so many missing objects, a collection of at most this many objects is listed as a whole.
_MANY_MISSING, _SMALL_COLLECTION = 10, 500


async def create_namespaces(cluster: Cluster, manifests: Sequence[Manifest], log: LogLine) -> None:
    """Creates the missing namespaces of objects, except those that the manifests declare."""
    declared = {m.name for m in manifests if m.is_builtin("", "Namespace")}
    names = {m.key.namespace for m in manifests if m.key.namespace} or {cluster.namespace}
    for name in sorted(names - declared):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        try:
            await cluster.client.create("/api/v1/namespaces", body, fieldManager=FIELD_MANAGER)
            log(f"- created Namespace {name}")
        except ApiError as e:
            if not e.is_already_exists:
                raise apply_error(Manifest(body), e) from e


async def apply_all(cluster: Cluster, manifests: Sequence[Manifest], log: LogLine) -> None:
    """Applies objects wave by wave; a wave with a failure is the last one."""
    slots = asyncio.Semaphore(CONNECTIONS)
    for wave in waves(manifests):
        live = await _live_metadata(cluster, wave)
        await _run_concurrently(partial(_apply, cluster, log, live), wave, slots)
        await _run_concurrently(partial(_wait_until_established, cluster), wave, slots)


@dataclass(frozen=True)
class _LiveMetadata:
    """The metadata of live objects by path, and the collections of which all objects are known."""

    objects: dict[str, Any] = field(default_factory=dict[str, Any])
    complete: set[str] = field(default_factory=set[str])

    def add(self, collection: str, items: Sequence[Any]) -> None:
        self.objects.update({f"{collection}/{each['metadata']['name']}": each for each in items})

    def is_absent(self, path: str) -> bool:
        """Whether there is no such object."""
        return path not in self.objects and path.rpartition("/")[0] in self.complete


async def _live_metadata(cluster: Cluster, manifests: Sequence[Manifest]) -> _LiveMetadata:
    """Returns the metadata of live objects that have the application's label.

    One list is faster than a request for each object. If most of them are missing, as at the first
    sync, a small collection is listed as a whole.
    """
    collections: dict[tuple[str, str], int] = {}
    for manifest in manifests:
        application = text_at(manifest.body, "metadata", "labels", APPLICATION)
        with suppress(UserMistake):
            collection = (await cluster.path(manifest)).rpartition("/")[0], application
            collections[collection] = collections.get(collection, 0) + bool(application)
    live = _LiveMetadata()
    for (path, application), count in collections.items():
        if count > 1:
            # Without the permission to list them each object is requested later.
            with suppress(ApiError):
                selector = f"{APPLICATION}={application}"
                response = await cluster.client.get(
                    path, accept=METADATA_LIST, labelSelector=selector
                )
                found = list_at(response, "items")
                live.add(path, found)
                if count - len(found) >= _MANY_MISSING:
                    response = await cluster.client.get(
                        path, accept=METADATA_LIST, limit=str(_SMALL_COLLECTION)
                    )
                    live.add(path, list_at(response, "items"))
                    if not text_at(response, "metadata", "continue"):
                        live.complete.add(path)
    return live


async def _apply(cluster: Cluster, log: LogLine, live: _LiveMetadata, manifest: Manifest) -> None:
    """Applies, replaces or recreates one object, as its annotations say."""
    client = cluster.client
    try:
        path = await cluster.path(manifest)
        if is_enabled(manifest, FORCE_REPLACE):
            await _delete(client, path, manifest)
            await _replace(client, path, manifest)
        elif is_enabled(manifest, REPLACE):
            await _replace(client, path, manifest)
        else:
            if not live.is_absent(path):
                await _migrate_managed_fields(client, path, live.objects.get(path))
            await _apply_on_server(client, path, manifest, log)
    except ApiError as e:
        raise apply_error(manifest, e) from e
    log(f"- applied {manifest.key}")


async def _migrate_managed_fields(client: KubernetesClient, path: str, live: Any) -> None:
    """Moves the fields that kubectl manages to piped.

    This has to precede apply: otherwise list items that were renamed in Git, such as ports of a
    Service, would exist twice for a moment.
    """
    for _ in range(_MIGRATION_ATTEMPTS):
        try:
            live = live or await client.get(path, accept=METADATA)
            entries = migrated_managed_fields(live)
            if entries is not None:
                patch = managed_fields_patch(live, entries)
                await client.patch(path, patch, content_type=JSON_PATCH, fieldManager=FIELD_MANAGER)
        except ApiError as e:
            # A piped that may not read objects may still be allowed to write them.
            if e.code in (403, 404):
                return
            # The object changed meanwhile.
            if e.code not in (409, 422):
                raise
            live = None
        else:
            return


async def _apply_on_server(
    client: KubernetesClient, path: str, manifest: Manifest, log: LogLine
) -> None:
    """Applies an object on the server; fields of other managers are taken over and logged."""
    query = {"fieldManager": FIELD_MANAGER}
    try:
        await client.patch(path, manifest.body, content_type=APPLY, **query)
    except ApiError as e:
        if not e.is_conflict:
            raise
        for field, message in e.causes:
            log(f"- {manifest.key}: {field} is reset to its value in Git ({message})")
        await client.patch(path, manifest.body, content_type=APPLY, force="true", **query)


async def _replace(client: KubernetesClient, path: str, manifest: Manifest) -> None:
    """Replaces or creates an object; retries if it was changed or created meanwhile."""
    for attempt in range(_REPLACE_ATTEMPTS):
        try:
            live = await client.get(path)
        except ApiError as e:
            if not e.is_not_found:
                raise
            live = None
        try:
            if live is None:
                collection = path.rpartition("/")[0]
                await client.create(collection, manifest.body, fieldManager=FIELD_MANAGER)
            else:
                version = live["metadata"]["resourceVersion"]
                body = with_value(manifest.body, ("metadata", "resourceVersion"), version)
                await client.replace(path, body, fieldManager=FIELD_MANAGER)
        except ApiError as e:
            is_race = e.is_conflict or e.is_already_exists
            if not is_race or attempt + 1 == _REPLACE_ATTEMPTS:
                raise
        else:
            return


async def _delete(client: KubernetesClient, path: str, manifest: Manifest) -> None:
    """Deletes an object and what it owns, and waits until they are gone."""
    try:
        await client.delete(path, {"propagationPolicy": "Foreground", "gracePeriodSeconds": 0})
        async with asyncio.timeout(_DELETED_TIMEOUT):
            while True:
                await client.get(path)
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError as e:
        raise UserMistake(
            f"{manifest.key} was deleted and still exists after {_DELETED_TIMEOUT:g}s",
            hint="check its finalizers",
        ) from e
    except ApiError as e:
        if not e.is_not_found:
            raise


async def _wait_until_established(cluster: Cluster, manifest: Manifest) -> None:
    """Waits until a CustomResourceDefinition is served."""
    if not manifest.is_builtin("apiextensions.k8s.io", "CustomResourceDefinition"):
        return
    path = await cluster.path(manifest)
    try:
        async with asyncio.timeout(_ESTABLISHED_TIMEOUT):
            while True:
                live = await cluster.client.get(path)
                if text_at(condition_of(live, "Established"), "status") == "True":
                    return
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError as e:
        raise UserMistake(
            f"{manifest.key} is not established after {_ESTABLISHED_TIMEOUT:g}s"
        ) from e


async def _run_concurrently(
    work: Callable[[Manifest], Awaitable[None]],
    manifests: Sequence[Manifest],
    slots: asyncio.Semaphore,
) -> None:
    """Runs work for objects concurrently, all to their end; the error lists every failure."""

    async def run_one(manifest: Manifest) -> None:
        async with slots:
            await work(manifest)

    results = await asyncio.gather(*map(run_one, manifests), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    if not failures:
        return
    mistakes = [failure for failure in failures if isinstance(failure, UserMistake)]
    if len(mistakes) == len(failures) > 1:
        raise UserMistake("\n".join(map(str, mistakes))) from mistakes[0]
    raise failures[0]
