# SPDX-License-Identifier: Apache-2.0
"""Whether what is live is what Git says, and what a change would do, in words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.live.changes import as_text, changes
from pipecd.plugins.kubernetes.manifest.body import text_at, without
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import IGNORE_DRIFT, is_enabled
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.diff import Options, is_list, is_map

# Servers and controllers add fields to what Git declares; these are no drift.
_LIVE = Options(equate_empty=True, subset=True, numeric_strings=True)
_GIT = Options(equate_empty=True, numeric_strings=True)
_SHOWN = 3


def drift(
    live: Sequence[Manifest],
    declared: Sequence[Manifest],
    commit: str,
    ignored: Mapping[str, Iterable[str]],
) -> SyncState:
    """Compares what is live with a commit; `ignored` are paths by the key of an object."""
    paths = {key: frozenset(fields) for key, fields in ignored.items()}
    found = changes(_counted(live), [_meant(m) for m in _counted(declared)], _LIVE, paths)
    if not found:
        return SyncState(SyncStatus.SYNCED)
    added, deleted, changed = map(len, (found.added, found.deleted, found.changed))
    summary = (
        f"There are {found.total} manifests not synced "
        f"({added} adds, {deleted} deletes, {changed} changes)"
    )
    text = as_text(found, show_at_most=_SHOWN, masked=frozenset({"Secret", "ConfigMap"}))
    git = f"the defined state in Git at commit {commit[:7]}"
    head = f"Diff between {git} and actual state in cluster:"
    details = f"{head}\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n{text}"
    return SyncState(SyncStatus.OUT_OF_SYNC, summary, details)


def _counted(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Leaves out what users want ignored, and what only controllers may write."""
    return [
        m.with_body(without(m.body, "status")) for m in manifests if not is_enabled(m, IGNORE_DRIFT)
    ]


def _meant(manifest: Manifest) -> Manifest:
    """Leaves out what Git leaves to others: nulls, an address not chosen, rules to be gathered."""
    body = _without_nulls(manifest.body)
    if manifest.is_builtin("", "Service") and not text_at(body, "spec", "clusterIP"):
        body = without(body, "spec", "clusterIP")
    if manifest.kind == "ClusterRole" and "aggregationRule" in body:
        body = without(body, "rules")
    return manifest.with_body(body)


def _without_nulls(value: Any) -> Any:
    if is_map(value):
        return {key: _without_nulls(below) for key, below in value.items() if below is not None}
    return [_without_nulls(each) for each in value] if is_list(value) else value


def preview(target: str, running: Sequence[Manifest], wanted: Sequence[Manifest]) -> Preview:
    """Compares what was deployed last with what a change would deploy."""
    found = changes(running, wanted, _GIT)
    if not found:
        return Preview(target, "No changes were detected", no_change=True)
    added, changed, deleted = map(len, (found.added, found.changed, found.deleted))
    summary = f"{added} added manifests, {changed} changed manifests, {deleted} deleted manifests"
    return Preview(target, summary, f"--- Last Deploy\n+++ Head Commit\n\n{as_text(found)}\n")
