# SPDX-License-Identifier: Apache-2.0
"""The list of applications: filters, order, counts and pages."""

from collections.abc import Collection, Sequence
from datetime import datetime

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console import application_list as view
from pipecd.controlplane.console.application_summary import application_summary
from pipecd.controlplane.console.list_filters import parse_application_query
from pipecd.model.application import SyncStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import DEPLOYMENT_FAILURE, Deployment, DeployTargets


def listed(
    applications: Sequence[Application],
    query: str,
    now: datetime,
    waiting: Collection[str] = (),
) -> view.ApplicationList:
    parsed = parse_application_query(QueryParams(query))
    summaries = [application_summary(application) for application in applications]
    listing = view.application_list(summaries, parsed, waiting)
    by_id = {application.id: application for application in applications}
    return view.with_rows(listing, by_id, now, waiting)


def test_the_summary_of_a_list() -> None:
    some = ["1", "1", "3"]
    counts = view.status_counts(some)
    assert [(count.count, count.badge.text) for count in counts] == [
        (1, "Out of sync"),
        (2, "Synced"),
    ]
    assert view.list_summary(counts) == "3 applications:"
    assert view.list_summary(view.status_counts(some[:2])) == "2 applications, all synced."
    assert view.list_summary(view.status_counts(["deployed"])) == "1 application, deployed."
    assert view.list_summary(()) == ""


APPLICATIONS = [
    Application(
        id=name,
        name=name,
        labels={"env": env},
        sync_state=ApplicationSyncState(status=int(status)),  # pyright: ignore[reportArgumentType]
        updated_at=updated,
    )
    for name, env, status, updated in (
        ("mailer", "dev", SyncStatus.INVALID_CONFIG, 30),
        ("Cart", "prod", SyncStatus.SYNCED, 20),
        ("checkout", "prod", SyncStatus.OUT_OF_SYNC, 10),
    )
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("", ["mailer", "checkout", "Cart"], id="worst status first by itself"),
        pytest.param("q=CAR", ["Cart"], id="a part of the name, in any case"),
        pytest.param("q=env:prod", ["checkout", "Cart"], id="a label"),
        pytest.param("syncStatus=1,3", ["checkout", "Cart"], id="one of several statuses"),
        pytest.param("sort=name&dir=asc", ["Cart", "checkout", "mailer"], id="by name"),
        pytest.param("sort=status", ["mailer", "checkout", "Cart"], id="worst status first"),
        pytest.param("sort=updated&dir=desc", ["mailer", "Cart", "checkout"], id="newest first"),
        pytest.param("sort=nonsense", ["mailer", "checkout", "Cart"], id="unknown sort key"),
        pytest.param("dir=desc", ["mailer", "checkout", "Cart"], id="a direction of no order"),
        pytest.param("page=99", ["mailer", "checkout", "Cart"], id="beyond the last page"),
    ],
)
def test_the_list_is_filtered_and_sorted(query: str, names: list[str], noon: datetime) -> None:
    listing = listed(APPLICATIONS, query, noon)
    assert [row.name for row in listing.rows] == names


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("", ["approved", "fresh", "live"], id="any status"),
        pytest.param("syncStatus=waiting", ["approved"], id="waiting for approval"),
        pytest.param("syncStatus=deployed", ["live"], id="deployed"),
        pytest.param("syncStatus=0", ["approved", "fresh", "live"], id="upstream's unknown"),
        pytest.param("syncStatus=2,never-deployed", ["fresh"], id="several"),
    ],
)
def test_rows_counts_and_filter_use_the_same_statuses(
    query: str, names: list[str], noon: datetime
) -> None:
    applications = [Application(id=name, name=name) for name in ("approved", "fresh", "live")]
    for last in (
        applications[2].most_recently_triggered_deployment,
        applications[2].most_recently_successful_deployment,
    ):
        last.deployment_id = "d1"
    listing = listed(applications, query, noon, {"approved"})
    assert [row.name for row in listing.rows] == names
    assert [count.badge.text for count in listing.counts] == [
        "Waiting for approval",
        "Never deployed",
        "Deployed",
    ]
    assert {row.badge for row in listing.rows} <= {count.badge for count in listing.counts}


def test_a_row_shows_how_its_last_deployment_ended(noon: datetime) -> None:
    application = Application(id="a", name="a")
    application.most_recently_triggered_deployment.deployment_id = "d1"
    listing = listed([application], "", noon)
    failed = Deployment(id="d1", status=DEPLOYMENT_FAILURE)
    (row,) = view.with_outcomes(listing, {"d1": failed}).rows
    assert row.outcome
    assert row.outcome.text == "Failed"
    (row,) = view.with_outcomes(listing, {}).rows
    assert row.outcome is None


def test_counts_ignore_the_status_filter(noon: datetime) -> None:
    listing = listed(APPLICATIONS, "syncStatus=1", noon)
    assert sum(count.count for count in listing.counts) == 3
    assert listing.total == 1


def test_a_list_without_a_match_has_the_choices_of_the_project(noon: datetime) -> None:
    labelled = [Application(id="1", name="cart", labels={"env": "dev"})]
    whole, empty = listed(labelled, "", noon), listed(labelled, "q=nothing", noon)
    assert (empty.labels, empty.counts) == ((), ())
    offered = view.with_choices_of(empty, whole)
    assert (offered.labels, offered.counts) == (("env: dev",), whole.counts)
    assert (offered.shown, offered.total) == ((), 0)
    assert view.with_choices_of(whole, empty) == whole


def test_a_long_list_has_pages(noon: datetime) -> None:
    many = [Application(id=str(n), name=f"app-{n:03}") for n in range(45)]
    listing = listed(many, "size=20&page=3", noon)
    assert (listing.page, listing.pages, listing.total) == (3, 3, 45)
    assert [row.name for row in listing.rows] == [f"app-{n:03}" for n in range(40, 45)]


@pytest.mark.parametrize("sort", ["status", "health", "name", "deployed", "updated"])
@pytest.mark.parametrize("direction", ["asc", "desc"])
def test_pages_in_any_order_have_each_application_once(
    sort: str, direction: str, noon: datetime
) -> None:
    many = [
        Application(id=str(n), name=f"app-{n % 7}", updated_at=n % 5, deploying=n % 3 == 0)
        for n in range(45)
    ]
    query = f"sort={sort}&dir={direction}&size=20"
    ids = [row.id for page in (1, 2, 3) for row in listed(many, f"{query}&page={page}", noon).rows]
    assert sorted(ids) == sorted(application.id for application in many)
    keys = [(int(id) % 5, id) for id in ids]
    if sort == "updated":
        assert keys == sorted(keys, reverse=direction == "desc")


def test_an_application_deleted_in_the_meantime_has_no_row(noon: datetime) -> None:
    summaries = [application_summary(application) for application in APPLICATIONS]
    listing = view.application_list(summaries, parse_application_query(QueryParams("")))
    left = {each.id: each for each in APPLICATIONS if each.id != "mailer"}
    assert [row.name for row in view.with_rows(listing, left, noon).rows] == ["checkout", "Cart"]


def test_a_platform_is_the_kind_of_v0_and_the_plugin_of_v1(now: datetime) -> None:
    targets = DeployTargets(deploy_targets=["dev"])
    applications = [
        Application(id="1", name="a", kind=common.TERRAFORM, platform_provider="tf"),
        Application(id="2", name="b", deploy_targets_by_plugin={"terraform": targets}),
        Application(id="3", name="c", deploy_targets_by_plugin={"process": targets}),
        Application(id="4", name="d", platform_provider="k8s"),
    ]

    def names(query: str) -> list[str]:
        return [row.name for row in listed(applications, query, now).rows]

    assert names("kind=1") == ["a", "b"]
    assert names("kind=0") == ["d"]
    assert names("kind=process,0") == ["c", "d"]
    assert listed(applications, "kind=1", now).total == 2
