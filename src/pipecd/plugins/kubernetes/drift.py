# SPDX-License-Identifier: Apache-2.0
"""Drift: live objects compared with Git; and the plan preview: two commits compared."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.diff import diff_manifests, render_diff
from pipecd.plugins.kubernetes.manifest import IGNORE_DRIFT, Manifest, is_enabled
from pipecd.plugins.kubernetes.unstructured import text_at, without
from pipecd.sdk import Preview, SyncState, SyncStatus
from pipecd.sdk.diff import Options, is_list, is_map

# Fields that servers and controllers add to what Git declares are no drift.
_LIVE_DIFF = Options(equate_empty=True, subset=True, numeric_strings=True)
_GIT_DIFF = Options(equate_empty=True, numeric_strings=True)
_MAX_SHOWN = 3


def drift(
    live: Sequence[Manifest],
    declared: Sequence[Manifest],
    commit: str,
    ignored: Mapping[str, Iterable[str]],
) -> SyncState:
    """Compares live objects with a commit; `ignored` has field paths by the key of an object."""
    paths = {key: frozenset(fields) for key, fields in ignored.items()}
    diff = diff_manifests(
        _compared(live), [_declared_fields(m) for m in _compared(declared)], _LIVE_DIFF, paths
    )
    if not diff:
        return SyncState(SyncStatus.SYNCED)
    added, deleted, changed = map(len, (diff.added, diff.deleted, diff.changed))
    summary = (
        f"There are {diff.total} manifests not synced "
        f"({added} adds, {deleted} deletes, {changed} changes)"
    )
    text = render_diff(diff, show_at_most=_MAX_SHOWN, masked=frozenset({"Secret", "ConfigMap"}))
    git = f"the defined state in Git at commit {commit[:7]}"
    head = f"Diff between {git} and actual state in cluster:"
    details = f"{head}\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n{text}"
    return SyncState(SyncStatus.OUT_OF_SYNC, summary, details)


def _compared(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Leaves out objects with the ignore annotation, and the status."""
    return [
        m.with_body(without(m.body, "status")) for m in manifests if not is_enabled(m, IGNORE_DRIFT)
    ]


def _declared_fields(manifest: Manifest) -> Manifest:
    """Leaves out fields that Git leaves open: nulls, empty clusterIP, aggregated rules."""
    body = _without_nulls(manifest.body)
    if manifest.is_builtin("", "Service") and not text_at(body, "spec", "clusterIP"):
        body = without(body, "spec", "clusterIP")
    if manifest.kind == "ClusterRole" and "aggregationRule" in body:
        body = without(body, "rules")
    return manifest.with_body(body)


def _without_nulls(value: Any) -> Any:
    if is_map(value):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return [_without_nulls(each) for each in value] if is_list(value) else value


def preview(target: str, running: Sequence[Manifest], desired: Sequence[Manifest]) -> Preview:
    """Compares the running manifests with those of a change."""
    diff = diff_manifests(running, desired, _GIT_DIFF)
    if not diff:
        return Preview(target, "No changes were detected", no_change=True)
    added, changed, deleted = map(len, (diff.added, diff.changed, diff.deleted))
    summary = f"{added} added manifests, {changed} changed manifests, {deleted} deleted manifests"
    return Preview(target, summary, f"--- Last Deploy\n+++ Head Commit\n\n{render_diff(diff)}\n")
