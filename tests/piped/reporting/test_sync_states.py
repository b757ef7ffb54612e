# SPDX-License-Identifier: Apache-2.0
"""Which sync state is reported for an application."""

import pytest

from pipecd.model.application import SyncStatus
from pipecd.piped.reporting.sync_states import SyncFacts, SyncState, decide_sync_state

SYNCED = SyncState(SyncStatus.SYNCED)
DRIFT = SyncState(SyncStatus.OUT_OF_SYNC, "1 differs", "- a\n+ b")
BROKEN = SyncState(SyncStatus.INVALID_CONFIG, "broken", "line 1\nline 2")
DEPLOYING = SyncState(SyncStatus.DEPLOYING)


@pytest.mark.parametrize(
    ("facts", "reported", "expected"),
    [
        pytest.param(SyncFacts(), DRIFT, DRIFT, id="without facts nothing changes"),
        pytest.param(SyncFacts(live=SYNCED), DRIFT, SYNCED, id="the live state counts"),
        pytest.param(
            SyncFacts(is_deploying=True, live=SYNCED),
            SYNCED,
            DEPLOYING,
            id="a deployment in progress",
        ),
        pytest.param(
            SyncFacts(),
            DEPLOYING,
            DEPLOYING,
            id="after a deployment, until the live state is compared",
        ),
        pytest.param(
            SyncFacts("line 1\nline 2", is_deploying=True, live=DRIFT),
            SYNCED,
            SyncState(SyncStatus.INVALID_CONFIG, "line 1", "line 1\nline 2"),
            id="an invalid configuration takes precedence",
        ),
        pytest.param(
            SyncFacts(""), BROKEN, BROKEN, id="a fixed configuration waits for the live state"
        ),
        pytest.param(
            SyncFacts("", live=DRIFT), BROKEN, DRIFT, id="the live state after a fix counts"
        ),
        pytest.param(
            SyncFacts("", live=BROKEN),
            SYNCED,
            BROKEN,
            id="an invalid configuration that a plugin reports",
        ),
    ],
)
def test_the_sync_state_to_report(
    facts: SyncFacts, reported: SyncState, expected: SyncState
) -> None:
    assert decide_sync_state(facts, reported) == expected
