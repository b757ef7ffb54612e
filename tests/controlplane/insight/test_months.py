# SPDX-License-Identifier: Apache-2.0
"""Lead time and time to restore do not depend on the order in which deployments arrive."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.dora import (
    DAY,
    CompletedOutcome,
    OutcomeTotals,
    Restoration,
    find_restorations,
    outcome_of,
)
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.insight.months import (
    Month,
    add_outcomes,
    decode_month,
    encode_month,
    month_from_path,
    month_of,
    month_path,
    months_between,
)
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import PipecdError
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger

JANUARY = int(datetime(2026, 1, 31, tzinfo=UTC).timestamp())
FEBRUARY = JANUARY + DAY


def deployment(
    status: int = DeploymentStatus.SUCCESS,
    running: str = "old",
    committed: int = 40,
    ended: int = 100,
) -> Deployment:
    commit = Commit(hash="new", created_at=committed)
    return Deployment(
        id="d",
        application_id="a",
        status=status,  # pyright: ignore[reportArgumentType]
        running_commit_hash=running,
        completed_at=ended,
        trigger=DeploymentTrigger(commit=commit),
    )


@pytest.mark.parametrize(
    ("made", "lead"),
    [
        pytest.param(deployment(), 60, id="a change has the time since its commit"),
        pytest.param(deployment(running=""), None, id="a first deployment has none"),
        pytest.param(deployment(running="new"), None, id="the commit that ran already has none"),
        pytest.param(deployment(status=5), None, id="a failure has none"),
        pytest.param(deployment(committed=0), None, id="a commit without a time has none"),
        pytest.param(deployment(committed=130), 0, id="a commit of the future counts as now"),
    ],
)
def test_lead_time(made: Deployment, lead: int | None) -> None:
    outcome = outcome_of(made)
    assert outcome is not None
    assert outcome.lead_seconds == lead


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(deployment(status=6), id="cancelled"),
        pytest.param(deployment(status=2), id="running"),
        pytest.param(deployment(ended=0), id="without a completion time"),
    ],
)
def test_a_deployment_without_an_outcome(made: Deployment) -> None:
    assert outcome_of(made) is None


def outcome(
    what: str, at: int, application: str = "a", *, lead: int | None = None
) -> CompletedOutcome:
    id = f"{application}{what}{at}"
    return CompletedOutcome(id, application, (), JANUARY + at, what == "ok", lead)


@pytest.mark.parametrize(
    ("outcomes", "seconds"),
    [
        pytest.param([("ok", 1), ("ok", 5)], [], id="no restoration without a failure"),
        pytest.param([("bad", 1)], [], id="no restoration before a success"),
        pytest.param([("bad", 1), ("ok", 5)], [4], id="from the failure to the next success"),
        pytest.param(
            [("bad", 1), ("bad", 3), ("ok", 5)], [4], id="from the first of some failures"
        ),
        pytest.param([("bad", 1), ("ok", 5), ("ok", 9)], [4], id="once"),
        pytest.param([("bad", 1), ("ok", 5), ("bad", 7), ("ok", 9)], [4, 2], id="each time"),
        pytest.param([("bad", 3), ("ok", 3)], [0], id="within a second"),
    ],
)
def test_time_to_restore(outcomes: list[tuple[str, int]], seconds: list[int]) -> None:
    month = add_outcomes({}, [outcome(what, at) for what, at in outcomes])["2026-01"]
    assert [one.seconds for one in find_restorations(month.totals, {})[0]] == seconds


def test_a_success_restores_only_its_own_application() -> None:
    month = add_outcomes(
        {}, [outcome("bad", 1, "a"), outcome("ok", 5, "b"), outcome("ok", 9, "a")]
    )["2026-01"]
    assert find_restorations(month.totals, {}) == ((Restoration(JANUARY + 9, "a", (), 8),), {})


def test_a_failure_is_restored_in_a_later_month() -> None:
    failed, succeeded = outcome("bad", DAY - 10), outcome("ok", DAY + 10)
    months = add_outcomes(add_outcomes({}, [failed]), [succeeded])
    assert months["2026-02"].failing == {"a": JANUARY + DAY - 10}
    (one,), failing = find_restorations(months["2026-02"].totals, months["2026-02"].failing)
    assert (one.seconds, failing) == (20, {})


def test_a_late_success_corrects_the_month_after_it() -> None:
    months = add_outcomes({}, [outcome("bad", DAY - 10), outcome("ok", DAY + 10)])
    corrected = add_outcomes(months, [outcome("ok", DAY - 5)])
    assert corrected["2026-02"].failing == {}
    assert find_restorations(corrected["2026-02"].totals, {})[0] == ()


def test_ids_are_stored_while_deployments_may_be_collected_again() -> None:
    first, second = outcome("ok", 10), outcome("ok", 20)
    months = add_outcomes({}, [first, second], forget_before=JANUARY + 15)
    assert set(months["2026-01"].recent) == {second.id}
    assert add_outcomes(months, [second])["2026-01"].totals == months["2026-01"].totals


OUTCOMES = st.lists(
    st.builds(
        CompletedOutcome,
        id=st.uuids().map(str),
        application=st.sampled_from(["a", "b"]),
        labels=st.sampled_from([(), (("env", "dev"),)]),
        completed_at=st.integers(JANUARY - 40 * DAY, JANUARY + 40 * DAY),
        succeeded=st.booleans(),
        lead_seconds=st.none() | st.integers(0, 10**6),
    ),
    max_size=30,
)


@given(outcomes=OUTCOMES, order=st.randoms(use_true_random=False), size=st.integers(1, 7))
def test_batches_in_any_order_give_the_same_totals(
    outcomes: list[CompletedOutcome], order: object, size: int
) -> None:
    expected = add_outcomes({}, outcomes)
    shuffled = list(outcomes)
    order.shuffle(shuffled)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    months: dict[str, Month] = {}
    for start in range(0, len(shuffled), size):
        # Some outcomes arrive again.
        months = add_outcomes(months, shuffled[max(0, start - 2) : start + size])
    assert months == expected
    totals = [tally for month in months.values() for tally in month.totals.values()]
    total = reduce(OutcomeTotals.plus, totals, OutcomeTotals())
    assert len(total.succeeded) + len(total.failed) == len(outcomes)
    assert total.lead_count == sum(f.succeeded and f.lead_seconds is not None for f in outcomes)


@given(outcomes=OUTCOMES)
def test_an_encoded_month_decodes_to_itself(outcomes: list[CompletedOutcome]) -> None:
    for month in add_outcomes({}, outcomes).values():
        assert decode_month(encode_month(month)) == month


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"version":2}', id="of a newer version"),
        pytest.param(b"null", id="empty"),
        pytest.param(b'{"version":1,"groups":[{}]}', id="incomplete"),
    ],
)
def test_the_error_of_a_damaged_file_names_it(content: bytes) -> None:
    with pytest.raises(PipecdError, match="2026-01"):
        decode_file(month_path("p", "2026-01"), content, decode_month)


def test_names_of_months_sort_by_time() -> None:
    assert (month_of(FEBRUARY - 1), month_of(FEBRUARY)) == ("2026-01", "2026-02")
    assert months_between(JANUARY - 60 * DAY, FEBRUARY) == ("2025-12", "2026-01", "2026-02")
    assert month_from_path(month_path("p", "2026-02")) == "2026-02"


def test_labels_of_a_success_decide_where_it_counts() -> None:
    failed = replace(outcome("bad", 1), labels=(("env", "dev"),))
    restored = replace(outcome("ok", 5), labels=(("env", "prod"),))
    month = add_outcomes({}, [failed, restored])["2026-01"]
    assert find_restorations(month.totals, {})[0][0].labels == (("env", "prod"),)
