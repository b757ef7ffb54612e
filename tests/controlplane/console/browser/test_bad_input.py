# SPDX-License-Identifier: Apache-2.0
"""Addresses that nobody meant: the page stays whole and says what happened.

Sessions, rights and streams that are lost meanwhile are in `test_words`, `test_live_updates` and
`test_commands`, terminal escapes in `test_log`, the longest names in `test_pages`.
"""

from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.deployments import APPROVAL_STAGE
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.filled_project import FilledProject
from servers.live_states import snapshot

pytestmark = pytest.mark.browser

UNKNOWN = "00000000-0000-4000-8000-000000000000"
LONG = "n" * 6000
LIST_PAGES = (
    "/overview",
    "/applications",
    "/applications/add",
    "/deployments",
    "/chains",
    "/deployment-traces",
    "/events",
    "/insights",
    "/search",
    "/settings/piped",
    "/settings/api-key",
    "/settings/project",
    "/plan-previews",
    "/settings/users",
)
OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def check_whole(page: Page) -> None:
    await expect(page.get_by_role("heading", level=1)).to_have_count(1)
    await expect(page.get_by_test_id("nav-applications")).to_be_attached()
    assert await page.evaluate(OVERFLOW) == 0, page.url[:100]


def object_pages(application: str, deployment: str, piped: str, filled: FilledProject) -> list[str]:
    return [
        f"/applications/{application}",
        f"/applications/{application}/live",
        f"/applications/{application}/settings",
        f"/applications/{application}/encrypt",
        f"/deployments/{deployment}",
        f"/deployments/{deployment}/stages/s1/log.txt",
        f"/chains/{filled.chain}",
        f"/events/{filled.event}",
        f"/settings/piped/{piped}",
    ]


@pytest.mark.parametrize("id", [UNKNOWN, "%3Cscript%3Ealert(1)%3C%2Fscript%3E", "%00", LONG])
async def test_an_unknown_id_says_so_and_leads_back(
    id: str, open_page: OpenPage, console_url: str
) -> None:
    page = await open_page("/overview", viewport={"width": 390, "height": 800})
    for path in object_pages(id, id, id, FilledProject("", id, id, "")):
        await page.goto(console_url + path)
        await expect(page.get_by_test_id("error-404")).to_contain_text("project shop")
        await check_whole(page)
        await page.locator("main .btn.primary").click()
        await expect(page.get_by_test_id("error-404")).to_have_count(0)
        await check_whole(page)


async def test_what_belongs_to_another_project_is_not_found(
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    filled: FilledProject,
    stranger: User,
) -> None:
    page = await open_page("/overview", user=stranger)
    for path in object_pages(running.application_id, running.id, running.piped_id, filled):
        await page.goto(console_url + path)
        text = await page.locator("main").inner_text()
        assert "declared" in text, path
        for secret in ("cart", "K8S_CANARY_ROLLOUT", "line 1", "image-pushed"):
            assert secret not in text, path
        await check_whole(page)
    # A link with the name of its project offers to switch.
    await page.goto(f"{console_url}/deployments/{running.id}?project=shop")
    await expect(page.get_by_test_id("banner-project")).to_contain_text("Switch to shop")


@pytest.mark.parametrize("scripts", [True, False])
async def test_nonsense_in_an_address_leaves_the_page_whole(
    *,
    scripts: bool,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    filled: FilledProject,
) -> None:
    size = {"width": 768, "height": 800}
    page = await open_page("/overview", viewport=size, java_script_enabled=scripts)
    nonsense = (
        "syncStatus=x,99,-1&status=99,<b>&kind=1e9&page=-7&size=1000000&sort=<script>&dir=up"
        "&labels[0]=:&labels[x]=a:b&labels[1]=%E2%80%AE:&before=%00&q=%27%22%3C&health=!&view=3d"
        "&range=forever&res=hourly&at=-1&since=x&res=/&target=%FF&stage=s9&find=(&only=all&from=1e9"
        "&cmd=../../x&added=2&version=../&diff=sideways&project=&tab=x"
    )
    for path in (
        *LIST_PAGES,
        f"/applications/{running.application_id}",
        f"/applications/{running.application_id}/live",
        f"/deployments/{running.id}",
    ):
        for query in (nonsense, f"q={LONG}"):
            response = await page.goto(f"{console_url}{path}?{query}")
            assert response is not None
            # A cursor that the server has not written is refused in words.
            assert response.status in (200, 422), path
            assert await page.locator("h1").count() == 1, path


SCRIPT = "<script>window.hacked=1</script>"
IMAGE = "<img src=x onerror=window.hacked=1>"
LINK = "javascript:window.hacked=1"
MARKDOWN = f"{SCRIPT} {IMAGE} [link]({LINK}) <{LINK}> ![]({LINK}) [a]: {LINK}"
# What a page must not have become: elements and addresses that values brought.
ACTIVE = r"""() => [
    ...[...document.querySelectorAll("[href], [src], [action], [formaction]")].filter((e) =>
        ["href", "src", "action", "formaction"].some((a) => /^\s*(javascript|data|vbscript):/i.test(e.getAttribute(a) ?? ""))),
    ...document.querySelectorAll("script:not([src]):not([type='application/json']), img, iframe, object, embed"),
    ...[...document.querySelectorAll("*")].filter((e) => [...e.attributes].some((a) => a.name.startsWith("on"))),
].map((e) => e.outerHTML.slice(0, 200)).concat(window.hacked ? ["a script ran"] : [])"""


@pytest.fixture
async def scripts_as_values(
    stores: Stores, cases: UseCases, running: Deployment, reports: PipedReports, piped: PipedCaller
) -> None:
    """Gives whatever is shown a value that would be a script if a page did not escape it."""

    def change(stored: Application) -> None:
        stored.name, stored.git_path.path, stored.git_path.url = SCRIPT, IMAGE, LINK
        stored.git_path.repo.id, stored.git_path.repo.remote = SCRIPT, LINK
        stored.labels["team"] = IMAGE
        stored.description = MARKDOWN
        stored.sync_state.status = ApplicationSyncStatus.OUT_OF_SYNC
        stored.sync_state.timestamp = 1
        stored.sync_state.reason = stored.sync_state.short_reason = SCRIPT

    def change_deployment(stored: Deployment) -> None:
        stored.application_name = SCRIPT
        stored.summary = stored.trigger.strategy_summary = stored.trigger.commander = IMAGE
        commit = stored.trigger.commit
        commit.message, commit.author, commit.branch, commit.url = SCRIPT, IMAGE, SCRIPT, LINK
        commit.hash, stored.running_commit_hash = SCRIPT, IMAGE
        stored.labels["team"] = IMAGE
        stored.versions.add(name=SCRIPT, version=IMAGE, url=LINK)
        stored.deployment_trace_commit_hash = SCRIPT
        for stage in stored.stages:
            stage.name, stage.desc, stage.status_reason = SCRIPT, IMAGE, SCRIPT
            stage.metadata["ApprovedBy"] = stage.metadata["DisplayText"] = IMAGE
        stored.stages[1].name = APPROVAL_STAGE
        stored.stages[1].authorized_operators.append(SCRIPT)

    def change_piped(stored: Piped) -> None:
        stored.name, stored.desc = SCRIPT, IMAGE
        stored.version = stored.desired_version = SCRIPT
        stored.repositories.add(id=SCRIPT, remote=LINK, branch=IMAGE)

    drift = f'--- a\n+++ b\n\n# 1. name="{SCRIPT}", kind="{IMAGE}"\n\n- {SCRIPT}\n+ {IMAGE}\n'
    await reports.lines(running, "s1", SCRIPT, IMAGE, LINK, f"see {LINK} https://x/{SCRIPT}")
    await reports.stage(running, "s2", StageStatus.RUNNING)
    application = await stores.applications.get(running.application_id)
    resource = ResourceState(
        id="r",
        name=SCRIPT,
        resource_type=IMAGE,
        health_description=SCRIPT,
        created_at=1,
        updated_at=1,
    )
    resource.resource_metadata[SCRIPT] = LINK
    await cases.livestate.report(snapshot(application, resource), by=piped)
    await stores.applications.update(running.application_id, change)
    await stores.applications.update(
        running.application_id, lambda stored: setattr(stored.sync_state, "reason", drift)
    )
    await stores.deployments.update(running.id, change_deployment)
    await stores.pipeds.update(running.piped_id, change_piped)


@pytest.mark.parametrize("width", [1440, 390])
async def test_values_never_become_scripts_or_links_to_them(
    *,
    width: int,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    filled: FilledProject,
    scripts_as_values: None,
    cases: UseCases,
    program: ApiKeyCaller,
    admin: User,
) -> None:
    event = RegisterEventRequest(
        name=SCRIPT,
        data=IMAGE,
        labels={"app": SCRIPT},
        contexts={"Link": LINK},
        commit_hash="c0ffee" * 6,
        commit_url=LINK,
        commit_title=SCRIPT,
        commit_message=IMAGE,
        commit_author=SCRIPT,
    )
    event_id = await cases.events.register(event, by=program)
    await cases.sessions.begin(User(admin.project, SCRIPT, (IMAGE,), avatar_url=LINK))
    page = await open_page("/overview", viewport={"width": width, "height": 800})
    application, deployment = running.application_id, running.id
    wrong: list[str] = []
    seen = 0
    for path in (
        *object_pages(application, deployment, running.piped_id, filled),
        f"/events/{event_id}",
        f"/applications/{application}/live?view=graph",
        f"/applications/{application}/live?res=r",
        f"/deployments/{deployment}?stage=s1&find=script",
        f"/deployments/{deployment}?tab=changes",
        f"/deployments/{deployment}?tab=timeline",
        f"/plan-previews/{filled.preview}",
        *(f"{list_page}?q={quote(SCRIPT)}" for list_page in LIST_PAGES),
        *LIST_PAGES,
    ):
        response = await page.goto(console_url + path)
        assert response is not None
        if "html" not in response.headers["content-type"]:
            # A log as a file is never a page.
            assert response.headers["content-type"].startswith("text/plain"), path
            assert response.headers["x-content-type-options"] == "nosniff", path
            continue
        await expect(page.locator("h1")).to_have_count(1)
        # Numbers of the errors that the pages of unknown objects have.
        assert response.status == 200, path
        seen += "window.hacked" in await page.locator("body").inner_text()
        wrong += [f"{path}: {found}" for found in await page.evaluate(ACTIVE)]
        if await page.evaluate(OVERFLOW):
            wrong.append(f"{path}: too wide")
    assert not wrong, "\n".join(wrong)
    # The values were on the pages, as text.
    assert seen >= 12


async def test_a_name_that_pretends_to_be_another_shows_its_marks(
    *, open_page: OpenPage, stores: Stores, running: Deployment, reports: PipedReports
) -> None:
    def change(stored: Deployment) -> None:
        stored.application_name = "in\u200bvoice\u202egpj.exe\u2066"
        stored.trigger.commit.author = "\u202eairam"
        stored.stages[1].name = APPROVAL_STAGE
        stored.stages[1].authorized_operators.extend(["maria", "\u202eairam", "ma\u200bria"])

    await stores.deployments.update(running.id, change)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page(f"/deployments/{running.id}")
    await expect(page.locator("h1")).to_contain_text("in\ufffdvoice\ufffdgpj.exe\ufffd")
    approval = page.get_by_test_id("approval-card")
    await expect(approval).to_contain_text("maria, \ufffdairam or ma\ufffdria")
    # Also in a sentence, in a result of the search, and in a log.
    await page.goto(page.url.replace(f"/deployments/{running.id}", "/overview"))
    await expect(page.locator("main")).to_contain_text("in\ufffdvoice\ufffdgpj.exe\ufffd")
    await page.goto(page.url.replace("/overview", "/search?q=gpj"))
    await expect(page.locator("#results")).to_contain_text("gpj.exe\ufffd")
    await reports.lines(running, "s1", "left \u202ethgir", "z" + "\u0301" * 300)
    await page.goto(page.url.replace("/search?q=gpj", f"/deployments/{running.id}?stage=s1"))
    await expect(page.locator(".lines")).to_contain_text("left \ufffdthgir")
    await expect(page.locator(".lines")).to_contain_text("z" + "\u0301" * 4)
    assert "\u0301" * 5 not in await page.locator(".lines").inner_text()


@pytest.mark.parametrize("width", [1440, 390])
async def test_a_long_text_does_not_push_the_rest_of_a_page_away(
    *,
    width: int,
    open_page: OpenPage,
    console_url: str,
    stores: Stores,
    running: Deployment,
) -> None:
    def change(stored: Application) -> None:
        stored.description = "# Runbook\n\n" + "call the one who is on duty " * 400

    def change_deployment(stored: Deployment) -> None:
        stored.trigger.commit.message = "m" * 10_000
        for stage in stored.stages:
            stage.desc = "d" * 10_000

    await stores.applications.update(running.application_id, change)
    await stores.deployments.update(running.id, change_deployment)
    page = await open_page(
        f"/applications/{running.application_id}", viewport={"width": width, "height": 800}
    )
    # All of it is there to be scrolled, with the keyboard too.
    description = page.get_by_test_id("description")
    await description.focus()
    await page.keyboard.press("End")
    await expect(description).not_to_have_js_property("scrollTop", 0)
    for path, shown in (
        (f"/applications/{running.application_id}", "#description"),
        (f"/deployments/{running.id}?tab=timeline", "#timeline"),
        (f"/deployments/{running.id}?tab=changes", "#changes"),
    ):
        await page.goto(console_url + path)
        box = await page.locator(shown).bounding_box()
        assert box, path
        assert box["height"] < 2000, path
        assert await page.evaluate(OVERFLOW) == 0, path
