# SPDX-License-Identifier: Apache-2.0
"""The pages of applications and the sync form."""

import asyncio
from collections.abc import Callable

import httpx2
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.console.page_context import BrowserSession
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource
from servers.console import OpenBrowser, PipedReports, SubmitForm
from servers.live_states import DRIFT


async def test_an_empty_list_says_what_to_do(
    admin_browser: httpx2.AsyncClient, cases: UseCases, admin: User
) -> None:
    page = (await admin_browser.get("/applications")).text
    assert "No applications yet" in page
    # Nothing can be added before there is a piped.
    first_step = '<a class="btn primary" href="/settings/piped#add">Add a piped</a>'
    assert first_step in page
    assert first_step in (await admin_browser.get("/overview")).text
    await cases.pipeds.register("dev", "", by=admin)
    page = (await admin_browser.get("/applications")).text
    assert '<a class="btn primary" href="/applications/add">Add an application</a>' in page
    assert first_step not in (await admin_browser.get("/overview")).text


async def test_the_list_shows_applications(
    admin_browser: httpx2.AsyncClient, application: Application
) -> None:
    page = (await admin_browser.get("/applications")).text
    assert f'id="app-{application.id}"' in page
    assert "env: dev" in page
    assert "Kubernetes" in page
    assert "Never deployed" in page
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
async def test_filters_are_in_the_url(
    query: str, is_there: bool, admin_browser: httpx2.AsyncClient, application: Application
) -> None:
    page = (await admin_browser.get(f"/applications?{query}")).text
    assert (f'id="app-{application.id}"' in page) is is_there
    assert ("No application matches" in page) is not is_there


async def test_a_list_without_a_match_offers_the_filters_of_the_project(
    admin_browser: httpx2.AsyncClient, stores: Stores, application: Application
) -> None:
    def label(found: Application) -> None:
        found.labels["team"] = "till"

    await stores.applications.update(application.id, label)
    page = (await admin_browser.get("/applications?q=nothing-has-this-name")).text
    assert "No application matches" in page
    assert '<option value="team:till"' in page
    assert 'class="btn primary" href="/applications/add"' in page


async def test_data_is_escaped(
    admin_browser: httpx2.AsyncClient, stores: Stores, application: Application
) -> None:
    def rename(found: Application) -> None:
        found.name = "<script>alert(1)</script>"
        found.git_path.url = "javascript:alert(1)"
        found.description = "<img src=x onerror=alert(1)>"

    await stores.applications.update(application.id, rename)
    for path in ("/applications", f"/applications/{application.id}"):
        page = (await admin_browser.get(path)).text
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "javascript:" not in page


async def test_the_page_of_an_application_has_its_facts_and_deployments(
    admin_browser: httpx2.AsyncClient, application: Application, deployment: Deployment
) -> None:
    page = (await admin_browser.get(f"/applications/{application.id}")).text
    assert f'href="/deployments/{deployment.id}"' in page
    assert "more coffee" in page
    assert "apps/cart" in page
    assert f"app:{application.id}" in page
    assert f"dep:{deployment.id}" in page


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        pytest.param("", SyncStrategy.AUTO, id="as planned"),
        pytest.param("quick_sync", SyncStrategy.QUICK_SYNC, id="quick"),
        pytest.param("pipeline", SyncStrategy.PIPELINE, id="through the pipeline"),
    ],
)
async def test_a_sync_sends_a_command_and_shows_its_state(
    *,
    strategy: str,
    expected: SyncStrategy,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    submit_form: SubmitForm,
    reports: PipedReports,
) -> None:
    await reports.online()
    here = f"/applications/{application.id}"
    response = await submit_form(admin_browser, here, f"{here}/sync", strategy=strategy)
    assert response.status_code == 303
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.sync_application.sync_strategy == expected
    after = response.headers["location"]
    assert after == f"{here}?cmd={command.id}"
    page = (await admin_browser.get(after)).text
    assert "The sync is requested; piped dev picks it up in a moment." in page
    assert f"cmd:{command.id}" in page
    done = CommandResult(command.id, CommandStatus.SUCCEEDED, 1, {"TriggeredDeploymentID": "d1"})
    await cases.commands.report_handled(done, by=piped)
    page = (await admin_browser.get(after)).text
    assert 'href="/deployments/d1"' in page


async def test_a_double_click_sends_one_command(
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    submit_form: SubmitForm,
) -> None:
    here = f"/applications/{application.id}"
    responses = await asyncio.gather(
        *(submit_form(admin_browser, here, f"{here}/sync") for _ in range(3))
    )
    assert len({response.headers["location"] for response in responses}) == 1
    assert len(await cases.commands.list_unhandled(by=piped)) == 1


async def test_a_sync_after_the_end_of_the_deployment_is_no_double_click(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    deployment: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    submit_form: SubmitForm,
    reports: PipedReports,
) -> None:
    here = f"/applications/{application.id}"
    await submit_form(admin_browser, here, f"{here}/sync")
    (first,) = await cases.commands.list_unhandled(by=piped)
    triggered = {"TriggeredDeploymentID": deployment.id}
    done = CommandResult(first.id, CommandStatus.SUCCEEDED, 1, triggered)
    await cases.commands.report_handled(done, by=piped)
    await submit_form(admin_browser, here, f"{here}/sync")
    assert not await cases.commands.list_unhandled(by=piped)
    await reports.deployment(deployment, DeploymentStatus.CANCELLED)
    await submit_form(admin_browser, here, f"{here}/sync")
    assert len(await cases.commands.list_unhandled(by=piped)) == 1


async def test_who_may_not_see_deployments_can_sync_twice(
    *,
    open_browser: OpenBrowser,
    admin: User,
    application: Application,
    deployment: Deployment,
    cases: UseCases,
    piped: PipedCaller,
    submit_form: SubmitForm,
) -> None:
    policy = ProjectRBACPolicy(
        resources=[ProjectRBACResource(type=ProjectRBACResource.APPLICATION)],
        actions=[ProjectRBACPolicy.ALL],
    )
    await cases.roles.add("Deployer", [policy], by=admin)
    browser = open_browser(User("shop", "dora", ("Deployer",)))
    here = f"/applications/{application.id}"
    await submit_form(browser, here, f"{here}/sync")
    (first,) = await cases.commands.list_unhandled(by=piped)
    triggered = {"TriggeredDeploymentID": deployment.id}
    done = CommandResult(first.id, CommandStatus.SUCCEEDED, 1, triggered)
    await cases.commands.report_handled(done, by=piped)
    assert (await submit_form(browser, here, f"{here}/sync")).status_code == 303


async def test_a_later_sync_sends_another_command(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    submit_form: SubmitForm,
    advance: Callable[[float], None],
) -> None:
    here = f"/applications/{application.id}"
    await submit_form(admin_browser, here, f"{here}/sync")
    advance(4)
    await submit_form(admin_browser, here, f"{here}/sync")
    assert len(await cases.commands.list_unhandled(by=piped)) == 2


async def test_a_form_without_csrf_token_is_rejected(
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    action = f"/applications/{application.id}/sync"
    for fields in ({}, {"csrf": "0" * 64}):
        response = await admin_browser.post(action, data=fields)
        assert response.status_code == 403
        assert "does not belong to your session" in response.text
    assert await cases.commands.list_unhandled(by=piped) == ()


async def test_a_form_of_another_site_is_rejected(
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    submit_form: SubmitForm,
) -> None:
    admin_browser.headers["Sec-Fetch-Site"] = "cross-site"
    here = f"/applications/{application.id}"
    response = await submit_form(admin_browser, here, f"{here}/sync")
    assert response.status_code == 403
    assert "comes from another site" in response.text


async def test_a_viewer_sees_why_sync_is_disabled(
    open_browser: OpenBrowser,
    viewer: User,
    application: Application,
    submit_form: SubmitForm,
) -> None:
    client = open_browser(viewer)
    here = f"/applications/{application.id}"
    page = (await client.get(here)).text
    assert "Your role (Viewer) does not allow this" in page
    assert 'data-testid="sync-button"' in page
    assert f'action="{here}/sync"' not in page


async def test_a_viewer_who_sends_the_form_anyway_is_refused(
    open_browser: OpenBrowser,
    viewer: User,
    application: Application,
    cases: UseCases,
) -> None:
    client = open_browser(viewer)
    token = client.cookies["token"]
    action = f"/applications/{application.id}/sync"
    response = await client.post(action, data={"csrf": BrowserSession(viewer, token).csrf})
    assert response.status_code == 403


async def test_a_disabled_application_cannot_be_synced(
    admin_browser: httpx2.AsyncClient, application: Application, cases: UseCases, admin: User
) -> None:
    await cases.applications.disable(application.id, by=admin)
    page = (await admin_browser.get(f"/applications/{application.id}")).text
    assert "Sync is unavailable. The application is disabled; enable it first." in page


async def test_the_application_of_another_project_is_not_shown(
    open_browser: OpenBrowser, stranger: User, application: Application
) -> None:
    response = await open_browser(stranger).get(f"/applications/{application.id}")
    assert response.status_code == 403
    assert application.name not in response.text


async def test_a_link_for_another_project_says_so(admin_browser: httpx2.AsyncClient) -> None:
    page = (await admin_browser.get("/applications?project=other")).text
    assert 'data-testid="banner-project"' in page
    assert "banner-project" not in (await admin_browser.get("/applications?project=shop")).text


async def test_live_state_and_drift_errors_are_shown(
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    stores: Stores,
    application: Application,
    reports: PipedReports,
) -> None:
    await reports.online()
    page = (await admin_browser.get(f"/applications/{application.id}")).text
    assert "Live state</h2>" not in page

    def unknown(found: Application) -> None:
        found.sync_state.reason, found.sync_state.timestamp = "the cluster does not response", 1

    await stores.applications.update(application.id, unknown)
    snapshot = ApplicationLiveStateSnapshot(application_id=application.id)
    snapshot.version.timestamp = 1
    resource = snapshot.application_live_state.resources.add(id="1", name="web-<b>", created_at=1)
    resource.health_status, resource.health_description = ResourceState.UNHEALTHY, "it crashes"
    by = PipedCaller(application.project_id, application.piped_id)
    await cases.livestate.report(snapshot, by=by)
    page = (await admin_browser.get(f"/applications/{application.id}")).text
    assert "Live state</h2>" in page
    assert "web-&lt;b&gt;" in page
    assert "it crashes" in page
    assert "Unhealthy" in page
    assert "The live state cannot be compared with Git. The cluster does not response." in page


@pytest.mark.parametrize(
    ("reason", "has_card"),
    [
        pytest.param("commit a1 runs, and commit b2 differs in run.sh", False, id="one sentence"),
        pytest.param("replicas: 1 -> 2\nport: 80 -> 81", True, id="two findings"),
        pytest.param(DRIFT, True, id="a diff"),
    ],
)
async def test_differences_have_a_card_if_the_status_does_not_say_them(
    reason: str,
    *,
    has_card: bool,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    await reports.online()
    state = ApplicationSyncState(
        status=OUT_OF_SYNC, short_reason=reason.partition("\n")[0], reason=reason, timestamp=1
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    page = (await admin_browser.get(f"/applications/{application.id}")).text
    assert ("Differences with Git" in page) is has_card


async def test_a_list_of_equal_applications_can_be_filtered(
    admin_browser: httpx2.AsyncClient, application: Application
) -> None:
    page = (await admin_browser.get("/applications")).text
    for control in ("filter-q", "filter-label", "filter-piped", "filter-status"):
        assert f'data-testid="{control}"' in page
    assert application.name in page


@pytest.mark.parametrize(
    "query", ["labels[0]=x", "activeStatus=x", "waiting=approval", "since=24h", "applicationId=a"]
)
async def test_what_filters_nothing_offers_no_sync_of_all(
    query: str, admin_browser: httpx2.AsyncClient, application: Application
) -> None:
    page = (await admin_browser.get(f"/applications?{query}")).text
    assert f'id="app-{application.id}"' in page
    assert "chip-filter" not in page
    assert "on this page</button>" not in page


async def test_a_disabled_application_that_is_synced_anyway_says_why_not(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    cases: UseCases,
    admin: User,
    submit_form: SubmitForm,
) -> None:
    await cases.applications.disable(application.id, by=admin)
    here = f"/applications/{application.id}"
    response = await submit_form(admin_browser, f"{here}/settings", f"{here}/sync")
    assert (response.status_code, response.headers["location"]) == (303, here)
    page = (await admin_browser.get(here)).text
    assert "The sync was refused: application cart is disabled. Enable it before the sync." in page


async def test_no_link_makes_a_page_claim_a_deletion(
    admin_browser: httpx2.AsyncClient, application: Application
) -> None:
    page = (await admin_browser.get("/applications?deleted=cart&upgraded=3")).text
    assert "is deleted" not in page
    page = (await admin_browser.get("/settings/piped?upgraded=3")).text
    assert "is requested of" not in page


async def test_syncs_of_several_applications_have_a_page_of_results(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    draft: Application,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    submit_form: SubmitForm,
) -> None:
    draft.name, draft.git_path.path = "off", "apps/off"
    disabled = await cases.applications.add(draft, by=admin)
    await cases.applications.disable(disabled, by=admin)
    csrf = BrowserSession(admin, admin_browser.cookies["token"]).csrf
    fields = {"csrf": csrf, "id": [application.id, disabled]}
    response = await admin_browser.post("/applications/sync", data=fields)
    (command,) = await cases.commands.list_unhandled(by=piped)
    location = response.headers["location"]
    assert location == f"/applications/sync?cmd={command.id}&refused={disabled}%3Adisabled"
    page = (await admin_browser.get(location)).text
    assert "2 syncs: 1 in progress and 1 refused." in page
    assert "It is disabled; enable it first." in page
    failed = CommandResult(command.id, CommandStatus.FAILED, 1, {"Reason": "no such branch"})
    await cases.commands.report_handled(failed, by=piped)
    page = (await admin_browser.get(location)).text
    assert "2 syncs: 1 failed and 1 refused." in page
    assert "failed: no such branch." in page
    # A reload requests nothing again.
    assert await cases.commands.list_unhandled(by=piped) == ()
    # The reason stays when it is none any more, and one application is named.
    await cases.applications.enable(disabled, by=admin)
    page = (await admin_browser.get(f"/applications/sync?refused={disabled}:disabled")).text
    assert "Not requested. <bdi>It was disabled then; it is enabled now" in page
    assert "<h1><span>Sync <bdi>off</bdi></span></h1>" in page


async def test_the_results_of_syncs_follow_their_deployments(
    *,
    admin_browser: httpx2.AsyncClient,
    deployment: Deployment,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    reports: PipedReports,
) -> None:
    sync = await cases.applications.sync(deployment.application_id, by=admin)
    started = CommandResult(sync, CommandStatus.SUCCEEDED, 1, {TRIGGERED_KEY: deployment.id})
    await cases.commands.report_handled(started, by=piped)
    for status, summary, word in (
        (DeploymentStatus.RUNNING, "The sync is in progress.", "Running"),
        (DeploymentStatus.FAILURE, "The sync has failed.", "Failed"),
    ):
        await reports.deployment(deployment, status)
        page = (await admin_browser.get(f"/applications/sync?cmd={sync}")).text
        assert summary in page
        assert f"{word}</span>" in page
        assert (f"dep:{deployment.id}" in page) is (word == "Running")


async def test_a_sync_of_no_application_says_what_to_do(
    admin_browser: httpx2.AsyncClient, application: Application, submit_form: SubmitForm
) -> None:
    response = await submit_form(admin_browser, "/applications", "/applications/sync")
    assert response.headers["location"] == "/applications"
    assert "Select the applications to sync" in (await admin_browser.get("/applications")).text


async def test_results_of_another_project_are_not_shown(
    open_browser: OpenBrowser,
    stranger: User,
    application: Application,
    cases: UseCases,
    admin: User,
) -> None:
    sync = await cases.applications.sync(application.id, by=admin)
    address = f"/applications/sync?cmd={sync}&refused={application.id}"
    page = (await open_browser(stranger).get(address)).text
    assert "No syncs to show" in page
    assert application.name not in page
