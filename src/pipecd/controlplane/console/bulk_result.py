# SPDX-License-Identifier: Apache-2.0
"""What became of each of several objects that one form was about."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pipecd.controlplane.console.command_notice import Notice
from pipecd.controlplane.console.formatting import join_words
from pipecd.controlplane.console.status_badge import Tone


@dataclass(frozen=True)
class BulkResult:
    """What became of one application of several that were added: its id, or why it has none."""

    id: str
    name: str
    reason: str = ""


@dataclass(frozen=True)
class BulkSyncResult:
    """What became of one of several syncs: the state of its command, or why there is none."""

    id: str
    name: str
    notice: Notice | None = None
    reason: str = ""
    may_retry: bool = False


_ONE = {
    "in progress": "is in progress",
    "done": "is done",
    "failed": "has failed",
    "refused": "was refused",
}


def bulk_sync_summary(results: Iterable[BulkSyncResult]) -> str:
    """How many syncs are in which state, as a sentence."""
    counts = dict.fromkeys(_ONE, 0)
    for result in results:
        if result.notice is None:
            counts["refused"] += 1
        elif result.notice.is_pending:
            counts["in progress"] += 1
        else:
            counts["done" if result.notice.badge.tone is Tone.OK else "failed"] += 1
    states = [state for state, count in counts.items() if count]
    total = sum(counts.values())
    if total == 1:
        return f"The sync {_ONE[states[0]]}."
    if len(states) == 1:
        return f"{total} syncs, all {states[0]}."
    return f"{total} syncs: {join_words([f'{counts[state]} {state}' for state in states])}."


def encode_results(results: Iterable[BulkResult]) -> str:
    return json.dumps([asdict(result) for result in results])


def decode_results(text: str) -> list[BulkResult]:
    return [BulkResult(**result) for result in json.loads(text)]
