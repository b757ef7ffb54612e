# SPDX-License-Identifier: Apache-2.0
"""Adding applications in a real browser."""

import time
from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.browser import OpenPage
from servers.control_plane import StartControlPlane
from servers.origin import Origin
from servers.samples import WAITING_CART

pytestmark = pytest.mark.browser

PAGE = "/applications/add"


def found(name: str) -> ApplicationInfo:
    return ApplicationInfo(
        name=name, repo_id="site", path=f"apps/{name}", config_filename="app.pipecd.yaml"
    )


async def test_a_pushed_application_is_listed_added_and_deployed(
    chromium: Browser, start_plane: StartControlPlane, tmp_path: Path
) -> None:
    origin = Origin.begin(tmp_path / "origin")
    origin.commit({"README": "nothing yet"})
    async with (
        start_plane() as plane,
        (await plane.register_piped()).run(origin.remote),
        await chromium.new_context(base_url=f"http://{plane.address}") as context,
    ):
        page = await context.new_page()
        await page.goto("/applications")
        for key, value in (
            ("project", "demo"),
            ("username", "admin"),
            ("password", plane.password),
        ):
            await page.fill(f"#{key}", value)
        await page.keyboard.press("Enter")
        await page.get_by_test_id("add-application").click()
        await expect(page.get_by_test_id("empty")).to_contain_text("No unregistered applications")
        await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")

        origin.commit({"cart/app.pipecd.yaml": WAITING_CART + "  labels: {env: dev}\n"}, "a cart")
        pushed = time.monotonic()
        row = page.get_by_test_id("found-row")
        await expect(row).to_contain_text("env: dev", timeout=15_000)
        assert time.monotonic() - pushed < 5

        await page.get_by_role("button", name="Add cart").click()
        await page.wait_for_url("**/applications/*?added=1")
        await expect(page.get_by_role("heading", level=1)).to_contain_text("cart")
        status = page.get_by_test_id("dep-status")
        await expect(status).to_have_text("Succeeded", timeout=20_000)
        await expect(page.get_by_test_id("notice")).to_have_count(0)
        await page.goto(PAGE)
        await expect(row).to_have_count(0)


async def test_an_update_keeps_a_half_filled_form(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, meta: ReportPipedMetaRequest
) -> None:
    meta.plugins.append(Piped.Plugin(name="kubernetes", deploy_targets=["eu", "us"]))
    await cases.pipeds.report_meta(meta, by=piped)
    await cases.application_reports.report_unregistered([found("cart")], by=piped)
    page = await open_page(PAGE)
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    cart = page.get_by_test_id("found-row").filter(has_text="cart")
    # Deploy targets, or explicitly none.
    await cart.get_by_label("No target").check()
    await cart.get_by_label("us").check()
    await expect(cart.get_by_label("No target")).not_to_be_checked()
    await expect(page.get_by_test_id("not-listed")).to_contain_text("pipectl lint")
    # What was found comes first; the form for anything else is folded.
    await expect(page.get_by_label("Directory")).to_be_hidden()
    await page.get_by_test_id("manual").locator("summary").click()
    await page.get_by_label("Directory").fill("apps/other")
    await cases.application_reports.report_unregistered([found("bakery"), found("cart")], by=piped)
    await expect(page.get_by_test_id("found-row")).to_have_count(2)
    await expect(cart.get_by_label("us")).to_be_checked()
    await expect(page.get_by_label("Directory")).to_have_value("apps/other")
    await expect(page.get_by_label("Directory")).to_be_focused()


async def test_a_form_error_stays_until_the_next_submit(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, meta: ReportPipedMetaRequest
) -> None:
    meta.plugins.append(Piped.Plugin(name="kubernetes", deploy_targets=["eu", "us"]))
    await cases.pipeds.report_meta(meta, by=piped)
    await cases.application_reports.report_unregistered([found("cart")], by=piped)
    page = await open_page(PAGE)
    await page.get_by_role("button", name="Add cart").click()
    wrong = page.get_by_test_id("found-row").get_by_test_id("form-error")
    await expect(wrong).to_have_text("Choose a deploy target.")
    await expect(page.get_by_test_id("conn-dot")).to_be_hidden()
    await page.get_by_test_id("found-row").get_by_label("eu").check()
    await page.get_by_role("button", name="Add cart").click()
    await page.wait_for_url("**?added=1")


async def test_adding_works_without_scripts(
    *,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    other_piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    await cases.pipeds.report_meta(meta, by=other_piped)
    await cases.application_reports.report_unregistered([found("cart")], by=piped)
    page = await open_page(PAGE, java_script_enabled=False)
    await page.get_by_role("button", name="Add cart").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("cart")
    await page.get_by_role("link", name="Applications").first.click()
    await page.get_by_test_id("add-application").click()
    await page.get_by_label("Piped").select_option("prod")
    await page.get_by_role("button", name="Choose").click()
    await page.get_by_label("Name", exact=True).fill("shop")
    await page.get_by_label("Directory").fill("apps/shop")
    await page.get_by_role("button", name="Add manually").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("shop")
    await expect(page.locator("dl.facts")).to_contain_text("prod")


@pytest.mark.parametrize("scripts", [True, False])
async def test_several_applications_are_added_at_once(
    *,
    scripts: bool,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    meta: ReportPipedMetaRequest,
) -> None:
    meta.plugins.append(Piped.Plugin(name="kubernetes", deploy_targets=["eu"]))
    await cases.pipeds.report_meta(meta, by=piped)
    names = ("bakery", "cart", "desk")
    await cases.application_reports.report_unregistered([found(name) for name in names], by=piped)
    page = await open_page(PAGE, java_script_enabled=scripts)
    add = page.get_by_test_id("add-several")
    await add.click()
    await expect(page.get_by_test_id("form-error")).to_have_text("Tick the applications to add.")
    if scripts:
        await page.get_by_label("Select all").check()
    else:
        for name in names:
            await page.get_by_label(f"Add {name} with the others").check()
    # One of them disappears from Git before the form is sent.
    await cases.application_reports.report_unregistered(
        [found(name) for name in names[:2]], by=piped
    )
    await add.click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("2 applications are added")
    rows = page.get_by_test_id("bulk-row")
    await expect(rows.get_by_role("link")).to_have_text(["bakery", "cart"])
    await expect(rows.filter(has_text="no longer")).to_have_count(1)
    await rows.get_by_role("link", name="bakery").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("bakery")
    await expect(page.locator("dl.facts")).to_contain_text("eu")
    await page.get_by_role("link", name="Applications").first.click()
    await expect(page.get_by_test_id("app-row")).to_have_count(2)


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_path_that_cannot_be_is_refused_in_place(
    *, scripts: bool, open_page: OpenPage, piped: PipedCaller
) -> None:
    del piped
    page = await open_page(PAGE, java_script_enabled=scripts)
    await page.get_by_label("Name", exact=True).fill("shop")
    await page.get_by_label("Directory").fill("../elsewhere")
    await page.get_by_role("button", name="Add manually").click()
    error = page.get_by_test_id("manual").get_by_test_id("form-error")
    await expect(error).to_have_text("The directory must be inside the repository.")
    await expect(page.get_by_label("Name", exact=True)).to_have_value("shop")
    await page.get_by_label("Directory").fill("apps/shop")
    await page.get_by_role("button", name="Add manually").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("shop")
