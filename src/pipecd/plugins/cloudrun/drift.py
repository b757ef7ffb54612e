# SPDX-License-Identifier: Apache-2.0
"""Compares services: the live one with Git (drift), and the running with a new one (preview)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pipecd.plugins.cloudrun.manifest import SERVICE, ServiceManifest
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.diff import MASK, MISSING, Node, Options, compare, is_list, is_map, render
from pipecd.sdk.drift import drift_details
from pipecd.sdk.unstructured import Body, without

# Fields that Cloud Run adds to what Git declares are no drift.
_LIVE_DIFF = Options(equate_empty=True, subset=True, numeric_strings=True, boolean_strings=True)
_GIT_DIFF = Options(equate_empty=True, numeric_strings=True, boolean_strings=True)
# Set by a deployment or by Cloud Run, which also reports the project by its number.
_NOT_COMPARED = (
    ("status",),
    ("spec", "traffic"),
    ("spec", "template", "metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "resourceVersion"),
    ("metadata", "uid"),
    ("metadata", "generation"),
    ("metadata", "creationTimestamp"),
    ("metadata", "selfLink"),
)


def drift(
    live: Body | None, declared: ServiceManifest, commit: str, ignored: Mapping[str, Iterable[str]]
) -> SyncState:
    """Compares a live service with a commit; `ignored` has field paths by the key of an object."""
    if live is None:
        return SyncState(
            SyncStatus.OUT_OF_SYNC,
            f"Service {declared.name} is not deployed, or without the labels of this application",
        )
    options = replace(_LIVE_DIFF, ignored=SERVICE.ignored_paths(ignored, declared.name))
    nodes = compare(_compared(live), _compared(declared.body), options)
    if not nodes:
        return SyncState(SyncStatus.SYNCED)
    text = render([_without_values(node) for node in nodes])
    details = drift_details(commit, f"{text}\n")
    return SyncState(SyncStatus.OUT_OF_SYNC, "The service manifest is not synced", details)


def preview(target: str, running: ServiceManifest | None, desired: ServiceManifest) -> Preview:
    """Compares the running manifest with that of a change."""
    before = (running.name, running.body) if running else None
    return SERVICE.preview(target, before, (desired.name, desired.body), _GIT_DIFF)


def _compared(body: Body) -> Body:
    for path in _NOT_COMPARED:
        body = without(body, *path)
    return body


def _without_values(node: Node) -> Node:
    """Hides the values of environment variables: live ones may be secrets of an older commit."""
    if len(node.path) > 1 and "env" in node.path and node.path[-1] == "value":
        hidden = (MISSING if side is MISSING else MASK for side in (node.old, node.new))
        return Node(node.path, *hidden)
    is_in_env = "env" in node.path
    return Node(
        node.path,
        _hidden(node.old, is_in_env=is_in_env),
        _hidden(node.new, is_in_env=is_in_env),
    )


def _hidden(value: Any, *, is_in_env: bool) -> Any:
    if is_map(value):
        return {
            key: MASK
            if is_in_env and key == "value"
            else _hidden(child, is_in_env=is_in_env or key == "env")
            for key, child in value.items()
        }
    if is_list(value):
        return [_hidden(child, is_in_env=is_in_env) for child in value]
    return value
