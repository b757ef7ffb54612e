# SPDX-License-Identifier: Apache-2.0
"""The pages of pipeds and their forms."""

import base64
import re
from collections.abc import Callable

import httpx2
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_piped
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.console.page_context import BrowserSession
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.observe.version import build_version
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, Application
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from pipecd.secrets import keys
from servers.console import OpenBrowser, PipedReports, SubmitForm, SubmitPageForm

PAGE = "/settings/piped"


def by_testid(html: str, testid: str) -> list[str]:
    return re.findall(rf'data-testid="{testid}">([^<]*)<', html)


@pytest.fixture
def one(piped: PipedCaller) -> str:
    """The page of the piped."""
    return f"{PAGE}/{piped.piped}"


@pytest.fixture
def submit(admin_browser: httpx2.AsyncClient, submit_form: SubmitForm, one: str) -> SubmitPageForm:
    """Sends a form of the page of the piped."""

    async def submit_to_page(form: str, **fields: str) -> httpx2.Response:
        return await submit_form(admin_browser, one, f"{one}/{form}", **fields)

    return submit_to_page


async def text(client: httpx2.AsyncClient, page: str) -> str:
    response = await client.get(page)
    assert response.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.text))


async def test_the_list_shows_which_pipeds_are_online(
    *,
    admin_browser: httpx2.AsyncClient,
    piped: PipedCaller,
    other_piped: PipedCaller,
    reports: PipedReports,
    advance: Callable[[float], None],
) -> None:
    del piped, other_piped
    await reports.online()
    shown = await text(admin_browser, PAGE)
    assert "2 pipeds: 1 online and 1 not started yet ." in shown
    assert re.search(r"Online dev the dev cluster v0\.50\.0 0 site just now now", shown)
    assert re.search(r"Not started yet prod the prod cluster How to start it 0 never never", shown)
    advance(300)
    assert "Offline dev the dev cluster v0.50.0 0 site 5 min ago 5 min ago" in await text(
        admin_browser, PAGE
    )


async def test_an_empty_list_says_what_to_do(
    admin_browser: httpx2.AsyncClient,
) -> None:
    assert "No pipeds yet" in await text(admin_browser, PAGE)


async def test_the_page_shows_what_a_piped_reported(
    *,
    admin_browser: httpx2.AsyncClient,
    one: str,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    del application
    meta.config = "kind: Piped\nspec:\n  name: <dev>\n"
    await cases.pipeds.report_meta(meta, by=piped)
    shown = await text(admin_browser, one)
    for text_part in (
        "site git@github.com:shop/site.git main",
        "1 application ",
        "The launcher chooses the version.",
        "kind: Piped spec: name: &lt;dev&gt;",
    ):
        assert text_part in shown
    assert "redacted" not in shown
    # On a phone the headings of the columns are not shown.
    page = (await admin_browser.get(one)).text
    assert {"Remote", "Branch", "Created by", "Created"} <= set(
        re.findall('data-label="(.*?)"', page)
    )


async def test_the_page_shows_what_a_piped_runs_without_until_it_starts_again(
    admin_browser: httpx2.AsyncClient,
    one: str,
    cases: UseCases,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    await cases.pipeds.report_stat(b"", by=piped)
    failure = PluginFailure(plugin="greeter", reason="it ended: <exit code 3>", since=1)
    await cases.pipeds.report_plugin_failures([failure], by=piped)
    assert "1 not usable" in await text(admin_browser, PAGE)
    shown = await text(admin_browser, one)
    assert "Not usable" in shown
    assert "greeter it ended: &lt;exit code 3&gt;" in shown
    await cases.pipeds.report_meta(meta, by=piped)
    assert "Not usable" not in await text(admin_browser, one)
    assert "not usable" not in await text(admin_browser, PAGE)


async def test_a_restart_is_requested_once_and_followed_to_its_end(
    *,
    submit: SubmitPageForm,
    admin_browser: httpx2.AsyncClient,
    one: str,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    meta: ReportPipedMetaRequest,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    response = await submit("restart")
    assert response.status_code == 303
    # A double click asks once.
    assert (await submit("restart")).headers["location"] == response.headers["location"]
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.RESTART_PIPED
    followed = response.headers["location"]
    assert followed == f"{one}?cmd={command.id}"
    assert "The restart is requested; piped dev picks it up" in await text(admin_browser, followed)
    page = (await admin_browser.get(PAGE)).text
    assert "Restarting" in page
    assert f'data-topics="pipeds,cmd:{command.id}"' in page
    advance(5)
    await cases.commands.report_handled(
        CommandResult(command.id, CommandStatus.SUCCEEDED, 1), by=piped
    )
    assert "has stopped as requested and is starting again" in await text(admin_browser, followed)
    advance(5)
    await cases.pipeds.report_meta(meta, by=piped)
    assert "Piped dev has restarted and runs v0.50.0." in await text(admin_browser, followed)


async def test_commands_of_other_pipeds_show_no_notice(
    *,
    admin_browser: httpx2.AsyncClient,
    one: str,
    cases: UseCases,
    other_piped: PipedCaller,
    admin: User,
) -> None:
    command = await cases.pipeds.restart(other_piped.piped, by=admin)
    for id in (command, "unknown"):
        response = await admin_browser.get(f"{one}?cmd={id}")
        assert response.status_code == 200
        assert 'data-testid="notice"' not in response.text


async def test_a_version_is_requested_and_cleared(
    *,
    submit: SubmitPageForm,
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    piped: PipedCaller,
    one: str,
) -> None:
    assert (await submit("version", version=" v0.51.0 ")).headers["location"] == one
    assert await cases.pipeds.desired_version(by=piped) == "v0.51.0"
    assert "v0.51.0 is requested" in await text(admin_browser, PAGE)
    refused = await submit("version", version="0.52")
    assert refused.status_code == 422
    assert "&#39;0.52&#39; is not a version; write it like v0.1.0." in refused.text
    assert 'value="0.52"' in refused.text
    # A page with a form error must not update itself.
    assert 'data-topics=""' in refused.text
    assert await cases.pipeds.desired_version(by=piped) == "v0.51.0"
    await submit("version", version="")
    assert await cases.pipeds.desired_version(by=piped) == ""


async def test_a_piped_is_disabled_and_enabled(
    submit: SubmitPageForm,
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    one: str,
) -> None:
    assert (await submit("disable")).status_code == 303
    (piped,) = await cases.pipeds.list(by=admin)
    assert piped.disabled
    assert "its reports are rejected" in await text(admin_browser, one)
    await submit("enable")
    (piped,) = await cases.pipeds.list(by=admin)
    assert not piped.disabled


async def test_a_piped_is_renamed(
    submit: SubmitPageForm, cases: UseCases, admin: User, registered: RegisteredPiped
) -> None:
    await submit("edit", name="staging", description="")
    piped = await cases.pipeds.get(registered.id, by=admin)
    assert (piped.name, piped.desc) == ("staging", "")
    refused = await submit("edit", name=" ", description="kept")
    assert (refused.status_code, "Fill in the name." in refused.text) == (422, True)
    assert 'value="kept"' in refused.text


async def test_a_new_piped_gets_a_key_that_is_shown_once(
    *,
    admin_browser: httpx2.AsyncClient,
    submit_form: SubmitForm,
    cases: UseCases,
    admin: User,
    stores: Stores,
    capfd: pytest.CaptureFixture[str],
) -> None:
    form = {"name": "prod", "description": "the prod cluster"}
    response = await submit_form(admin_browser, PAGE, PAGE, **form)
    assert response.status_code == 200
    assert response.headers["cache-control"] == "no-store"
    again = await submit_form(admin_browser, PAGE, PAGE, **form)
    (piped,) = await cases.pipeds.list(by=admin)
    (key,) = by_testid(response.text, "piped-key")
    assert by_testid(again.text, "piped-key") == [key]
    (stored,) = (await stores.pipeds.get(piped.id)).keys
    assert keys.key_matches(key, stored.hash)
    assert by_testid(response.text, "piped-id") == [piped.id]
    encoded = base64.b64encode(key.encode()).decode()
    # A page that updates itself would lose the key.
    assert "data-topics" not in response.text
    for page in (PAGE, f"{PAGE}/{piped.id}"):
        shown = (await admin_browser.get(page)).text
        assert key not in shown
        assert encoded not in shown
    said = capfd.readouterr()
    assert key not in said.out + said.err


async def test_the_sample_for_a_new_piped_is_a_configuration(
    admin_browser: httpx2.AsyncClient, submit_form: SubmitForm
) -> None:
    response = await submit_form(admin_browser, PAGE, PAGE, name="prod")
    sample = response.text.partition('data-testid="snippet">')[2].partition("</div>")[0]
    config = "\n".join(re.findall(r"<span>([^<]*)</span>", sample))
    spec = read_piped(config, file="piped.yaml", catalog=load_catalog()).spec
    assert (spec.project_id, spec.api_address) == ("shop", "pipecd.example:443")
    (key,) = by_testid(response.text, "piped-key")
    assert base64.b64decode(str(spec.piped_key_data)).decode() == key


async def test_a_piped_without_a_name_is_not_added(
    admin_browser: httpx2.AsyncClient, submit_form: SubmitForm, cases: UseCases, admin: User
) -> None:
    response = await submit_form(admin_browser, PAGE, PAGE, name=" ", description="kept")
    assert response.status_code == 422
    assert "Fill in the name." in response.text
    assert 'value="kept"' in response.text
    assert await cases.pipeds.list(by=admin) == ()


async def test_a_key_is_replaced(
    *,
    submit: SubmitPageForm,
    admin_browser: httpx2.AsyncClient,
    one: str,
    stores: Stores,
    registered: RegisteredPiped,
    advance: Callable[[float], None],
) -> None:
    advance(60)
    response = await submit("keys")
    (key,) = by_testid(response.text, "piped-key")
    # A double click gets the same key.
    assert by_testid((await submit("keys")).text, "piped-key") == [key]
    shown = await text(admin_browser, one)
    assert "new key" in shown
    assert "old key" in shown
    advance(60)
    refused = await submit("keys")
    assert refused.status_code == 422
    assert "has 2 keys already" in refused.text
    await submit("keys/drop")
    (stored,) = (await stores.pipeds.get(registered.id)).keys
    assert keys.key_matches(key, stored.hash)
    assert not keys.key_matches(registered.key, stored.hash)


async def test_a_viewer_sees_no_forms(
    open_browser: OpenBrowser, viewer: User, one: str, reports: PipedReports
) -> None:
    await reports.online()
    client = open_browser(viewer)
    for page in (PAGE, one):
        shown = (await client.get(page)).text
        assert "Your role (Viewer) does not allow this" in shown
        assert 'action="/settings' not in shown


async def test_forms_of_a_viewer_are_rejected(
    open_browser: OpenBrowser, cases: UseCases, viewer: User, one: str, piped: PipedCaller
) -> None:
    token = cases.sessions.issue(viewer)
    client = open_browser(viewer)
    client.cookies.set("token", token)
    csrf = BrowserSession(viewer, token).csrf
    for form in ("restart", "version", "enable", "disable", "edit", "keys", "keys/drop"):
        fields = {"csrf": csrf, "name": "x", "version": "v1"}
        refused = await client.post(f"{one}/{form}", data=fields)
        assert refused.status_code == 403, form
        assert "Back to the piped" in refused.text
    assert (await client.post(PAGE, data={"csrf": csrf, "name": "x"})).status_code == 403
    assert await cases.commands.list_unhandled(by=piped) == ()


async def test_pipeds_of_another_project_are_hidden(
    open_browser: OpenBrowser, stranger: User, one: str
) -> None:
    client = open_browser(stranger)
    assert (await client.get(one)).status_code == 403
    assert "the dev cluster" not in await text(client, PAGE)


async def test_the_list_needs_permission(open_browser: OpenBrowser, admin: User) -> None:
    del admin
    response = await open_browser(User("shop", "nobody", ())).get(PAGE)
    assert response.status_code == 403
    assert "Your roles do not allow this.</bdi> <bdi>Ask an administrator" in response.text
    assert "You are signed in as nobody to project shop, with no role." in response.text


async def test_an_unknown_piped_is_not_found(admin_browser: httpx2.AsyncClient) -> None:
    response = await admin_browser.get(f"{PAGE}/unknown")
    assert response.status_code == 404
    assert "Piped is not found" in response.text


async def test_an_application_links_to_its_piped(
    *,
    open_browser: OpenBrowser,
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    application: Application,
    one: str,
) -> None:
    page = f"/applications/{application.id}"
    assert f'<a href="{one}">dev</a>' in (await admin_browser.get(page)).text
    # Without permission for pipeds there is no link.
    policies = parse_policies("resources=application;actions=*")
    await cases.roles.add("developers", policies, by=admin)
    shown = (await open_browser(User("shop", "dave", ("developers",))).get(page)).text
    assert "Not shown" in shown
    assert one not in shown


async def test_one_version_is_requested_of_several_pipeds(
    *,
    admin_browser: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    other_piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    page, offered = "/settings/piped", 'type="checkbox" name="piped" value="'
    await cases.pipeds.report_meta(meta, by=piped)
    await cases.pipeds.report_meta(meta, by=other_piped)
    unstarted = await cases.pipeds.register("unstarted", "", by=admin)
    html = (await admin_browser.get(page)).text
    assert html.count(offered) == 2
    assert f"{offered}{unstarted.id}" not in html
    secret = html.partition('name="csrf" value="')[2].partition('"')[0]
    answer = await admin_browser.post(
        f"{page}/upgrade",
        data={"csrf": secret, "version": "v0.2.0", "piped": [piped.piped, other_piped.piped]},
    )
    assert answer.headers["location"] == "/settings/piped"
    versions = {each.id: each.desired_version for each in await cases.pipeds.list(by=admin)}
    assert versions == {piped.piped: "v0.2.0", other_piped.piped: "v0.2.0", unstarted.id: ""}
    shown = (await admin_browser.get(answer.headers["location"])).text
    assert "v0.2.0 is requested of 2 pipeds; the list shows which run it." in shown


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"version": "v1"}, id="no piped is selected"),
        pytest.param({"version": "v1", "piped": "unknown"}, id="an unknown piped"),
        pytest.param({"version": "latest", "piped": "own"}, id="no version"),
    ],
)
async def test_an_upgrade_that_cannot_be_requested_changes_nothing(
    *,
    fields: dict[str, str],
    admin_browser: httpx2.AsyncClient,
    submit_form: SubmitForm,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
) -> None:
    fields = {key: piped.piped if value == "own" else value for key, value in fields.items()}
    answer = await submit_form(
        admin_browser, "/settings/piped", "/settings/piped/upgrade", **fields
    )
    assert answer.status_code == 422
    assert [each.desired_version for each in await cases.pipeds.list(by=admin)] == [""]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("", ["dev", "prod"], id="all"),
        pytest.param("status=offline", ["prod"], id="offline"),
        pytest.param("status=online", ["dev"], id="online"),
        pytest.param("status=disabled", [], id="disabled"),
        pytest.param("status=x", ["dev", "prod"], id="no such status"),
        pytest.param("version=v0.50.0", ["dev"], id="a version"),
        pytest.param("version=older", ["dev"], id="not the newest version"),
        pytest.param("q=PROD", ["prod"], id="a part of the name"),
    ],
)
async def test_pipeds_can_be_filtered(
    *,
    query: str,
    names: list[str],
    admin_browser: httpx2.AsyncClient,
    other_piped: PipedCaller,
    reports: PipedReports,
    cases: UseCases,
    meta: ReportPipedMetaRequest,
) -> None:
    await reports.online()
    newer = ReportPipedMetaRequest()
    newer.CopyFrom(meta)
    newer.version = "v0.51.0"
    await cases.pipeds.report_meta(newer, by=other_piped)
    html = (await admin_browser.get(f"{PAGE}?{query}")).text
    assert re.findall(r'class="row-link clip"[^>]*>([^<]+)</a>', html) == names
    # The numbers are those of the whole project.
    assert ">1 offline</a>" in html
    assert 'data-testid="banner-outdated"' in html
    # Those that the banner leads to are ticked for the upgrade.
    ticked = re.findall(r'name="piped" value="[^"]*" checked> <bdi>([^<]+)<', html)
    assert ticked == (names if query == "version=older" else [])


async def test_the_page_of_a_piped_counts_the_same_applications_as_the_list(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    piped: PipedCaller,
    reports: PipedReports,
    cases: UseCases,
    admin: User,
) -> None:
    await reports.online()
    await cases.applications.disable(application.id, by=admin)
    link = f'href="/applications?pipedId={piped.piped}"'
    listed = (await admin_browser.get(PAGE)).text
    shown = (await admin_browser.get(f"{PAGE}/{piped.piped}")).text
    assert re.findall(f"{re.escape(link)}[^>]*>([^<]+)<", listed) == ["1"]
    assert re.findall(f"{re.escape(link)}[^>]*>([^<]+)<", shown) == ["1"]
    assert "<small>1 disabled</small>" in shown


async def test_the_page_of_a_piped_names_the_newer_version_of_the_control_plane(
    *,
    admin_browser: httpx2.AsyncClient,
    piped: PipedCaller,
    cases: UseCases,
    meta: ReportPipedMetaRequest,
) -> None:
    meta.version = "v0.0.1"
    await cases.pipeds.report_meta(meta, by=piped)
    # One of upstream, whose releases have other numbers.
    assert "is newer" not in (await admin_browser.get(f"{PAGE}/{piped.piped}")).text
    request = AcquirePipedLeaseRequest(host="worker-1")
    request.ticket = (await cases.piped_leases.acquire(request, by=piped))[0].ticket
    assert (await cases.piped_leases.acquire(request, by=piped))[0].granted
    shown = (await admin_browser.get(f"{PAGE}/{piped.piped}")).text
    assert f"{build_version()} is newer" in shown


async def test_the_overview_counts_the_offline_pipeds_of_the_list(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    piped: PipedCaller,
    other_piped: PipedCaller,
    reports: PipedReports,
    cases: UseCases,
    admin: User,
    advance: Callable[[float], None],
) -> None:
    del application, other_piped

    async def tile() -> str:
        overview = (await admin_browser.get("/overview")).text
        return overview.partition('id="tile-offline"')[2].partition("</section>")[0]

    await reports.online()
    # The other one was never started, which is no failure.
    assert by_testid(await tile(), "tile-count") == ["0"]
    assert "1 piped is not started yet" in await tile()
    advance(300)
    assert 'href="/settings/piped?status=offline"' in await tile()
    assert by_testid(await tile(), "tile-count") == ["1"]
    listed = (await admin_browser.get(f"{PAGE}?status=offline")).text
    assert listed.count('data-testid="piped-row"') == 1
    await cases.pipeds.disable(piped.piped, by=admin)
    assert by_testid(await tile(), "tile-count") == ["0"]


async def test_a_piped_that_was_never_started_says_how_to_start_it(
    admin_browser: httpx2.AsyncClient, submit_form: SubmitForm, cases: UseCases, admin: User
) -> None:
    await submit_form(admin_browser, PAGE, PAGE, name="prod")
    (piped,) = await cases.pipeds.list(by=admin)
    one = f"{PAGE}/{piped.id}"
    assert "Start piped prod" in await text(admin_browser, "/overview")
    html = (await admin_browser.get(one)).text
    assert "Not started yet prod" in await text(admin_browser, one)
    assert by_testid(html, "start-command") == ["piped run --config-file piped.yaml"]
    assert f"pipedID: {piped.id}" in html
    # A page that is about its start offers no restart.
    assert 'data-testid="restart"' not in html
    # A lost key is replaced by one that comes with the same steps.
    response = await submit_form(admin_browser, one, f"{one}/keys")
    (key,) = by_testid(response.text, "piped-key")
    assert f"pipedKeyData: {base64.b64encode(key.encode()).decode()}" in response.text
    assert by_testid(response.text, "start-command")


async def test_lists_warn_of_a_piped_that_went_offline(
    *,
    admin_browser: httpx2.AsyncClient,
    application: Application,
    other_piped: PipedCaller,
    reports: PipedReports,
    stores: Stores,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    # The other one was never started, which is no news.
    for page in ("/applications", "/deployments"):
        assert "banner-offline" not in (await admin_browser.get(page)).text
    advance(300)
    for page in ("/applications", "/deployments"):
        assert "Piped dev is offline: its applications are not" in await text(admin_browser, page)
    html = (await admin_browser.get("/applications")).text
    assert f'href="/applications?pipedId={application.piped_id}"' in html
    assert by_testid(html, "app-piped-offline") == ["Piped offline"]

    def drift(stored: Application) -> None:
        stored.sync_state.status, stored.sync_state.timestamp = OUT_OF_SYNC, 1

    await stores.applications.update(application.id, drift)
    html = (await admin_browser.get("/applications/drift")).text
    assert by_testid(html, "drift-piped-offline") == ["Piped offline"]


async def test_the_list_counts_the_applications_of_each_piped(
    admin_browser: httpx2.AsyncClient, application: Application, other_piped: PipedCaller
) -> None:
    html = (await admin_browser.get(PAGE)).text
    cells = re.findall(r'data-testid="piped-applications">(.*?)</td>', html)
    assert [re.sub("<[^>]+>", "", cell) for cell in cells] == ["1", "0"]
    assert f'href="/applications?pipedId={application.piped_id}"' in html
