# SPDX-License-Identifier: Apache-2.0
"""What a list shows, in which order, and how much of it."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console.list_filters import read_applications, read_deployments
from pipecd.controlplane.console.listing import application_list, by_day, matches
from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

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
        pytest.param("", ["mailer", "Cart", "checkout"], id="as the store lists them"),
        pytest.param("q=CAR", ["Cart"], id="a part of the name, whatever its case"),
        pytest.param("q=env:prod", ["Cart", "checkout"], id="a label"),
        pytest.param("syncStatus=1,3", ["Cart", "checkout"], id="one of several statuses"),
        pytest.param("sort=name&dir=asc", ["Cart", "checkout", "mailer"], id="by name"),
        pytest.param("sort=status", ["mailer", "checkout", "Cart"], id="the worst first"),
        pytest.param("sort=updated&dir=desc", ["mailer", "Cart", "checkout"], id="newest first"),
        pytest.param("sort=nonsense", ["mailer", "Cart", "checkout"], id="no such order"),
        pytest.param("page=99", ["mailer", "Cart", "checkout"], id="beyond the last page"),
    ],
)
def test_applications(query: str, names: list[str], noon: datetime) -> None:
    listing = application_list(APPLICATIONS, read_applications(QueryParams(query)), noon)
    assert [row.name for row in listing.rows] == names


def test_the_counts_do_not_depend_on_the_chosen_status(noon: datetime) -> None:
    listing = application_list(APPLICATIONS, read_applications(QueryParams("syncStatus=1")), noon)
    assert sum(count.number for count in listing.counts) == 3
    assert listing.total == 1


def test_a_long_list_has_pages(noon: datetime) -> None:
    many = [Application(id=str(n), name=f"app-{n:03}") for n in range(45)]
    query = read_applications(QueryParams("size=20&page=3"))
    listing = application_list(many, query, noon)
    assert (listing.page, listing.pages, listing.total) == (3, 3, 45)
    assert [row.name for row in listing.rows] == [f"app-{n:03}" for n in range(40, 45)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        pytest.param("q=check", True, id="the application"),
        pytest.param("q=card tokens", True, id="the message"),
        pytest.param("q=7F3C", True, id="the beginning of the commit"),
        pytest.param("q=91ab", False, id="not the middle of the commit"),
        pytest.param("q=d1", True, id="the id"),
        pytest.param("pipedId=other", False, id="another piped"),
        pytest.param("waiting=approval", True, id="one that waits"),
    ],
)
def test_what_a_search_finds(
    query: str, found: bool, make_deployment: Callable[..., Deployment]
) -> None:
    made = make_deployment(PipelineStage(id="1", name="WAIT_APPROVAL", status=1))  # pyright: ignore[reportArgumentType]
    assert matches(made, read_deployments(QueryParams(query))) is found


def test_deployments_are_grouped_by_day(noon: datetime, start: int) -> None:
    made = [
        Deployment(id=str(n), created_at=start - 86400 * days) for n, days in enumerate((1, 0, 1))
    ]
    days = by_day(made, noon, UTC)
    assert [(day.heading, [row.id for row in day.rows]) for day in days] == [
        ("Today", ["1"]),
        ("Yesterday", ["0", "2"]),
    ]
