# SPDX-License-Identifier: Apache-2.0
"""The console shows a canary on a cloud: its pipeline, its traffic and what runs."""

from functools import partial
from pathlib import Path

import pytest
from playwright.async_api import expect

from pipecd.model.deployment import DeploymentStatus
from servers import browser
from servers.amazon import Amazon
from servers.clouds import SECONDS, Cloud, add_application, open_cloud
from servers.control_plane import ServedControlPlane, StartControlPlane
from servers.deployment_watch import DeploymentWatch
from servers.origin import Origin
from servers.piped import killed_piped
from servers.polling import eventually

# What a stage shows, and what the resources show.
SHOWN = {
    "cloudrun": ("-v2-", ("traffic 90% · gcr.io/example/shop:v1", "traffic 10% · ")),
    "ecs": (
        "primary 90%, canary 10%",
        ("PRIMARY · scale 100% · web:1", "ACTIVE · scale 50% · web:2", "RUNNING"),
    ),
    "lambda": ("version 2 10%, version 1 90%", ("traffic version 2 10%, version 1 90%",)),
}
# What the live state of a canary has.
CANARY = {"cloudrun": "10%", "ecs": "50%", "lambda": "version 2 10%, version 1 90%"}


@pytest.fixture(params=["first", "second"])
def generation(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=sorted(SHOWN))
def cloud(request: pytest.FixtureRequest, tmp_path: Path, amazon: Amazon, generation: str) -> Cloud:
    return open_cloud(request.param, tmp_path, amazon, request).with_approval(generation)


async def has_canary(plane: ServedControlPlane, application: str, value: str) -> bool:
    """Reports whether the metadata of a live resource has a value."""
    snapshot = await plane.live_state(application)
    resources = snapshot.application_live_state.resources if snapshot else []
    return any(value in each.resource_metadata.values() for each in resources)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_canary_that_waits_for_an_approval_is_shown(
    start_plane: StartControlPlane,
    origin: Origin,
    cloud: Cloud,
    generation: str,
    tmp_path: Path,
) -> None:
    stage_text, resource_texts = SHOWN[cloud.plugin]
    origin.commit(cloud.files("v1"))
    async with start_plane() as plane, browser.chromium() as chromium:
        config, application = await add_application(plane, origin, cloud, generation, tmp_path)
        watch = DeploymentWatch(plane)
        async with killed_piped(config, "--log-level=error"):
            first = await watch.ended(1, seconds=SECONDS)
            assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason
            origin.commit(cloud.files("v2"))
            deployment, _ = await watch.approval()
            assert cloud.state() == cloud.canary.state
            canary = CANARY[cloud.plugin]
            await eventually(partial(has_canary, plane, application, canary), SECONDS)

        context = await chromium.new_context()
        token = plane.cases.sessions.issue(plane.admin)
        url = f"http://{plane.address}"
        await context.add_cookies(
            [{"name": "token", "value": token, "url": url, "sameSite": "Strict"}]
        )
        page = await context.new_page()
        await page.goto(f"{url}/deployments/{deployment}")
        await page.screenshot(path=tmp_path / "deployment.png", full_page=True)
        await expect(page.get_by_test_id("pipeline")).to_contain_text(stage_text)
        version = page.get_by_test_id("version")
        await expect(version).to_contain_text("v1 → v2")
        await expect(version).not_to_contain_text("The first successful deployment")
        await page.goto(f"{url}/applications/{application}/live")
        await page.screenshot(path=tmp_path / "live.png", full_page=True)
        for text in resource_texts:
            nodes = page.get_by_test_id("live-node").filter(has_text=text)
            await expect(nodes).not_to_have_count(0)
