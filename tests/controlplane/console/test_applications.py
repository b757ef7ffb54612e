# SPDX-License-Identifier: Apache-2.0
"""The list of applications, one of them, and its sync."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.console.page_context import Visitor
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import Handled
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

Send = Callable[..., Awaitable[httpx2.Response]]


async def test_an_empty_project_says_what_to_do(browser_of_admin: httpx2.AsyncClient) -> None:
    page = (await browser_of_admin.get("/applications")).text
    assert "No applications yet" in page
    assert 'href="/applications/add"' in page


async def test_the_list_shows_what_there_is(
    browser_of_admin: httpx2.AsyncClient, application: Application
) -> None:
    page = (await browser_of_admin.get("/applications")).text
    assert f'id="app-{application.id}"' in page
    assert "env: dev" in page
    assert "Kubernetes" in page
    assert "never deployed" in page
    assert 'data-topics="apps"' in page


@pytest.mark.parametrize(
    ("query", "is_there"),
    [
        pytest.param("q=car", True, id="a part of its name"),
        pytest.param("q=zzz", False, id="another name"),
        pytest.param("kind=0", True, id="its kind"),
        pytest.param("kind=1", False, id="another kind"),
        pytest.param("labels[0]=env:dev", True, id="its label"),
        pytest.param("labels[0]=env:prod", False, id="another label"),
        pytest.param("syncStatus=0&activeStatus=enabled", True, id="its status"),
        pytest.param("activeStatus=disabled", False, id="only disabled ones"),
        pytest.param("name=cart", True, id="its exact name"),
    ],
)
async def test_filters_are_in_the_address(
    query: str, is_there: bool, browser_of_admin: httpx2.AsyncClient, application: Application
) -> None:
    page = (await browser_of_admin.get(f"/applications?{query}")).text
    assert (f'id="app-{application.id}"' in page) is is_there
    assert ("No application matches" in page) is not is_there


async def test_what_the_data_says_is_never_markup(
    browser_of_admin: httpx2.AsyncClient, stores: Stores, application: Application
) -> None:
    def rename(found: Application) -> None:
        found.name = "<script>alert(1)</script>"
        found.git_path.url = "javascript:alert(1)"
        found.description = "<img src=x onerror=alert(1)>"

    await stores.applications.update(application.id, rename)
    for path in ("/applications", f"/applications/{application.id}"):
        page = (await browser_of_admin.get(path)).text
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "javascript:" not in page


async def test_the_page_of_an_application_has_its_facts_and_deployments(
    browser_of_admin: httpx2.AsyncClient, application: Application, deployment: Deployment
) -> None:
    page = (await browser_of_admin.get(f"/applications/{application.id}")).text
    assert f'href="/deployments/{deployment.id}"' in page
    assert "more coffee" in page
    assert "apps/cart" in page
    assert f"app:{application.id}" in page
    assert f"dep:{deployment.id}" in page


@pytest.mark.parametrize(
    ("strategy", "asked"),
    [
        pytest.param("", SyncStrategy.AUTO, id="as planned"),
        pytest.param("quick_sync", SyncStrategy.QUICK_SYNC, id="quick"),
        pytest.param("pipeline", SyncStrategy.PIPELINE, id="through the pipeline"),
    ],
)
async def test_a_sync_gives_a_command_and_says_what_becomes_of_it(
    *,
    strategy: str,
    asked: SyncStrategy,
    browser_of_admin: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    send: Send,
    reports: Any,
) -> None:
    await reports.online()
    here = f"/applications/{application.id}"
    answer = await send(browser_of_admin, here, f"{here}/sync", strategy=strategy)
    assert answer.status_code == 303
    (command,) = await cases.commands.unhandled_of(by=piped)
    assert command.sync_application.sync_strategy == asked
    after = answer.headers["location"]
    assert after == f"{here}?cmd={command.id}"
    page = (await browser_of_admin.get(after)).text
    assert "The sync is requested; piped dev picks it up in a moment." in page
    assert f"cmd:{command.id}" in page
    done = Handled(command.id, CommandStatus.SUCCEEDED, 1, {"TriggeredDeploymentID": "d1"})
    await cases.commands.handled(done, by=piped)
    page = (await browser_of_admin.get(after)).text
    assert 'href="/deployments/d1"' in page


async def test_a_double_click_asks_once(
    browser_of_admin: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    send: Send,
) -> None:
    here = f"/applications/{application.id}"
    answers = await asyncio.gather(
        *(send(browser_of_admin, here, f"{here}/sync") for _ in range(3))
    )
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert len(await cases.commands.unhandled_of(by=piped)) == 1


async def test_a_sync_a_while_later_is_another_one(
    *,
    browser_of_admin: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    send: Send,
    advance: Callable[[float], None],
) -> None:
    here = f"/applications/{application.id}"
    await send(browser_of_admin, here, f"{here}/sync")
    advance(4)
    await send(browser_of_admin, here, f"{here}/sync")
    assert len(await cases.commands.unhandled_of(by=piped)) == 2


async def test_a_form_without_the_secret_of_the_session_changes_nothing(
    browser_of_admin: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    action = f"/applications/{application.id}/sync"
    for fields in ({}, {"csrf": "0" * 64}):
        answer = await browser_of_admin.post(action, data=fields)
        assert answer.status_code == 403
        assert "not from your session" in answer.text
    assert await cases.commands.unhandled_of(by=piped) == ()


async def test_a_form_of_another_site_changes_nothing(
    browser_of_admin: httpx2.AsyncClient, application: Application, cases: UseCases, send: Send
) -> None:
    browser_of_admin.headers["Sec-Fetch-Site"] = "cross-site"
    here = f"/applications/{application.id}"
    answer = await send(browser_of_admin, here, f"{here}/sync")
    assert answer.status_code == 403
    assert "comes from another site" in answer.text


async def test_a_viewer_sees_why_there_is_nothing_to_press(
    someone: Callable[..., httpx2.AsyncClient], viewer: User, application: Application, send: Send
) -> None:
    client = someone(viewer)
    here = f"/applications/{application.id}"
    page = (await client.get(here)).text
    assert "Your roles (Viewer) do not allow this" in page
    assert 'data-testid="sync-button"' in page
    assert f'action="{here}/sync"' not in page


async def test_a_viewer_who_sends_the_form_anyway_is_refused(
    someone: Callable[..., httpx2.AsyncClient],
    viewer: User,
    application: Application,
    cases: UseCases,
) -> None:
    client = someone(viewer)
    token = client.cookies["token"]
    action = f"/applications/{application.id}/sync"
    answer = await client.post(action, data={"csrf": Visitor(viewer, token).csrf})
    assert answer.status_code == 403


async def test_a_disabled_application_cannot_be_synced(
    browser_of_admin: httpx2.AsyncClient, application: Application, cases: UseCases, admin: User
) -> None:
    await cases.applications.disable(application.id, by=admin)
    page = (await browser_of_admin.get(f"/applications/{application.id}")).text
    assert "Sync is off. It is disabled; enable it first." in page


async def test_the_application_of_another_project_is_not_shown(
    someone: Callable[..., httpx2.AsyncClient], stranger: User, application: Application
) -> None:
    answer = await someone(stranger).get(f"/applications/{application.id}")
    assert answer.status_code == 403
    assert application.name not in answer.text


async def test_a_link_for_another_project_says_so(browser_of_admin: httpx2.AsyncClient) -> None:
    page = (await browser_of_admin.get("/applications?project=other")).text
    assert 'data-testid="banner-project"' in page
    assert "banner-project" not in (await browser_of_admin.get("/applications?project=shop")).text


async def test_what_runs_and_why_nobody_knows_are_shown(
    browser_of_admin: httpx2.AsyncClient,
    cases: UseCases,
    stores: Stores,
    application: Application,
    reports: Any,
) -> None:
    await reports.online()
    page = (await browser_of_admin.get(f"/applications/{application.id}")).text
    assert "What runs</h2>" not in page

    def unknown(found: Application) -> None:
        found.sync_state.reason, found.sync_state.timestamp = "the cluster does not answer", 1

    await stores.applications.update(application.id, unknown)
    snapshot = ApplicationLiveStateSnapshot(application_id=application.id)
    snapshot.version.timestamp = 1
    told = snapshot.application_live_state.resources.add(id="1", name="web-<b>", created_at=1)
    told.health_status, told.health_description = ResourceState.UNHEALTHY, "it crashes"
    by = PipedCaller(application.project_id, application.piped_id)
    await cases.livestate.report(snapshot, by=by)
    page = (await browser_of_admin.get(f"/applications/{application.id}")).text
    assert "What runs</h2>" in page
    assert "web-&lt;b&gt;" in page
    assert "it crashes" in page
    assert "Unhealthy" in page
    assert "What runs cannot be compared with Git. The cluster does not answer." in page
