# SPDX-License-Identifier: Apache-2.0
"""Secrets, names, columns and labels of applications, and the documentation, in a real browser."""

from pathlib import Path

import pytest
from playwright.async_api import expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.secrets import hybrid
from servers.browser import OpenPage

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_secret_is_encrypted_and_not_shown_again(
    *,
    scripts: bool,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    application: Application,
    spec_dir: Path,
) -> None:
    vectors = spec_dir / "vectors"
    encryption = Piped.SecretEncryption(
        type="KEY_PAIR", public_key=(vectors / "secret_public.pem").read_text()
    )
    meta = ReportPipedMetaRequest(secret_encryption=encryption, config="{}")
    await cases.pipeds.report_meta(meta, by=piped)
    page = await open_page(f"/applications/{application.id}", java_script_enabled=scripts)
    await page.locator(f"a[href='/applications/{application.id}/encrypt']").first.click()
    await page.locator("#secret").fill("hunter22")
    await page.get_by_test_id("encrypt-button").click()
    ciphertext = await page.get_by_test_id("ciphertext").inner_text()
    private = (vectors / "secret_private.pem").read_bytes()
    assert hybrid.decrypt(private, ciphertext) == "hunter22"
    await expect(page.locator("#secret")).to_have_value("")
    assert "hunter22" not in await page.content()


async def test_columns_without_content_are_hidden_and_labels_are_picked(
    *, open_page: OpenPage, application: Application, stores: Stores
) -> None:
    page = await open_page("/applications")
    headings = page.locator("table.list thead")
    await expect(headings).to_contain_text("Labels")
    await expect(headings).not_to_contain_text("Health")
    await expect(headings).not_to_contain_text("Running")
    await page.get_by_label("Label", exact=True).select_option(label="env: dev")
    await page.wait_for_url("**/applications?*labels*")
    await expect(page.get_by_test_id("chip-filter")).to_have_text("env: dev")
    await expect(page.get_by_test_id("app-row")).to_have_count(1)
    await stores.applications.update(application.id, lambda stored: stored.labels.clear())
    await page.goto(page.url.partition("?")[0])
    await expect(headings).not_to_contain_text("Labels")


async def test_a_name_that_cannot_be_deployed_cannot_be_typed(
    open_page: OpenPage, application: Application, piped: PipedCaller
) -> None:
    page = await open_page(f"/applications/add?piped={piped.piped}#manual")
    name = page.locator("#manual-name")
    await page.evaluate(
        "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    )
    await name.press_sequentially("n" * 40)
    await expect(name).to_have_value("n" * 36)


async def test_documentation_version_and_news_are_in_the_account_menu(
    open_page: OpenPage, viewer: User
) -> None:
    page = await open_page("/overview", user=viewer)
    menu = page.locator("details.account")
    await menu.locator("summary").click()
    version = (await page.get_by_test_id("program-version").inner_text()).removeprefix("PipeCD ")
    await menu.get_by_role("link", name="Documentation").click()
    await expect(page.get_by_test_id("documented-version")).to_have_text(version)
    await page.get_by_role("link", name="The console", exact=True).first.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("The console")
    await page.locator("details.account summary").click()
    await page.locator("details.account").get_by_role("link", name="What is new").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("What is new")


@pytest.mark.parametrize(("text", "heading"), [("plan prev", "Plan previews"), ("users", "Users")])
async def test_the_palette_opens_the_new_pages(
    text: str, heading: str, open_page: OpenPage
) -> None:
    page = await open_page("/overview")
    await page.keyboard.press("Control+k")
    await page.keyboard.type(text)
    await expect(page.locator("dialog")).to_contain_text(heading)
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_contain_text(heading)
    await expect(page.get_by_role("heading", name=heading).first).to_be_visible()
