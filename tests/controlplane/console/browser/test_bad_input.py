# SPDX-License-Identifier: Apache-2.0
"""Addresses that nobody meant: the page stays whole and says what happened.

Sessions, rights and streams that are lost meanwhile are in `test_words`, `test_live_updates` and
`test_commands`, terminal escapes in `test_log`, the longest names in `test_pages`.
"""

import pytest
from playwright.async_api import Page, expect

from pipecd.controlplane.auth.subject import User
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.browser import OpenPage
from servers.filled_project import FilledProject

pytestmark = pytest.mark.browser

UNKNOWN = "00000000-0000-4000-8000-000000000000"
LONG = "n" * 6000
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
        "/overview",
        "/applications",
        f"/applications/{running.application_id}",
        f"/applications/{running.application_id}/live",
        "/applications/add",
        "/deployments",
        f"/deployments/{running.id}",
        "/chains",
        "/deployment-traces",
        "/events",
        "/insights",
        "/search",
        "/settings/piped",
        "/settings/api-key",
        "/settings/project",
    ):
        for query in (nonsense, f"q={LONG}"):
            response = await page.goto(f"{console_url}{path}?{query}")
            assert response is not None
            # A cursor that the server has not written is refused in words.
            assert response.status in (200, 422), path
            assert await page.locator("h1").count() == 1, path
