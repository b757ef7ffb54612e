# SPDX-License-Identifier: Apache-2.0
"""axe finds nothing on any page."""

from pathlib import Path

import pytest
from playwright.async_api import Page

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.usecases import UseCases
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import StageStatus
from pipecd.proto.model import application_pb2 as model
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment
from servers import programs
from servers.browser import OpenPage
from servers.console import PipedReports
from servers.live_states import DRIFT, resources, snapshot

pytestmark = pytest.mark.browser

RUN = """axe.run(document).then((found) => found.violations.map(
    (v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 200)).join(" | ")}`))"""


async def violations(page: Page, axe: str) -> list[str]:
    return await page.evaluate(f"{axe}; {RUN}")


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe."""
    try:
        return Path(programs.built_program("axe")).read_text()
    except programs.NotInstalled as e:
        programs.skip_or_fail(e)


@pytest.fixture
async def live_state(cases: UseCases, piped: PipedCaller, application: Application) -> Application:
    """An application with live resources that differ from Git."""
    await cases.application_reports.report_unregistered(
        [
            ApplicationInfo(name=name, repo_id="site", path=name, config_filename="app.pipecd.yaml")
            for name in ("api", "web")
        ],
        by=piped,
    )
    state = ApplicationSyncState(
        status=model.ApplicationSyncStatus.ValueType(SyncStatus.OUT_OF_SYNC),
        reason=DRIFT,
        timestamp=1,
    )
    await cases.application_reports.report_sync_state(application.id, state, by=piped)
    for broken in (False, True):
        found = snapshot(application, *resources(3, 6, broken=broken))
        await cases.livestate.report(found, by=piped)
    return application


# Every page is visited at every width in both themes, each pair by one test. Every run has the two
# that differ most.
EVERY_RUN = {(1440, "light"), (390, "dark")}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("width", "theme"),
    [
        pytest.param(width, theme, marks=() if (width, theme) in EVERY_RUN else pytest.mark.long)
        for width in (1440, 1024, 768, 390)
        for theme in ("light", "dark")
    ],
)
async def test_axe_finds_nothing_on_any_page(
    *,
    width: int,
    theme: str,
    axe: str,
    open_page: OpenPage,
    console_url: str,
    running: Deployment,
    reports: PipedReports,
    live_state: Application,
) -> None:
    await reports.stage(running, "s1", StageStatus.SUCCESS)
    await reports.stage(running, "s2", StageStatus.RUNNING)
    page = await open_page(
        "/login?switch=1", viewport={"width": width, "height": 900}, color_scheme=theme
    )
    application = f"/applications/{live_state.id}"
    for path in (
        "/login?switch=1&expired=page",
        "/overview",
        "/applications",
        "/applications?health=unhealthy",
        "/applications/add",
        f"{application}?diff=split",
        f"{application}/live?res=osaka%2Fweb-1",
        f"{application}/live?view=graph",
        f"{application}/encrypt",
        f"{application}/settings",
        "/deployments",
        f"/deployments/{running.id}",
        f"/deployments/{running.id}?tab=changes",
        f"/deployments/{running.id}?tab=timeline",
        f"/deployments/{running.id}?stage=s1&find=line&only=matches",
        "/chains",
        "/deployment-traces",
        "/events",
        "/insights",
        "/search?q=cart",
        "/help",
        "/help/console",
        "/settings/piped",
        f"/settings/piped/{live_state.piped_id}",
        "/settings/api-key",
        "/settings/project",
        "/docs/api",
        "/nowhere",
    ):
        await page.goto(console_url + path)
        assert await violations(page, axe) == [], path
