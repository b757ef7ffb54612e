# SPDX-License-Identifier: Apache-2.0
"""View models of applications: texts, badges and the list."""

from datetime import datetime
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console import applications_view as view
from pipecd.controlplane.console.deploy_targets import platform_name, target_names
from pipecd.controlplane.console.list_filters import parse_application_query
from pipecd.controlplane.console.status_badge import PipedStatus, application_badge
from pipecd.controlplane.console.status_text import application_status_text
from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ECS
from pipecd.proto.model.deployment_pb2 import DEPLOYMENT_FAILURE, Deployment, DeployTargets


def synced(status: SyncStatus, **state: Any) -> Application:
    return Application(id="a1", name="cart", sync_state={"status": int(status), **state})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("application", "text"),
    [
        pytest.param(synced(SyncStatus.SYNCED), "The live state matches Git.", id="synced"),
        pytest.param(
            synced(SyncStatus.OUT_OF_SYNC, short_reason="2 differ"),
            "The live state differs from Git. 2 differ.",
            id="out of sync",
        ),
        pytest.param(
            synced(SyncStatus.INVALID_CONFIG, reason="the third line is wrong"),
            "The application configuration is invalid; nothing is deployed. The third line is wrong.",
            id="invalid configuration",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN),
            "The live state has not been compared with Git yet. "
            "The first deployment starts by itself, or at once with Sync.",
            id="new",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN, timestamp=1),
            "This application has no live state to compare. "
            "The first deployment starts by itself, or at once with Sync.",
            id="no plugin reads a live state",
        ),
        pytest.param(
            synced(SyncStatus.UNKNOWN, timestamp=1, reason="the cluster is down"),
            "The live state cannot be compared with Git. The cluster is down.",
            id="the live state cannot be read",
        ),
    ],
)
def test_the_status_text(application: Application, text: str, online_piped: PipedStatus) -> None:
    assert application_status_text(application, online_piped) == text


def test_a_disabled_application_says_so_first(online_piped: PipedStatus) -> None:
    application = synced(SyncStatus.OUT_OF_SYNC)
    application.disabled = True
    assert application_status_text(application, online_piped).startswith("Disabled:")


def test_the_state_may_be_old_while_the_piped_is_offline(offline_piped: PipedStatus) -> None:
    assert "last known state" in application_status_text(synced(SyncStatus.SYNCED), offline_piped)


def test_a_running_deployment_takes_precedence_over_drift(noon: datetime) -> None:
    application = synced(SyncStatus.OUT_OF_SYNC)
    application.deploying = True
    assert view.application_row(application, noon).badge.text == "Deploying"


@pytest.mark.parametrize(
    ("triggered", "successful", "word"),
    [
        pytest.param("", "", "Never deployed", id="new"),
        pytest.param("d1", "", "Not deployed", id="no deployment has succeeded"),
        pytest.param("d2", "d1", "Not deployed", id="the latest one has not succeeded"),
        pytest.param("d1", "d1", "Deployed", id="the latest one has succeeded"),
    ],
)
def test_an_unknown_sync_status_shows_the_latest_deployment(
    triggered: str, successful: str, word: str
) -> None:
    application = synced(SyncStatus.UNKNOWN)
    application.most_recently_triggered_deployment.deployment_id = triggered
    application.most_recently_successful_deployment.deployment_id = successful
    assert application_badge(application).text == word


def test_the_status_text_names_a_latest_deployment_without_success(
    online_piped: PipedStatus,
) -> None:
    application = synced(SyncStatus.UNKNOWN, timestamp=1)
    application.most_recently_triggered_deployment.deployment_id = "d2"
    application.most_recently_successful_deployment.deployment_id = "d1"
    text = application_status_text(application, online_piped)
    assert text == (
        "This application has no live state to compare. The latest deployment has not succeeded."
    )
    application.most_recently_successful_deployment.deployment_id = "d2"
    text = application_status_text(application, online_piped)
    assert text == "This application has no live state to compare."


def test_the_time_of_the_check_is_shown_if_there_was_one(
    noon: datetime, online_piped: PipedStatus
) -> None:
    def checked(application: Application) -> bool:
        return view.application_view(application, online_piped, noon).checked is not None

    assert checked(synced(SyncStatus.SYNCED, timestamp=1))
    assert checked(synced(SyncStatus.UNKNOWN, timestamp=1, reason="the cluster is down"))
    assert not checked(synced(SyncStatus.UNKNOWN, timestamp=1))


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


@pytest.mark.parametrize(
    ("application", "shown", "where"),
    [
        pytest.param(
            Application(kind=ECS, platform_provider="ecs-tokyo"),
            "ECS",
            "ecs-tokyo",
            id="v0 has a kind and a provider",
        ),
        pytest.param(
            Application(
                deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["a", "b"])}
            ),
            "kubernetes",
            "a, b",
            id="v1 has plugins and targets",
        ),
        pytest.param(Application(), "", "", id="a kind without a provider is ignored"),
    ],
)
def test_platform_and_targets(application: Application, shown: str, where: str) -> None:
    assert (platform_name(application), target_names(application)) == (shown, where)


@pytest.mark.parametrize(
    ("commander", "who"),
    [
        pytest.param("eve", "eve", id="a user who requested it"),
        pytest.param("7f0b2c9e-3a55-4d0e-8a53-7f6e1f1f8d10", "ann", id="no id of a chain or a key"),
    ],
)
def test_who_triggered_the_running_version(noon: datetime, commander: str, who: str) -> None:
    application = Application()
    last = application.most_recently_successful_deployment
    last.deployment_id = "d"
    last.trigger.commander, last.trigger.commit.author = commander, "ann"
    running = view.application_row(application, noon).running
    assert running is not None
    assert running.by == who


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
    listing = view.application_list(APPLICATIONS, parse_application_query(QueryParams(query)), noon)
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
    parsed = parse_application_query(QueryParams(query))
    listing = view.application_list(applications, parsed, noon, {"approved"})
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
    query = parse_application_query(QueryParams(""))
    listing = view.application_list([application], query, noon)
    failed = Deployment(id="d1", status=DEPLOYMENT_FAILURE)
    (row,) = view.with_outcomes(listing, {"d1": failed}).rows
    assert row.outcome
    assert row.outcome.text == "Failed"
    (row,) = view.with_outcomes(listing, {}).rows
    assert row.outcome is None


def test_counts_ignore_the_status_filter(noon: datetime) -> None:
    listing = view.application_list(
        APPLICATIONS, parse_application_query(QueryParams("syncStatus=1")), noon
    )
    assert sum(count.count for count in listing.counts) == 3
    assert listing.total == 1


def test_a_long_list_has_pages(noon: datetime) -> None:
    many = [Application(id=str(n), name=f"app-{n:03}") for n in range(45)]
    query = parse_application_query(QueryParams("size=20&page=3"))
    listing = view.application_list(many, query, noon)
    assert (listing.page, listing.pages, listing.total) == (3, 3, 45)
    assert [row.name for row in listing.rows] == [f"app-{n:03}" for n in range(40, 45)]
