# SPDX-License-Identifier: Apache-2.0
"""What several plugins say, in one verdict; and what the control plane should tell."""

import pytest

from pipecd.model.application import SyncStatus
from pipecd.piped.livestate.merge import merged
from pipecd.piped.mirror.syncstates import Known, Verdict, wanted

SYNCED = Verdict(SyncStatus.SYNCED)
UNKNOWN = Verdict(SyncStatus.UNKNOWN, "?", "not known")
DRIFT = Verdict(SyncStatus.OUT_OF_SYNC, "1 differs", "- a\n+ b")
BROKEN = Verdict(SyncStatus.INVALID_CONFIG, "broken", "line 1\nline 2")
DEPLOYING = Verdict(SyncStatus.DEPLOYING)


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        pytest.param([], Verdict(SyncStatus.UNKNOWN), id="of nobody nothing is known"),
        pytest.param([SYNCED, SYNCED], SYNCED, id="all in sync is in sync"),
        pytest.param([DRIFT, SYNCED], DRIFT, id="one difference counts"),
        pytest.param(
            [DRIFT, UNKNOWN],
            Verdict(SyncStatus.OUT_OF_SYNC, "1 differs\n?", "- a\n+ b\nnot known"),
            id="a difference says more than not knowing, and both reasons are told",
        ),
        pytest.param(
            [DRIFT, BROKEN],
            Verdict(SyncStatus.INVALID_CONFIG, "1 differs\nbroken", "- a\n+ b\nline 1\nline 2"),
            id="a wrong configuration says more than a difference",
        ),
        pytest.param([SYNCED, UNKNOWN], UNKNOWN, id="not knowing one is not knowing"),
        pytest.param([BROKEN, DEPLOYING], DEPLOYING, id="a deployment needs no reason"),
    ],
)
def test_verdicts_are_merged(verdicts: list[Verdict], expected: Verdict) -> None:
    assert merged(verdicts) == expected


@pytest.mark.parametrize(
    ("known", "told", "expected"),
    [
        pytest.param(Known(), DRIFT, DRIFT, id="who knows nothing changes nothing"),
        pytest.param(Known(seen=SYNCED), DRIFT, SYNCED, id="what was seen counts"),
        pytest.param(Known(is_deploying=True, seen=SYNCED), SYNCED, DEPLOYING, id="a deployment"),
        pytest.param(Known(), DEPLOYING, DEPLOYING, id="after a deployment, until somebody looks"),
        pytest.param(
            Known("line 1\nline 2", is_deploying=True, seen=DRIFT),
            SYNCED,
            Verdict(SyncStatus.INVALID_CONFIG, "line 1", "line 1\nline 2"),
            id="a wrong configuration is told whatever else is known",
        ),
        pytest.param(Known(""), BROKEN, BROKEN, id="a mended configuration waits for a look"),
        pytest.param(Known("", seen=DRIFT), BROKEN, DRIFT, id="a look after it was mended counts"),
        pytest.param(
            Known("", seen=BROKEN), SYNCED, BROKEN, id="what a plugin finds wrong is told as well"
        ),
    ],
)
def test_what_the_control_plane_should_tell(known: Known, told: Verdict, expected: Verdict) -> None:
    assert wanted(known, told) == expected
