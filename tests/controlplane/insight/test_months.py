# SPDX-License-Identifier: Apache-2.0
"""Lead time and time to restore: what counts, and that the order of arrival does not matter."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.insight.facts import DAY, Fact, Restored, Tally, fact_of, restored
from pipecd.controlplane.insight.months import (
    Month,
    added,
    month_at,
    month_of,
    month_path,
    months_between,
    read_month,
    write_month,
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
    fact = fact_of(made)
    assert fact is not None
    assert fact.lead_seconds == lead


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(deployment(status=6), id="a cancelled one"),
        pytest.param(deployment(status=2), id="a running one"),
        pytest.param(deployment(ended=0), id="one without the time of its end"),
    ],
)
def test_it_says_nothing(made: Deployment) -> None:
    assert fact_of(made) is None


def fact(what: str, at: int, application: str = "a", *, lead: int | None = None) -> Fact:
    id = f"{application}{what}{at}"
    return Fact(id, application, (), JANUARY + at, what == "ok", lead)


@pytest.mark.parametrize(
    ("facts", "seconds"),
    [
        pytest.param([("ok", 1), ("ok", 5)], [], id="without a failure nothing is restored"),
        pytest.param([("bad", 1)], [], id="a failure that lasts is not restored yet"),
        pytest.param([("bad", 1), ("ok", 5)], [4], id="from the failure to the next success"),
        pytest.param(
            [("bad", 1), ("bad", 3), ("ok", 5)], [4], id="from the first of some failures"
        ),
        pytest.param([("bad", 1), ("ok", 5), ("ok", 9)], [4], id="once"),
        pytest.param([("bad", 1), ("ok", 5), ("bad", 7), ("ok", 9)], [4, 2], id="each time"),
        pytest.param([("bad", 3), ("ok", 3)], [0], id="within a second"),
    ],
)
def test_time_to_restore(facts: list[tuple[str, int]], seconds: list[int]) -> None:
    month = added({}, [fact(what, at) for what, at in facts])["2026-01"]
    assert [one.seconds for one in restored(month.tallies, {})[0]] == seconds


def test_applications_do_not_mend_each_other() -> None:
    month = added({}, [fact("bad", 1, "a"), fact("ok", 5, "b"), fact("ok", 9, "a")])["2026-01"]
    assert restored(month.tallies, {}) == ((Restored(JANUARY + 9, "a", (), 8),), {})


def test_a_failure_is_mended_in_a_later_month() -> None:
    failed, mended = fact("bad", DAY - 10), fact("ok", DAY + 10)
    months = added(added({}, [failed]), [mended])
    assert months["2026-02"].failing == {"a": JANUARY + DAY - 10}
    (one,), failing = restored(months["2026-02"].tallies, months["2026-02"].failing)
    assert (one.seconds, failing) == (20, {})


def test_a_late_success_corrects_the_month_after_it() -> None:
    months = added({}, [fact("bad", DAY - 10), fact("ok", DAY + 10)])
    corrected = added(months, [fact("ok", DAY - 5)])
    assert corrected["2026-02"].failing == {}
    assert restored(corrected["2026-02"].tallies, {})[0] == ()


def test_ids_are_known_as_long_as_they_may_come_again() -> None:
    first, second = fact("ok", 10), fact("ok", 20)
    months = added({}, [first, second], forget_before=JANUARY + 15)
    assert set(months["2026-01"].recent) == {second.id}
    assert added(months, [second])["2026-01"].tallies == months["2026-01"].tallies


FACTS = st.lists(
    st.builds(
        Fact,
        id=st.uuids().map(str),
        application=st.sampled_from(["a", "b"]),
        labels=st.sampled_from([(), (("env", "dev"),)]),
        completed_at=st.integers(JANUARY - 40 * DAY, JANUARY + 40 * DAY),
        succeeded=st.booleans(),
        lead_seconds=st.none() | st.integers(0, 10**6),
    ),
    max_size=30,
)


@given(facts=FACTS, order=st.randoms(use_true_random=False), size=st.integers(1, 7))
def test_bit_by_bit_in_any_order_is_the_same_as_from_scratch(
    facts: list[Fact], order: object, size: int
) -> None:
    scratch = added({}, facts)
    shuffled = list(facts)
    order.shuffle(shuffled)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    months: dict[str, Month] = {}
    for start in range(0, len(shuffled), size):
        # Some of them come once more.
        months = added(months, shuffled[max(0, start - 2) : start + size])
    assert months == scratch
    tallies = [tally for month in months.values() for tally in month.tallies.values()]
    total = reduce(Tally.plus, tallies, Tally())
    assert len(total.succeeded) + len(total.failed) == len(facts)
    assert total.lead_count == sum(f.succeeded and f.lead_seconds is not None for f in facts)


@given(facts=FACTS)
def test_what_is_written_is_read_again(facts: list[Fact]) -> None:
    for month in added({}, facts).values():
        assert read_month(write_month(month)) == month


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b'{"version":2}', id="of a newer version"),
        pytest.param(b"null", id="empty"),
        pytest.param(b'{"version":1,"groups":[{}]}', id="incomplete"),
    ],
)
def test_a_damaged_file_is_named(content: bytes) -> None:
    with pytest.raises(PipecdError, match="2026-01"):
        decoded(month_path("p", "2026-01"), content, read_month)


def test_months_have_names_that_sort() -> None:
    assert (month_of(FEBRUARY - 1), month_of(FEBRUARY)) == ("2026-01", "2026-02")
    assert months_between(JANUARY - 60 * DAY, FEBRUARY) == ("2025-12", "2026-01", "2026-02")
    assert month_at(month_path("p", "2026-02")) == "2026-02"


def test_labels_of_a_success_decide_where_it_counts() -> None:
    failed = replace(fact("bad", 1), labels=(("env", "dev"),))
    mended = replace(fact("ok", 5), labels=(("env", "prod"),))
    month = added({}, [failed, mended])["2026-01"]
    assert restored(month.tallies, {})[0][0].labels == (("env", "prod"),)
