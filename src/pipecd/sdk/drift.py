# SPDX-License-Identifier: Apache-2.0
"""The text of a drift."""


def drift_details(commit: str, differences: str) -> str:
    """Returns the details of a sync state, with the header that upstream writes."""
    head = f"Diff between the defined state in Git at commit {commit[:7]} and actual live state:"
    return f"{head}\n\n--- Actual   (LiveState)\n+++ Expected (Git)\n\n{differences}"
