# SPDX-License-Identifier: Apache-2.0
"""The page of insights over what the collector has stored."""

import re
from collections.abc import Callable

import httpx2
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.insights import ChunkWriter, MonthWriter, collect_deployments
from pipecd.controlplane.usecases import UseCases
from pipecd.model.clock import Now, to_unix
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.console import PipedReports


@pytest.fixture
async def collected(
    *,
    cases: UseCases,
    stores: Stores,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
    reports: PipedReports,
    now: Now,
    advance: Callable[[float], None],
) -> list[Deployment]:
    """A failure, and a success an hour later, both of today."""
    deployments: list[Deployment] = []
    for status in (DeploymentStatus.FAILURE, DeploymentStatus.SUCCESS):
        deployment = new_deployment()
        deployment.id, deployment.running_commit_hash = new_id(), "before"
        deployment.trigger.commit.created_at = to_unix(now()) - 1800
        await cases.deployment_reports.create(deployment, by=piped)
        await reports.deployment(deployment, status)
        deployments.append(deployment)
        advance(3600)
    chunks, months = ChunkWriter(stores.files, chunk_size=100), MonthWriter(stores.files)
    await collect_deployments(stores, "chunks", chunks, now=now)
    await collect_deployments(stores, "months", months, now=now)
    return deployments


def value_of(page: str, key: str) -> str:
    part = page.partition(f'data-testid="chart-{key}"')[2]
    return part.partition('data-testid="chart-value">')[2].partition("<")[0]


async def test_all_four_metrics_are_shown(
    admin_browser: httpx2.AsyncClient, collected: list[Deployment]
) -> None:
    page = (await admin_browser.get("/insights")).text
    assert value_of(page, "frequency") == "2"
    assert value_of(page, "failure-rate") == "50 %"
    assert value_of(page, "lead-time") == "30m 00s"
    assert value_of(page, "restore") == "1h 00m"


async def test_the_deployments_behind_a_point_are_listed(
    admin_browser: httpx2.AsyncClient, collected: list[Deployment], now: Now
) -> None:
    today = to_unix(now().replace(hour=0, minute=0, second=0))
    page = (await admin_browser.get(f"/insights?at={today}")).text
    assert "2 completed deployments" in page
    rows = [row.partition("</tr>")[0] for row in page.split('data-testid="behind-row"')[1:]]
    # The latest first: the success has a lead time and restored the application.
    assert f"/deployments/{collected[1].id}" in rows[0]
    assert "30m 00s" in rows[0]
    assert "1h 00m" in rows[0]
    assert f"/deployments/{collected[0].id}" in rows[1]
    assert "30m 00s" not in rows[1]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        pytest.param("app=cart", "2", id="by the name of the application"),
        pytest.param("app=CAR", "2", id="by a part of the only name that contains it"),
        pytest.param("app=other", "", id="an unknown application has no charts"),
        pytest.param("labels[0]=env:dev", "2", id="by a label"),
        pytest.param("labels[0]=env:prod", "none", id="another label"),
        pytest.param("labels[0]=nonsense&range=x&res=y&at=-1", "2", id="nonsense is ignored"),
    ],
)
async def test_insights_are_filtered_by_the_url(
    query: str, count: str, admin_browser: httpx2.AsyncClient, collected: list[Deployment]
) -> None:
    del collected
    answer = await admin_browser.get(f"/insights?{query}")
    assert answer.status_code == 200
    assert value_of(answer.text, "frequency") == count


async def test_the_numbers_can_be_downloaded(
    admin_browser: httpx2.AsyncClient, collected: list[Deployment], now: Now
) -> None:
    del collected
    answer = await admin_browser.get("/insights.csv?range=1w")
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text.splitlines()[-1] == f"{now():%Y-%m-%d},2,1,1800,3600"


async def test_a_part_of_several_names_offers_them(
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    draft: Application,
    application: Application,
) -> None:
    del application
    draft.name, draft.git_path.path = "carrier", "apps/carrier"
    await cases.applications.add(draft, by=admin)
    page = (await admin_browser.get("/insights?app=car&range=1w")).text
    assert "2 applications contain “car”" in page
    (address,) = re.findall(r'href="(/insights[^"]*app=carrier[^"]*)"', page)
    assert "range=1w" in address
    # A whole name is meant as such.
    assert "Choose one" not in (await admin_browser.get("/insights?app=cart")).text


async def test_the_cards_count_the_project_and_its_last_day(
    admin_browser: httpx2.AsyncClient, collected: list[Deployment]
) -> None:
    del collected
    page = (await admin_browser.get("/insights")).text
    cards = {
        part.partition('"')[0]: " ".join(re.sub("<[^>]+>", " ", part.partition("</p>")[0]).split())
        for part in page.split('data-testid="card-')[1:]
    }
    assert cards["applications"].endswith("Applications 1 all enabled")
    assert cards["by-piped"].endswith("1 piped has applications")
    assert cards["pipeds"].endswith("0 of 1 online")
    assert cards["last-day"].endswith("2 completed, 50 % failed")
    # They are about the whole project, and not shown for a part of it.
    assert 'data-testid="card-' not in (await admin_browser.get("/insights?app=cart")).text


async def test_the_card_of_pipeds_says_how_many_it_leaves_out(
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    stores: Stores,
    admin: User,
    application: Application,
) -> None:
    for number in range(4):
        registered = await cases.pipeds.register(f"piped-{number}", "", by=admin)
        another = Application()
        another.CopyFrom(application)
        another.id, another.piped_id = new_id(), registered.id
        await stores.applications.add(another)
    page = (await admin_browser.get("/insights")).text
    assert "pipeds have applications" in page
    assert '<a href="/settings/piped">and 2 more</a>' in page
