# SPDX-License-Identifier: Apache-2.0
"""API keys and the settings of the project in a real browser."""

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.project_pb2 import ProjectSSOConfig
from servers.browser import OpenPage

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scripts", [True, False])
async def test_an_api_key_is_generated_used_and_disabled(
    *, scripts: bool, open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    page = await open_page("/settings", java_script_enabled=scripts)
    await page.get_by_role("link", name="API keys").click()
    await expect(page.get_by_test_id("empty")).to_contain_text("No API keys yet")
    await page.get_by_label("Name", exact=True).fill("deploy from CI")
    await page.get_by_label("Read and write").check()
    await page.get_by_role("button", name="Generate and show the key").click()
    key = await page.get_by_test_id("api-key").inner_text()
    caller = await cases.api_keys.verify(key)
    assert isinstance(caller, ApiKeyCaller)
    assert (caller.name, caller.may_write) == ("deploy from CI", True)
    await page.get_by_role("link", name="Go to the API keys").click()
    row = page.get_by_test_id("apikey-row")
    await expect(row).to_contain_text("Read and write")
    await expect(row.locator("td[data-label='Last used']")).not_to_have_text("never")
    assert key not in await page.content()
    await row.locator("summary").click()
    await page.get_by_role("button", name="Disable deploy from CI").click()
    await expect(row).to_contain_text("Disabled")
    with pytest.raises(Unauthenticated):
        await cases.api_keys.verify(key)


async def test_a_key_that_approves_is_generated(
    open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    page = await open_page("/settings/api-key")
    await page.get_by_label("Name", exact=True).fill("approvals")
    await page.get_by_label("Read, write and approve").check()
    await page.get_by_role("button", name="Generate and show the key").click()
    caller = await cases.api_keys.verify(await page.get_by_test_id("api-key").inner_text())
    assert (caller.may_write, caller.may_approve, caller.creator) == (True, True, admin.name)
    await page.get_by_role("link", name="Go to the API keys").click()
    await expect(page.get_by_test_id("apikey-row")).to_contain_text("Read, write and approve")


async def test_a_viewer_is_told_why_there_are_no_keys(open_page: OpenPage, viewer: User) -> None:
    page = await open_page("/settings/api-key", user=viewer)
    await expect(page.get_by_test_id("error-403")).to_contain_text("Your roles do not allow this")


async def test_changing_the_own_password_keeps_the_session(
    open_page: OpenPage, static_admin: StaticAdmin
) -> None:
    async def sign_in(password: str) -> None:
        for key, value in (
            ("project", "shop"),
            ("username", static_admin.username),
            ("password", password),
        ):
            await page.fill(f"#{key}", value)
        await page.keyboard.press("Enter")

    page = await open_page("/settings/project", user=None)
    await sign_in(static_admin.password)
    other = await open_page("/settings/project", user=None)
    page, mine = other, page
    await sign_in(static_admin.password)
    page = mine
    await page.get_by_text("Change username and password").click()
    # What is typed once may be read before it is saved.
    field = page.get_by_label("New password")
    await field.fill("a much better password")
    await page.get_by_role("button", name="Show the password").click()
    await expect(field).to_have_attribute("type", "text")
    await page.get_by_role("button", name="Show the password").click()
    await expect(field).to_have_attribute("type", "password")
    await page.get_by_test_id("admin-form").get_by_role("button", name="Save").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Settings")
    # The other browser, which knows only the old password, is signed out.
    await other.reload()
    await expect(other.get_by_test_id("expired")).to_be_visible()


@pytest.mark.parametrize("scripts", [True, False])
async def test_roles_and_groups_are_changed_and_ask_before_they_go(
    *, scripts: bool, open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    page = await open_page("/settings/project", java_script_enabled=scripts)
    await page.get_by_text("Add a role").click()
    form = page.get_by_test_id("role-add")
    await form.get_by_label("Name").fill("watchers")
    await form.get_by_label("Pipeds: list").check()
    await form.get_by_label("Applications: get").check()
    await form.get_by_label("Labels of applications").fill("env:dev")
    await form.get_by_role("button", name="Add the role").click()
    await expect(page.get_by_test_id("flash")).to_have_text("The role watchers is added.")
    assert await cases.pipeds.list(by=User("shop", "wendy", ("watchers",))) == ()
    await page.get_by_text("Add a user group").click()
    await page.get_by_label("Team or group").fill("org/night")
    # Nobody becomes an administrator because a role was not chosen.
    await expect(page.get_by_test_id("group-add").get_by_label("Role")).to_have_value("")
    await page.get_by_test_id("group-add").get_by_label("Role").select_option("watchers")
    await page.get_by_test_id("group-add").get_by_role("button", name="Add").click()
    group = page.get_by_test_id("group")
    await expect(group).to_contain_text("watchers")
    remove = page.get_by_role("button", name="Remove org/night")
    await expect(remove).to_be_hidden()
    await group.locator("summary").click()
    await group.get_by_label("Role of its members").select_option("Viewer")
    await group.get_by_role("button", name="Save").click()
    await expect(group.locator("td").nth(1)).to_have_text("Viewer")
    await group.locator("summary").click()
    await remove.click()
    await expect(group).to_have_count(0)
    delete = page.get_by_role("button", name="Delete the role watchers")
    await expect(delete).to_be_hidden()
    await page.get_by_text("Change or delete watchers").click()
    await expect(page.get_by_test_id("role-grid-form").get_by_label("Pipeds: list")).to_be_checked()
    await page.get_by_text("Delete watchers", exact=True).click()
    await delete.click()
    await expect(page.get_by_test_id("flash")).to_have_text("The role watchers is deleted.")


@pytest.mark.parametrize("width", [1440, 390])
async def test_roles_are_read_and_added_without_scrolling_sideways(
    width: int, open_page: OpenPage, cases: UseCases
) -> None:
    size = {"width": width, "height": 800}
    page = await open_page("/settings/project", viewport=size)
    is_phone = width < 760
    grid = page.get_by_test_id("role-grid")
    # The head of the table names the roles; on a phone each line does.
    await expect(grid.locator("thead")).to_be_visible(visible=not is_phone)
    cell = grid.locator("td").first
    label = "cell => getComputedStyle(cell, '::before').content"
    assert await cell.evaluate(label) == ('"Admin"' if is_phone else "none")
    await page.get_by_text("Add a role").click()
    form = page.get_by_test_id("role-add")
    for scrolled in await page.locator(".grid-scroll").filter(visible=True).all():
        assert await scrolled.evaluate("e => e.scrollWidth - e.clientWidth") == 0
    await form.get_by_label("Name").fill("watchers")
    await form.get_by_label("Pipeds: list").check()
    await form.get_by_label("Labels of applications").fill("env:dev")
    await form.get_by_label("Applications: get").check()
    await form.get_by_role("button", name="Add the role").click()
    await expect(page.get_by_test_id("flash")).to_have_text("The role watchers is added.")
    assert await cases.pipeds.list(by=User("shop", "wendy", ("watchers",))) == ()


async def test_the_webhook_asks_before_it_changes(open_page: OpenPage) -> None:
    page = await open_page("/settings/project")
    await page.get_by_test_id("webhook-create").click()
    for summary, button in (
        ("Rotate the secret", "Create a new secret"),
        ("Remove the webhook", "Remove the webhook"),
    ):
        confirm = page.get_by_role("button", name=button)
        await expect(confirm).to_be_hidden()
        await page.locator("summary").filter(has_text=summary).click()
        await confirm.click()
        await expect(page.get_by_test_id("flash")).to_contain_text("The webhook")
    await expect(page.get_by_test_id("webhook-create")).to_be_visible()


async def test_locking_oneself_out_asks_twice(
    open_page: OpenPage, cases: UseCases, admin: User, single_sign_on: None
) -> None:
    page = await open_page("/settings/project")
    button = page.get_by_role("button", name=f"Disable {admin.name}")
    await expect(button).to_be_hidden()
    await page.get_by_text("Disable the static admin").click()
    await expect(page.get_by_test_id("admin-disable")).to_contain_text("you are signed out")
    await button.click()
    await expect(page.get_by_test_id("admin")).to_contain_text("Nobody can sign in with a password")


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_role_with_a_typo_is_refused_in_place_and_works_as_soon_as_it_is_saved(
    *, scripts: bool, open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    page = await open_page("/settings/project", java_script_enabled=scripts)
    await page.get_by_text("Add a role").click()
    form = page.get_by_test_id("role-add-form")
    await form.locator("details > summary").click()
    await form.get_by_label("Name of the role").fill("night")
    policies = form.get_by_label("Policies, with a blank line")
    await policies.fill("resources=pipd;actions=list")
    await form.get_by_role("button", name="Add the text").click()
    await expect(form.get_by_test_id("form-error")).to_contain_text("pipd")
    await expect(policies).to_have_value("resources=pipd;actions=list")
    await policies.fill("resources=piped;actions=list")
    await form.get_by_role("button", name="Add the text").click()
    await expect(page.get_by_test_id("flash")).to_have_text("The role night is added.")
    assert await cases.pipeds.list(by=User(admin.project, "nora", ("night",))) == ()


async def test_the_groups_say_who_can_sign_in_without_a_role(
    open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    github = ProjectSSOConfig.GitHub(client_id="id", client_secret="s")
    sso = ProjectSSOConfig(provider=ProjectSSOConfig.GITHUB, github=github)
    await cases.projects.set_sso(sso, by=admin)
    page = await open_page("/settings/project")
    text = page.get_by_test_id("without-role")
    await expect(text).to_contain_text("until one has, nobody can sign in with GitHub")
    await cases.roles.add_group("org/night", "Viewer", by=admin)
    await page.reload()
    await expect(text).to_have_text("Users without one of these groups cannot sign in.")
    await cases.projects.change(lambda p: setattr(p, "allow_stray_as_viewer", True), by=admin)
    await page.reload()
    await expect(text).to_have_text("Users without a group that has a role are viewers.")


async def test_the_api_browser_copies_a_command_and_shows_what_was_answered(
    open_page: OpenPage,
) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    size = {"width": 390, "height": 844}
    page = await open_page("/docs/api", viewport=size, permissions=permissions)
    endpoint = page.get_by_test_id("endpoint").filter(has_text="Triggers a deployment")
    await endpoint.locator("summary").click()
    await endpoint.get_by_role("button", name="Copy command").click()
    command = str(await page.evaluate("navigator.clipboard.readText()"))
    method, url, header = command.splitlines()
    assert method == "curl -X POST \\"
    assert url.endswith("/api/v1/applications/{application_id}/sync \\")
    assert header == '  -H "Authorization: Bearer $KEY"'
    title = endpoint.locator("[data-api-title]")
    await expect(title).to_have_text("Response looks like")
    await page.get_by_label("API key").fill("key")
    await endpoint.get_by_label("application_id").fill("app")
    await endpoint.get_by_role("button", name="Send").click()
    await expect(title).to_have_text("Response")
    await expect(endpoint.locator("[data-api-response]")).to_contain_text("404")
