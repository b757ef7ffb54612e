# SPDX-License-Identifier: Apache-2.0
"""The log of a stage as a whole, in a real browser: finding, permalinks, copying, on a phone."""

import re

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.model.command import CommandKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import ERROR, INFO, LogBlock
from servers.browser import OpenPage
from servers.console import PipedReports

pytestmark = pytest.mark.browser

CURRENT_IS_VISIBLE = """() => {
    const [list, line] = [document.querySelector("#lines"), document.querySelector("li.current")];
    const [outer, inner] = [list.getBoundingClientRect(), line.getBoundingClientRect()];
    return inner.top >= outer.top && inner.bottom <= outer.bottom;
}"""
SMALLEST_TEXT = """() => Math.min(...[...document.querySelectorAll(".lines code")].map(
    (e) => parseFloat(getComputedStyle(e).fontSize)))"""


@pytest.fixture
async def long_log(running: Deployment, cases: UseCases, piped: PipedCaller) -> Deployment:
    """A deployment whose running stage has written 5,000 lines, of which two are errors."""
    blocks = [
        LogBlock(
            index=n,
            log=f"step {n} of the migration, see https://wiki.example/step/{n}",
            severity=ERROR if n in (1234, 4321) else INFO,
            created_at=1,
        )
        for n in range(2, 5001)
    ]
    await cases.logs.checkpoint(StageRun(running.id, "s1"), blocks, completed=False, by=piped)
    return running


async def lines(page: Page) -> list[int]:
    """The numbers of the lines that the page has."""
    ids = await page.locator(".lines li[id]").evaluate_all("all => all.map((e) => e.id)")
    return [int(id.removeprefix("L")) for id in ids]


async def test_a_text_is_found_in_lines_that_the_page_has_not_loaded(
    open_page: OpenPage, long_log: Deployment
) -> None:
    page = await open_page(f"/deployments/{long_log.id}")
    assert (await lines(page))[0] == 4001
    find, count = page.get_by_label("Find in log"), page.get_by_test_id("log-matches")
    await find.fill("Step 77")
    await expect(count).to_have_text("1 of 11")
    await expect(page.locator("li.current")).to_have_id("L77")
    assert await page.evaluate(CURRENT_IS_VISIBLE)
    await expect(find).to_be_focused()
    await find.press("Shift+Enter")
    await expect(count).to_have_text("11 of 11")
    await expect(page.locator("li.current")).to_have_id("L779")
    await find.press("Enter")
    await expect(count).to_have_text("1 of 11")
    await page.get_by_test_id("log-only-matches").click()
    await expect(page.get_by_test_id("log-line")).to_have_count(11)
    # The address shows the same lines to somebody else.
    other = await open_page(page.url.removeprefix(page.url.split("/deployments")[0]))
    await expect(other.get_by_test_id("log-line")).to_have_count(11)
    await expect(other.locator(".lines mark").first).to_have_text("step 77")
    await find.fill("nothing like this")
    await expect(count).to_have_text("No line contains it")
    await page.get_by_role("link", name="Clear").click()
    await expect(find).to_have_value("")
    await expect(page.locator("#L5000")).to_be_attached()
    assert await page.locator("#lines").evaluate(
        "e => e.scrollHeight - e.scrollTop - e.clientHeight < 4"
    )


async def test_a_space_after_the_text_is_part_of_what_is_found(
    open_page: OpenPage, long_log: Deployment
) -> None:
    page = await open_page(f"/deployments/{long_log.id}")
    find, count = page.get_by_label("Find in log"), page.get_by_test_id("log-matches")
    await find.fill("step 77 ")
    await expect(count).to_have_text("1 of 1")
    await expect(page.locator("li.current")).to_have_id("L77")
    await find.press("Enter")
    await expect(count).to_have_text("1 of 1")
    await expect(find).to_have_value("step 77 ")
    await find.fill("   ")
    await expect(count).to_have_count(0)


async def test_errors_only_and_earlier_lines(
    open_page: OpenPage, long_log: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{long_log.id}")
    await page.get_by_test_id("log-only-errors").click()
    await expect(page.locator(".lines li[id]")).to_have_count(2)
    assert await lines(page) == [1234, 4321]
    # Lines that arrive are filtered as well.
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await reports.stage(long_log, "s1", StageStatus.RUNNING, "still there")
    await page.get_by_test_id("log-only-errors").click()
    await expect(page.locator(".lines li[id]")).to_have_count(1000)
    await page.get_by_text("Show earlier lines").click()
    await expect(page.locator(".lines li[id]")).to_have_count(2000)
    assert await lines(page) == list(range(3001, 5001))
    await page.goto(f"{page.url.split('?')[0]}?from=1")
    assert await lines(page) == list(range(1, 1001))
    await page.get_by_text("Show later lines").click()
    await expect(page.locator(".lines li[id]")).to_have_count(2000)
    assert await lines(page) == list(range(1, 2001))


async def test_lines_are_chosen_linked_and_copied_without_their_numbers(
    open_page: OpenPage, long_log: Deployment
) -> None:
    allowed = ["clipboard-read", "clipboard-write"]
    # A link without a window of its own leads to lines far above the end.
    page = await open_page(f"/deployments/{long_log.id}#L10-L12", permissions=allowed)
    await expect(page.locator("li.chosen")).to_have_count(3)
    await expect(page.locator("#L10")).to_be_in_viewport()
    await expect(page.get_by_test_id("log-chosen")).to_contain_text("Lines 10 to 12")
    await page.locator("#L20 .n").click()
    await page.locator("#L22 .n").click(modifiers=["Shift"])
    assert page.url.endswith("#L20-L22")
    clipboard = "() => navigator.clipboard.readText()"
    await page.get_by_role("button", name="Copy text").click()
    copied = await page.evaluate(clipboard)
    assert copied.splitlines() == [
        f"step {n} of the migration, see https://wiki.example/step/{n}" for n in (20, 21, 22)
    ]
    await page.get_by_role("button", name="Copy link").click()
    link = await page.evaluate(clipboard)
    assert re.search(r"\?.*at=20-22.*#L20-L22$", link)
    other = await open_page(link[link.index("/deployments") :], permissions=allowed)
    await expect(other.locator("li.chosen")).to_have_count(3)
    # Selecting with the mouse copies neither numbers nor times.
    await other.evaluate(
        """() => getSelection().setBaseAndExtent(
            document.querySelector("#L20"), 0, document.querySelector("#L22"), 3)"""
    )
    await other.keyboard.press("Control+C")
    copied = await other.evaluate(clipboard)
    assert [line for line in copied.splitlines() if line] == [
        f"step {n} of the migration, see https://wiki.example/step/{n}" for n in (20, 21, 22)
    ]
    href = await other.locator("#L20 code a").get_attribute("href")
    assert href == "https://wiki.example/step/20"


async def test_a_stage_that_wrote_nothing_has_no_tools_for_its_log(
    open_page: OpenPage, deployment: Deployment, reports: PipedReports
) -> None:
    await reports.deployment(deployment, DeploymentStatus.RUNNING)
    await reports.stage(deployment, "s1", StageStatus.RUNNING)
    page = await open_page(f"/deployments/{deployment.id}?stage=s1")
    await expect(page.get_by_test_id("log-find")).to_be_visible()
    await reports.stage(deployment, "s1", StageStatus.SUCCESS)
    await reports.deployment(deployment, DeploymentStatus.CANCELLED)
    await page.reload()
    await expect(page.get_by_text("The stage wrote nothing.")).to_be_visible()
    await expect(page.get_by_test_id("log-find")).to_be_hidden()
    await expect(page.get_by_role("link", name="Download")).to_have_count(0)


async def test_permalinks_and_finding_work_without_scripts(
    open_page: OpenPage, long_log: Deployment
) -> None:
    page = await open_page(
        f"/deployments/{long_log.id}?stage=s1&at=20-22#L20-L22", java_script_enabled=False
    )
    await expect(page.locator("#L20")).to_be_in_viewport()
    await expect(page.locator("li.chosen")).to_have_count(3)
    await page.get_by_label("Find in log").fill("step 77")
    await page.get_by_role("button", name="Find").click()
    await expect(page.get_by_test_id("log-matches")).to_have_text("1 of 11")
    await page.get_by_role("link", name="Next match").click()
    await expect(page.get_by_test_id("log-matches")).to_have_text("2 of 11")
    await expect(page.locator("li.current")).to_have_id("L770")
    await page.get_by_test_id("log-only-errors").click()
    await page.get_by_role("link", name="Clear").click()
    await expect(page.get_by_test_id("log-line")).to_have_count(2)
    async with page.expect_download() as downloading:
        await page.get_by_role("link", name="Download").click()
    download = await downloading.value
    assert download.suggested_filename.startswith("cart-K8S_CANARY_ROLLOUT-")


async def test_a_phone_approves_cancels_and_reads_a_log(
    open_page: OpenPage,
    long_log: Deployment,
    reports: PipedReports,
    cases: UseCases,
    piped: PipedCaller,
) -> None:
    await reports.stage(long_log, "s1", StageStatus.SUCCESS)
    await reports.stage(long_log, "s2", StageStatus.RUNNING)
    page = await open_page(
        f"/deployments/{long_log.id}",
        viewport={"width": 390, "height": 844},
        is_mobile=True,
        has_touch=True,
    )
    overflow = "() => document.documentElement.scrollWidth - innerWidth"
    approve = page.get_by_test_id("approve-button")
    await expect(approve).to_be_in_viewport()
    for button in (approve, page.get_by_test_id("cancel-button")):
        box = await button.bounding_box()
        assert box
        # Wide enough for a thumb.
        assert box["width"] > 300
        assert box["height"] >= 34
    await approve.tap()
    await expect(page.get_by_test_id("notice")).to_contain_text("approval is requested")
    await page.locator("[data-stage-id=s1]").tap()
    await expect(page.get_by_test_id("log")).to_have_attribute(
        "aria-label", "Log of K8S_CANARY_ROLLOUT"
    )
    await page.get_by_label("Find in log").fill("step 77")
    await expect(page.get_by_test_id("log-matches")).to_have_text("1 of 11")
    # Text is large enough, and neither the page nor a line is wider than the screen.
    assert await page.evaluate(SMALLEST_TEXT) >= 13
    assert await page.evaluate(overflow) <= 0
    assert await page.locator("#lines").evaluate("e => e.scrollWidth - e.clientWidth") <= 0
    font = await page.get_by_label("Find in log").evaluate("e => getComputedStyle(e).fontSize")
    # Phones zoom into a field with smaller text.
    assert font == "16px"
    await page.get_by_test_id("cancel-button").tap()
    await page.get_by_role("button", name="Cancel and roll back").tap()
    await expect(page.get_by_test_id("notice")).to_contain_text("cancellation is requested")
    commands = await cases.commands.list_unhandled(by=piped)
    assert {command.type for command in commands} == {
        CommandKind.APPROVE_STAGE,
        CommandKind.CANCEL_DEPLOYMENT,
    }


async def test_escapes_and_markup_in_a_log_do_no_harm(
    open_page: OpenPage, running: Deployment, reports: PipedReports, viewer: User
) -> None:
    await reports.lines(
        running,
        "s1",
        "\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07",
        "\x1b[2J\x1b[1;1H<img src=x onerror=alert(1)>\x1b[31m red",
        "\u202ereversed https://a.example/<script>alert(1)</script>",
        "\x1b" * 50 + "[38;5;" + "9" * 500 + "m" + "x" * 5000,
    )
    page = await open_page(f"/deployments/{running.id}?find=<img", user=viewer)
    await expect(page.get_by_test_id("log-matches")).to_have_text("1 of 1")
    await expect(page.locator(".lines mark")).to_have_text("<img")
    assert await page.locator(".lines :is(img, script)").count() == 0
    links = await page.locator(".lines code a").evaluate_all("all => all.map((e) => e.href)")
    assert links == ["https://a.example/"]
    overflow = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(overflow) == 0


async def test_times_are_switched_off_and_stay_so_in_the_address(
    open_page: OpenPage, running: Deployment
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    time = page.locator("#L1 time")
    await expect(time).to_be_visible()
    await page.get_by_test_id("log-times").click()
    await expect(time).not_to_be_visible()
    assert "times=0" in page.url
    await page.reload()
    await expect(page.locator("#L1 code")).to_be_visible()
    await expect(time).not_to_be_visible()


async def test_the_log_fills_the_screen_until_escape(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await page.get_by_test_id("log-full-screen").click()
    log = page.get_by_test_id("log")
    size = page.viewport_size
    assert size
    assert await log.bounding_box() == {"x": 0, "y": 0, **size}
    # An update keeps it so.
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await expect(log).to_contain_text("Succeeded")
    assert await log.bounding_box() == {"x": 0, "y": 0, **size}
    await page.keyboard.press("Escape")
    box = await log.bounding_box()
    assert box
    assert box["y"] > 0


async def test_all_chosen_lines_are_copied_also_those_that_are_not_loaded(
    open_page: OpenPage, long_log: Deployment, console_url: str
) -> None:
    page = await open_page(
        f"/deployments/{long_log.id}#L4990",
        permissions=["clipboard-read", "clipboard-write"],
    )
    await expect(page.get_by_test_id("log-chosen")).to_contain_text("Line 4990")
    await page.evaluate("location.hash = '#L2-L4990'")
    await expect(page.get_by_test_id("log-chosen")).to_contain_text("Lines 2 to 4990")
    # The first of them are loaded, and the last are not any more.
    await expect(page.locator("#L2")).to_be_attached()
    await expect(page.locator("#L4990")).not_to_be_attached()
    await page.get_by_role("button", name="Copy text").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("4,989 lines copied")
    copied = (await page.evaluate("navigator.clipboard.readText()")).split("\n")
    assert len(copied) == 4989
    assert copied[0] == "step 2 of the migration, see https://wiki.example/step/2"
    assert copied[-1].startswith("step 4990 ")


async def test_the_number_of_matches_follows_the_stream(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    page = await open_page(f"/deployments/{running.id}?find=line")
    await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    count = page.get_by_test_id("log-matches")
    await expect(count).to_have_text("1 of 1")
    await reports.lines(running, "s1", "line 2", "nothing", "line 4")
    await expect(count).to_have_text("1 of 3")
    await page.locator("[data-match=next]").click()
    await expect(count).to_have_text("2 of 3")
    await expect(page.locator("li.current")).to_have_id("L2")
    # The first match of all appears while somebody looks for it.
    await page.get_by_label("Find in log").fill("done")
    await expect(count).to_have_text("No line contains it")
    await expect(page.locator("[data-match=next]")).not_to_be_visible()
    await reports.lines(running, "s1", "all done")
    await expect(count).to_have_text("1 of 1")
    await expect(page.locator("[data-match=next]")).to_be_visible()


@pytest.mark.parametrize("scripts", [True, False])
async def test_lines_wrap_until_switched_off_and_stay_so_in_the_address(
    *, scripts: bool, open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    await reports.lines(running, "s1", "word " * 400)
    page = await open_page(f"/deployments/{running.id}", java_script_enabled=scripts)
    code = page.locator("#L2 code")
    wrapped = await code.bounding_box()
    await page.get_by_test_id("log-wrap").click()
    await expect(page.locator("#lines")).to_have_class(re.compile("nowrap"))
    assert "wrap=0" in page.url
    await page.reload()
    flat = await code.bounding_box()
    assert wrapped
    assert flat
    assert flat["height"] < wrapped["height"] / 3


async def test_the_output_of_a_terminal_looks_as_in_a_terminal_and_is_copied_as_text(
    open_page: OpenPage, running: Deployment, reports: PipedReports
) -> None:
    await reports.lines(
        running,
        "s1",
        "\x1b[31mred\x1b[0m \x1b[1;32mbold  green\x1b[0m plain",
        "10 %\r50 %\r100 % done",
        "\x1b[7mreversed\x1b[27m and \x1b[38;5;196mone of 256\x1b[0m",
    )
    allowed = ["clipboard-read", "clipboard-write"]
    page = await open_page(f"/deployments/{running.id}#L2-L4", permissions=allowed)
    red, green = page.locator("#L2 code span").nth(0), page.locator("#L2 code span").nth(1)
    colour = "e => getComputedStyle(e).color"
    plain = await page.locator("#L2 code").evaluate(colour)
    assert len({plain, await red.evaluate(colour), await green.evaluate(colour)}) == 3
    assert int(await green.evaluate("e => getComputedStyle(e).fontWeight")) >= 600
    await expect(page.locator("#L3 code")).to_have_text("100 % done")
    await page.get_by_role("button", name="Copy text").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("copied")
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.split("\n") == [
        "red bold  green plain",
        "100 % done",
        "reversed and one of 256",
    ]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scripts", [True, False])
async def test_the_first_error_of_a_failed_stage_is_pinned_above_its_log(
    *,
    width: int,
    scripts: bool,
    open_page: OpenPage,
    running: Deployment,
    reports: PipedReports,
) -> None:
    path, size = f"/deployments/{running.id}", {"width": width, "height": 800}
    cause = "ERROR: cannot find module 'tax-rates' <b>" + "x" * 600
    await reports.lines(running, "s1", *(f"step {n}" for n in range(2, 1500)), cause)
    await reports.lines(running, "s1", *(f"    at resolve ({n})" for n in range(100)))
    page = await open_page(
        path,
        viewport=size,
        java_script_enabled=scripts,
        permissions=["clipboard-read", "clipboard-write"],
    )
    error = page.get_by_test_id("first-error")
    # While the stage runs, nothing has failed.
    await expect(page.get_by_test_id("log-line").last).to_contain_text("at resolve (99)")
    await expect(error).to_have_count(0)
    if scripts:
        await expect(page.get_by_test_id("conn-dot")).to_have_text("Live")
    await reports.stage(running, "s1", StageStatus.FAILURE, "the script exited with code 1")
    await reports.deployment(running, DeploymentStatus.FAILURE)
    if not scripts:
        await page.reload()
    await expect(page.get_by_test_id("dep-status").first).to_have_text("Failed")
    await expect(error).to_contain_text("in line 1,500")
    await expect(error.locator("pre b")).to_contain_text("cannot find module 'tax-rates' <b>")
    await expect(error.locator("pre")).to_contain_text("step 1499")
    await expect(error.locator("pre")).to_contain_text("at resolve (5)")
    excerpt = (await error.locator("pre").inner_text()).splitlines()
    assert excerpt[1:5:2] == ["step 1499", "    at resolve (0)"], "each line is a line of its own"
    root = "document.documentElement"
    assert await page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") == 0
    if scripts:
        await error.get_by_role("button", name="Copy as Markdown").click()
        await expect(page.get_by_test_id("toast")).to_contain_text("copied")
        copied = str(await page.evaluate("navigator.clipboard.readText()"))
        assert copied.startswith("**cart: K8S_CANARY_ROLLOUT failed**: the script exited")
        assert f"https://pipecd.example{path}?stage=s1&at=1500#L1500" in copied
    await page.get_by_test_id("show-error").click()
    await expect(page.locator("#L1500")).to_be_in_viewport()
    await expect(page.locator("li.chosen")).to_have_count(1)
