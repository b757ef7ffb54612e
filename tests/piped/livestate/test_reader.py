# SPDX-License-Identifier: Apache-2.0
"""The sync states of several plugins become one."""

import pytest

from pipecd.model.application import SyncStatus
from pipecd.piped.livestate.reader import merge_sync_states
from pipecd.piped.reporting.sync_states import SyncState

SYNCED = SyncState(SyncStatus.SYNCED)
UNKNOWN = SyncState(SyncStatus.UNKNOWN, "?", "unknown")
DRIFT = SyncState(SyncStatus.OUT_OF_SYNC, "1 differs", "- a\n+ b")
BROKEN = SyncState(SyncStatus.INVALID_CONFIG, "broken", "line 1\nline 2")
DEPLOYING = SyncState(SyncStatus.DEPLOYING)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        pytest.param([], SyncState(SyncStatus.UNKNOWN), id="without plugins the state is unknown"),
        pytest.param([SYNCED, SYNCED], SYNCED, id="all in sync is in sync"),
        pytest.param([DRIFT, SYNCED], DRIFT, id="one difference counts"),
        pytest.param(
            [DRIFT, UNKNOWN],
            SyncState(SyncStatus.OUT_OF_SYNC, "1 differs\n?", "- a\n+ b\nunknown"),
            id="out of sync precedes unknown, with both reasons",
        ),
        pytest.param(
            [DRIFT, BROKEN],
            SyncState(SyncStatus.INVALID_CONFIG, "1 differs\nbroken", "- a\n+ b\nline 1\nline 2"),
            id="a wrong configuration says more than a difference",
        ),
        pytest.param([SYNCED, UNKNOWN], UNKNOWN, id="unknown precedes synced"),
        pytest.param([BROKEN, DEPLOYING], DEPLOYING, id="a deployment needs no reason"),
    ],
)
def test_sync_states_are_merged(states: list[SyncState], expected: SyncState) -> None:
    assert merge_sync_states(states) == expected
