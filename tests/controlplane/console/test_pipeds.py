# SPDX-License-Identifier: Apache-2.0
"""People look at the pipeds of their project and steer them."""

import base64
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httpx2
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_piped
from pipecd.controlplane.auth.rbac_policy import parse_policies
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.console.page_context import Visitor
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import Handled
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.secrets import keys

PAGE = "/settings/piped"
Send = Callable[..., Awaitable[httpx2.Response]]
Someone = Callable[..., httpx2.AsyncClient]


def by_testid(html: str, testid: str) -> list[str]:
    return re.findall(rf'data-testid="{testid}">([^<]*)<', html)


@pytest.fixture
def one(piped: PipedCaller) -> str:
    """The page of the piped."""
    return f"{PAGE}/{piped.piped}"


@pytest.fixture
def fill(browser_of_admin: httpx2.AsyncClient, send: Send, one: str) -> Send:
    """Sends a form of the page of the piped."""

    async def filled(form: str, **fields: str) -> httpx2.Response:
        return await send(browser_of_admin, one, f"{one}/{form}", **fields)

    return filled


async def text(client: httpx2.AsyncClient, page: str) -> str:
    answer = await client.get(page)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text))


async def test_the_list_tells_who_is_there_and_who_is_not(
    *,
    browser_of_admin: httpx2.AsyncClient,
    piped: PipedCaller,
    other_piped: PipedCaller,
    reports: Any,
    advance: Callable[[float], None],
) -> None:
    del piped, other_piped
    await reports.online()
    shown = await text(browser_of_admin, PAGE)
    assert "2 pipeds: 1 online and 1 offline." in shown
    assert re.search(r"Online dev the dev cluster v0\.50\.0 site just now now", shown)
    assert re.search(r"Offline prod the prod cluster never never", shown)
    advance(300)
    assert "Offline dev the dev cluster v0.50.0 site 5 min ago 5 min ago" in await text(
        browser_of_admin, PAGE
    )


async def test_a_project_without_a_piped_is_told_to_add_one(
    browser_of_admin: httpx2.AsyncClient,
) -> None:
    assert "No pipeds yet" in await text(browser_of_admin, PAGE)


async def test_a_page_tells_everything_about_a_piped(
    *,
    browser_of_admin: httpx2.AsyncClient,
    one: str,
    application: Application,
    cases: UseCases,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    del application
    meta.config = "kind: Piped\nspec:\n  name: <dev>\n"
    await cases.pipeds.meta_reported(meta, by=piped)
    shown = await text(browser_of_admin, one)
    for told in (
        "site git@github.com:shop/site.git main",
        "1 application ",
        "The launcher of the piped chooses.",
        "kind: Piped spec: name: &lt;dev&gt;",
    ):
        assert told in shown
    assert "redacted" not in shown


async def test_a_restart_is_asked_once_and_followed_to_its_end(
    *,
    fill: Send,
    browser_of_admin: httpx2.AsyncClient,
    one: str,
    cases: UseCases,
    piped: PipedCaller,
    reports: Any,
    meta: ReportPipedMetaRequest,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    answer = await fill("restart")
    assert answer.status_code == 303
    # A double click asks once.
    assert (await fill("restart")).headers["location"] == answer.headers["location"]
    (command,) = await cases.commands.unhandled_of(by=piped)
    assert command.type == CommandKind.RESTART_PIPED
    followed = answer.headers["location"]
    assert followed == f"{one}?cmd={command.id}"
    assert "The restart is requested; piped dev picks it up" in await text(
        browser_of_admin, followed
    )
    page = (await browser_of_admin.get(PAGE)).text
    assert "Restarting" in page
    assert f'data-topics="pipeds,cmd:{command.id}"' in page
    advance(5)
    await cases.commands.handled(Handled(command.id, CommandStatus.SUCCEEDED, 1), by=piped)
    assert "has ended as you asked and is starting anew" in await text(browser_of_admin, followed)
    advance(5)
    await cases.pipeds.meta_reported(meta, by=piped)
    assert "Piped dev has restarted and runs v0.50.0." in await text(browser_of_admin, followed)


async def test_a_command_of_something_else_is_not_told_of(
    *,
    browser_of_admin: httpx2.AsyncClient,
    one: str,
    cases: UseCases,
    other_piped: PipedCaller,
    admin: User,
) -> None:
    command = await cases.pipeds.restart(other_piped.piped, by=admin)
    for id in (command, "unknown"):
        answer = await browser_of_admin.get(f"{one}?cmd={id}")
        assert answer.status_code == 200
        assert 'data-testid="notice"' not in answer.text


async def test_a_version_is_wanted_and_left_to_the_launcher_again(
    *,
    fill: Send,
    browser_of_admin: httpx2.AsyncClient,
    cases: UseCases,
    piped: PipedCaller,
    one: str,
) -> None:
    assert (await fill("version", version=" v0.51.0 ")).headers["location"] == one
    assert await cases.pipeds.desired_version(by=piped) == "v0.51.0"
    assert "v0.51.0 is wanted" in await text(browser_of_admin, PAGE)
    refused = await fill("version", version="0.52")
    assert refused.status_code == 422
    assert "&#39;0.52&#39; is not a version; write it like v0.1.0." in refused.text
    assert 'value="0.52"' in refused.text
    # A page that tells of a mistake must not fetch itself anew.
    assert 'data-topics=""' in refused.text
    assert await cases.pipeds.desired_version(by=piped) == "v0.51.0"
    await fill("version", version="")
    assert await cases.pipeds.desired_version(by=piped) == ""


async def test_a_piped_is_locked_out_and_let_in_again(
    fill: Send, browser_of_admin: httpx2.AsyncClient, cases: UseCases, admin: User, one: str
) -> None:
    assert (await fill("disable")).status_code == 303
    (piped,) = await cases.pipeds.listed(by=admin)
    assert piped.disabled
    assert "It is locked out" in await text(browser_of_admin, one)
    await fill("enable")
    (piped,) = await cases.pipeds.listed(by=admin)
    assert not piped.disabled


async def test_a_piped_is_renamed(
    fill: Send, cases: UseCases, admin: User, registered: Any
) -> None:
    await fill("edit", name="staging", description="")
    piped = await cases.pipeds.get(registered.id, by=admin)
    assert (piped.name, piped.desc) == ("staging", "")
    refused = await fill("edit", name=" ", description="kept")
    assert (refused.status_code, "Fill in the name." in refused.text) == (422, True)
    assert 'value="kept"' in refused.text


async def test_a_new_piped_gets_a_key_that_is_shown_once(
    *,
    browser_of_admin: httpx2.AsyncClient,
    send: Send,
    cases: UseCases,
    admin: User,
    stores: Stores,
    capfd: pytest.CaptureFixture[str],
) -> None:
    form = {"name": "prod", "description": "the prod cluster"}
    answer = await send(browser_of_admin, PAGE, PAGE, **form)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    again = await send(browser_of_admin, PAGE, PAGE, **form)
    (piped,) = await cases.pipeds.listed(by=admin)
    (key,) = by_testid(answer.text, "piped-key")
    assert by_testid(again.text, "piped-key") == [key]
    (stored,) = (await stores.pipeds.get(piped.id)).keys
    assert keys.key_matches(key, stored.hash)
    assert by_testid(answer.text, "piped-id") == [piped.id]
    encoded = base64.b64encode(key.encode()).decode()
    # A page that fetches itself anew would lose the key.
    assert "data-topics" not in answer.text
    for page in (PAGE, f"{PAGE}/{piped.id}"):
        shown = (await browser_of_admin.get(page)).text
        assert key not in shown
        assert encoded not in shown
    said = capfd.readouterr()
    assert key not in said.out + said.err


async def test_the_sample_for_a_new_piped_is_a_configuration(
    browser_of_admin: httpx2.AsyncClient, send: Send
) -> None:
    answer = await send(browser_of_admin, PAGE, PAGE, name="prod")
    sample = answer.text.partition('data-testid="snippet">')[2].partition("</div>")[0]
    config = "\n".join(re.findall(r"<span>([^<]*)</span>", sample))
    spec = read_piped(config, file="piped.yaml", catalog=load_catalog()).spec
    assert (spec.project_id, spec.api_address) == ("shop", "pipecd.example:443")
    (key,) = by_testid(answer.text, "piped-key")
    assert base64.b64decode(str(spec.piped_key_data)).decode() == key


async def test_a_piped_without_a_name_is_not_added(
    browser_of_admin: httpx2.AsyncClient, send: Send, cases: UseCases, admin: User
) -> None:
    answer = await send(browser_of_admin, PAGE, PAGE, name=" ", description="kept")
    assert answer.status_code == 422
    assert "Fill in the name." in answer.text
    assert 'value="kept"' in answer.text
    assert await cases.pipeds.listed(by=admin) == ()


async def test_a_key_is_replaced(
    *,
    fill: Send,
    browser_of_admin: httpx2.AsyncClient,
    one: str,
    stores: Stores,
    registered: Any,
    advance: Callable[[float], None],
) -> None:
    advance(60)
    answer = await fill("keys")
    (key,) = by_testid(answer.text, "piped-key")
    # Whoever clicks twice gets the same key and not the news that there are two already.
    assert by_testid((await fill("keys")).text, "piped-key") == [key]
    shown = await text(browser_of_admin, one)
    assert "the new one" in shown
    assert "the old one" in shown
    advance(60)
    refused = await fill("keys")
    assert refused.status_code == 422
    assert "has 2 keys already" in refused.text
    await fill("keys/drop")
    (stored,) = (await stores.pipeds.get(registered.id)).keys
    assert keys.key_matches(key, stored.hash)
    assert not keys.key_matches(registered.key, stored.hash)


async def test_a_viewer_looks_and_is_offered_nothing(
    someone: Someone, viewer: User, one: str, reports: Any
) -> None:
    await reports.online()
    client = someone(viewer)
    for page in (PAGE, one):
        shown = (await client.get(page)).text
        assert "Your roles (Viewer) do not allow this" in shown
        assert 'action="/settings' not in shown


async def test_a_viewer_who_sends_the_forms_all_the_same_is_refused(
    someone: Someone, cases: UseCases, viewer: User, one: str, piped: PipedCaller
) -> None:
    token = cases.sessions.issue(viewer)
    client = someone(viewer)
    client.cookies.set("token", token)
    csrf = Visitor(viewer, token).csrf
    for form in ("restart", "version", "enable", "disable", "edit", "keys", "keys/drop"):
        fields = {"csrf": csrf, "name": "x", "version": "v1"}
        refused = await client.post(f"{one}/{form}", data=fields)
        assert refused.status_code == 403, form
        assert "Back to the piped" in refused.text
    assert (await client.post(PAGE, data={"csrf": csrf, "name": "x"})).status_code == 403
    assert await cases.commands.unhandled_of(by=piped) == ()


async def test_pipeds_of_another_project_are_not_to_be_seen(
    someone: Someone, stranger: User, one: str
) -> None:
    client = someone(stranger)
    assert (await client.get(one)).status_code == 403
    assert "the dev cluster" not in await text(client, PAGE)


async def test_who_may_not_list_pipeds_is_told_so(someone: Someone, admin: User) -> None:
    del admin
    answer = await someone(User("shop", "nobody", ())).get(PAGE)
    assert answer.status_code == 403


async def test_a_piped_that_is_gone_is_not_found(browser_of_admin: httpx2.AsyncClient) -> None:
    answer = await browser_of_admin.get(f"{PAGE}/unknown")
    assert answer.status_code == 404
    assert "Piped is not found" in answer.text


async def test_what_it_looks_after_leads_to_the_piped(
    *,
    someone: Someone,
    browser_of_admin: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    application: Application,
    one: str,
) -> None:
    page = f"/applications/{application.id}"
    assert f'<a href="{one}">dev</a>' in (await browser_of_admin.get(page)).text
    # Who may not see pipeds is not sent to a page that refuses them.
    policies = parse_policies("resources=application;actions=*")
    await cases.roles.add("developers", policies, by=admin)
    shown = (await someone(User("shop", "dave", ("developers",))).get(page)).text
    assert "Not shown" in shown
    assert one not in shown
