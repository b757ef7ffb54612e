# SPDX-License-Identifier: Apache-2.0
"""What several plugins say about one application, in one verdict."""

from collections.abc import Sequence

from pipecd.model.application import SyncStatus
from pipecd.piped.reporting.sync_states import SyncState

# The first one that any plugin says counts.
_ORDER = (
    SyncStatus.DEPLOYING,
    SyncStatus.INVALID_CONFIG,
    SyncStatus.OUT_OF_SYNC,
    SyncStatus.UNKNOWN,
    SyncStatus.SYNCED,
)
_WITHOUT_REASON = (SyncStatus.DEPLOYING, SyncStatus.SYNCED)


def merged(verdicts: Sequence[SyncState]) -> SyncState:
    """The worst of the verdicts, with what all plugins have to say; of none nothing is known."""
    status = min((each.status for each in verdicts), key=_ORDER.index, default=SyncStatus.UNKNOWN)
    if status in _WITHOUT_REASON:
        return SyncState(status)
    return SyncState(
        status,
        "\n".join(each.short_reason for each in verdicts if each.short_reason),
        "\n".join(each.reason for each in verdicts if each.reason),
    )
