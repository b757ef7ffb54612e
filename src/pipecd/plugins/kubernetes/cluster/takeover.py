# SPDX-License-Identifier: Apache-2.0
"""Makes fields ours that kubectl owned before, so that what leaves Git leaves the cluster."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import list_at, map_at

MANAGER = "piped"
# Upstream applies with kubectl: on the client, or on the server where a manifest asks for it. What
# we replaced as a whole is ours too once it is applied.
_BEFORE = frozenset(
    {("kubectl-client-side-apply", "Update"), ("kubectl", "Apply"), (MANAGER, "Update")}
)


def taken_over(live: Mapping[str, Any]) -> list[Mapping[str, Any]] | None:
    """Returns the managed fields of an object with kubectl's share made ours.

    None means that kubectl owns nothing.
    """
    entries = list_at(live, "metadata", "managedFields")
    before = [entry for entry in entries if _is_before(entry)]
    if not before:
        return None
    mine = [entry for entry in entries if _is_mine(entry)]
    fields: Mapping[str, Any] = {}
    for entry in (*mine, *before):
        fields = _union(fields, map_at(entry, "fieldsV1"))
    first = (*mine, *before)[0]
    ours = {**first, "manager": MANAGER, "operation": "Apply", "fieldsV1": fields}
    rest = [entry for entry in entries if not _is_before(entry) and not _is_mine(entry)]
    return [*rest, ours]


def as_patch(live: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the patch that writes managed fields if nobody was faster."""
    version = live["metadata"]["resourceVersion"]
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
    ]


def _is_before(entry: Mapping[str, Any]) -> bool:
    return (entry.get("manager"), entry.get("operation")) in _BEFORE and not entry.get(
        "subresource"
    )


def _is_mine(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == MANAGER and entry.get("operation") == "Apply"


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _union(map_at(one, key), map_at(other, key))
        if key in one and key in other
        else (one[key] if key in one else other[key])
        for key in {**one, **other}
    }
