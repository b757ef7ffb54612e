# SPDX-License-Identifier: Apache-2.0
"""The pages of pipeds in a real browser."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseRequest
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from pipecd.secrets import keys
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser

PAGE = "/settings/piped"


async def is_live(page: Page) -> None:
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await page.evaluate("window.same = true")


async def test_a_restart_is_followed_on_both_pages(
    *,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    meta: ReportPipedMetaRequest,
    advance: Callable[[float], None],
) -> None:
    await reports.online()
    watched = await open_page(PAGE)
    await is_live(watched)
    page = await open_page(f"{PAGE}/{piped.piped}")
    await page.get_by_test_id("restart").click()
    await page.get_by_role("button", name="Restart dev").click()
    notice = page.get_by_test_id("notice")
    await expect(notice).to_contain_text("picks it up in a moment")
    await is_live(page)
    # Another user with the list open sees it, too.
    await expect(watched.get_by_test_id("piped-status")).to_have_text("Restarting")
    (command,) = await cases.commands.list_unhandled(by=piped)
    advance(5)
    await cases.commands.report_handled(
        CommandResult(command.id, CommandStatus.SUCCEEDED, 1), by=piped
    )
    await expect(notice).to_contain_text("is starting again")
    await expect(watched.get_by_test_id("piped-status")).to_have_text("Online")
    advance(5)
    meta.version = "v0.51.0"
    await cases.pipeds.report_meta(meta, by=piped)
    await expect(notice).to_contain_text("has restarted and runs v0.51.0")
    await expect(watched.get_by_test_id("piped-version")).to_have_text("v0.51.0")
    assert await page.evaluate("window.same") is True
    assert await watched.evaluate("window.same") is True


async def test_status_updates_keep_typed_text(
    *,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    reports: PipedReports,
    advance: Callable[[float], None],
) -> None:
    page = await open_page(f"{PAGE}/{piped.piped}")
    await is_live(page)
    status = page.get_by_test_id("piped-status")
    await expect(status).to_have_text("Offline")
    await page.get_by_label("Version, empty").fill("v0.9")
    await reports.online()
    await expect(status).to_have_text("Online")
    await expect(page.get_by_label("Version, empty")).to_have_value("v0.9")
    await expect(page.get_by_label("Version, empty")).to_be_focused()
    advance(125)
    await cases.pipeds.offline_detector.check()
    await expect(status).to_have_text("Offline")
    assert await page.evaluate("window.same") is True


async def test_the_key_of_a_new_piped_stays_on_its_page(
    open_page: OpenPage, cases: UseCases, admin: User
) -> None:
    page = await open_page(PAGE)
    await page.get_by_label("Name").fill("prod")
    await page.get_by_role("button", name="Add and show the key").click()
    key = page.get_by_test_id("piped-key")
    await expect(key).to_be_visible()
    snippet = await page.get_by_test_id("snippet").inner_text()
    assert snippet.splitlines()[:3] == ["apiVersion: pipecd.dev/v1beta1", "kind: Piped", "spec:"]
    # What happens elsewhere does not take it away.
    (piped,) = await cases.pipeds.list(by=admin)
    await cases.pipeds.update(piped.id, "production", "", by=admin)
    await page.evaluate("window.dispatchEvent(new Event('focus'))")
    assert len(await key.inner_text()) == 50
    assert (await page.locator("main .btn").all_inner_texts())[-1] == "Go to the piped"
    await page.get_by_role("link", name="Go to the piped").click()
    await expect(page.get_by_role("heading", level=1)).to_contain_text("production")
    await expect(key).to_have_count(0)


async def test_a_piped_is_changed_without_scripts(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, reports: PipedReports
) -> None:
    await reports.online()
    page = await open_page("/applications", java_script_enabled=False)
    await page.get_by_test_id("nav-settings").click()
    await page.get_by_test_id("piped-row").get_by_role("link", name="dev").click()
    await page.get_by_label("Version, empty").fill("0.51")
    await page.get_by_test_id("version-form").get_by_role("button").click()
    await expect(page.get_by_test_id("form-error")).to_contain_text("write it like v0.1.0")
    await page.get_by_label("Version, empty").fill("v0.51.0")
    await page.get_by_test_id("version-form").get_by_role("button").click()
    await expect(page.get_by_test_id("piped-version")).to_contain_text("v0.51.0 is requested")
    await page.get_by_test_id("restart").click()
    await page.get_by_role("button", name="Restart dev").click()
    await expect(page.get_by_test_id("notice")).to_be_visible()
    (command,) = await cases.commands.list_unhandled(by=piped)
    assert command.type == CommandKind.RESTART_PIPED
    await page.get_by_test_id("disable").click()
    await page.get_by_role("button", name="Disable dev").click()
    await expect(page.get_by_test_id("piped-status")).to_have_text("Disabled")
    await page.get_by_role("button", name="Enable").click()
    await expect(page.get_by_test_id("piped-status")).to_have_text("Restarting")


async def test_a_takeover_is_shown(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, reports: PipedReports
) -> None:
    async def acquire(host: str) -> PipedCaller:
        request = AcquirePipedLeaseRequest(host=host)
        request.ticket = (await cases.piped_leases.acquire(request, by=piped))[0].ticket
        request.force = True
        granted, _ = await cases.piped_leases.acquire(request, by=piped)
        return replace(piped, epoch=granted.epoch)

    await reports.online()
    async with cases.piped_leases.stream(await acquire("worker-1")):
        await acquire("worker-2")
    page = await open_page(f"{PAGE}/{piped.piped}")
    await expect(page.get_by_test_id("piped-host")).to_contain_text("worker-2")
    warning = page.get_by_test_id("takeover")
    await expect(warning).to_contain_text("with the ID of this piped on worker-1")
    await expect(warning).to_contain_text("stop one of them")


async def test_what_does_not_run_appears_and_disappears(
    open_page: OpenPage, cases: UseCases, piped: PipedCaller, reports: PipedReports
) -> None:
    await reports.online()
    page = await open_page(f"{PAGE}/{piped.piped}")
    await is_live(page)
    failure = PluginFailure(
        plugin="greeter",
        reason="plugin greeter ended with exit code 3 instead of starting; its last output was:\n"
        "the licence is missing",
        since=1,
    )
    await cases.pipeds.report_plugin_failures([failure], by=piped)
    row = page.get_by_test_id("failure")
    await expect(row).to_contain_text("the licence is missing")
    await expect(page.locator(".head .reason")).to_contain_text("cannot be used")
    await cases.pipeds.report_plugin_failures([], by=piped)
    await expect(row).to_have_count(0)
    await expect(page.locator(".head .reason")).to_contain_text("connected and ready")


@pytest.mark.parametrize("scripts", [True, False])
async def test_several_pipeds_are_upgraded_at_once(
    *,
    scripts: bool,
    open_page: OpenPage,
    cases: UseCases,
    piped: PipedCaller,
    other_piped: PipedCaller,
    meta: ReportPipedMetaRequest,
    viewer: User,
) -> None:
    await cases.pipeds.report_meta(meta, by=other_piped)
    page = await open_page(PAGE, java_script_enabled=scripts)
    form, error = page.get_by_test_id("piped-upgrade"), page.get_by_test_id("form-error")
    await form.get_by_label("Version").fill("v0.57.0")
    await form.get_by_role("button", name="Request the version").click()
    await expect(error).to_have_text("Select at least one piped of this project.")
    for name in ("dev", "prod"):
        await form.get_by_label(name).check()
    await form.get_by_label("Version").fill("../../etc")
    await form.get_by_role("button", name="Request the version").click()
    await expect(error).to_contain_text("version")
    # What was ticked stays ticked.
    for name in ("dev", "prod"):
        await expect(form.get_by_label(name)).to_be_checked()
    await form.get_by_label("Version").fill("v0.57.0")
    await form.get_by_role("button", name="Request the version").click()
    await expect(page.get_by_test_id("flash")).to_contain_text("requested of 2 pipeds")
    versions = page.get_by_test_id("piped-version")
    await expect(versions).to_have_text([re.compile("v0.57.0 is requested")] * 2)
    assert [await cases.pipeds.desired_version(by=each) for each in (piped, other_piped)] == [
        "v0.57.0"
    ] * 2
    # The list follows the pipeds as they come back with the version.
    meta.version = "v0.57.0"
    await cases.pipeds.report_meta(meta, by=piped)
    if not scripts:
        await page.reload()
    await expect(versions.filter(has_text="is requested")).to_have_count(1)
    watched = await open_page(PAGE, user=viewer)
    reason = watched.get_by_test_id("disabled-reason-upgrade")
    await expect(reason).to_contain_text("does not allow")


@pytest.mark.parametrize("scripts", [True, False])
async def test_a_key_is_rotated_and_the_old_one_refused(
    *,
    scripts: bool,
    open_page: OpenPage,
    stores: Stores,
    registered: RegisteredPiped,
    advance: Callable[[float], None],
) -> None:
    advance(60)
    page = await open_page(f"{PAGE}/{registered.id}", java_script_enabled=scripts)
    await page.get_by_role("button", name="Create a new key").click()
    key = await page.get_by_test_id("piped-key").inner_text()
    await page.get_by_role("link", name="Go to the piped").click()
    rows = page.get_by_test_id("key")
    await expect(rows).to_have_count(2)
    await expect(rows.filter(has_text="old key")).to_have_count(1)
    delete = page.get_by_role("button", name="Delete the old key")
    await expect(delete).to_be_hidden()
    await page.locator("summary").filter(has_text="Delete the old key").click()
    await expect(page.get_by_test_id("key-drop")).to_contain_text("is rejected at once")
    await delete.click()
    await expect(rows).to_have_count(1)
    (stored,) = (await stores.pipeds.get(registered.id)).keys
    assert keys.key_matches(key, stored.hash)
    assert not keys.key_matches(registered.key, stored.hash)
