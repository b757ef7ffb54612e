# SPDX-License-Identifier: Apache-2.0
"""The label that tells the pods of variants apart."""

from collections.abc import Sequence

from pipecd.plugins.kubernetes.manifest.body import text_at, with_entries
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import UserMistake

SELECTOR = ("spec", "selector", "matchLabels")
POD_LABELS = ("spec", "template", "metadata", "labels")


def with_label(manifest: Manifest, key: str, value: str) -> Manifest:
    """Returns a workload whose pods carry the label and which looks for it."""
    body = with_entries(manifest.body, SELECTOR, {key: value})
    return manifest.with_body(with_entries(body, POD_LABELS, {key: value}))


def require_label(workloads: Sequence[Manifest], key: str, value: str) -> None:
    """Refuses workloads that a Service with the label in its selector would not find."""
    for manifest in workloads:
        for path in (SELECTOR, POD_LABELS):
            if text_at(manifest.body, *path, key) != value:
                raise UserMistake(
                    f"{manifest.key} lacks {key}: {value} in {'.'.join(path)}",
                    hint="add the label in Git, or set addVariantLabelToSelector: true",
                )
