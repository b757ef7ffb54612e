# SPDX-License-Identifier: Apache-2.0
"""Every way to stop a deployment or a stage, from a real browser to a real piped and back."""

from pathlib import Path

import pytest
from playwright.async_api import Browser, expect

from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import StartControlPlane, has_running, stage_statuses
from servers.origin import Origin
from servers.samples import CART

pytestmark = pytest.mark.browser

PIPELINE = """\
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with: {{run: echo done, onRollback: echo undone}}
      - name: ANALYSIS
        with:
          duration: 1h
          https: [{{url: "http://{address}/login", interval: 1h, expectedCode: 200}}]
      - name: WAIT
        with: {{duration: 10ms}}
"""
ROLLBACK = "SCRIPT_RUN_ROLLBACK"


@pytest.mark.timeout(240)
async def test_cancel_in_three_modes_and_skip_end_as_they_say(
    chromium: Browser, start_plane: StartControlPlane, tmp_path: Path
) -> None:
    origin = Origin.begin(tmp_path / "origin")
    async with start_plane() as plane:
        pipeline = PIPELINE.format(address=plane.address)
        origin.commit({"cart/app.pipecd.yaml": CART + pipeline})
        piped = await plane.register_piped()
        async with (
            piped.run(origin.remote),
            await chromium.new_context(base_url=f"http://{plane.address}") as context,
        ):
            application = await piped.add_application("cart")
            token = plane.cases.sessions.issue(plane.admin)
            url = f"http://{plane.address}"
            await context.add_cookies(
                [{"name": "token", "value": token, "url": url, "sameSite": "Strict"}]
            )
            page = await context.new_page()
            status = page.get_by_test_id("dep-status").first
            for button, is_rolled_back in (
                ("Cancel", True),
                ("Cancel and roll back", True),
                ("Cancel without rollback", False),
                ("Skip the stage", False),
            ):
                running = await plane.wait_for_deployment(lambda d: has_running(d, "ANALYSIS"))
                await page.goto(f"/deployments/{running.id}")
                is_skip = button.startswith("Skip")
                await page.get_by_test_id("skip-button" if is_skip else "cancel-button").click()
                await page.locator(".head").get_by_role("button", name=button, exact=True).click()
                ended = "Succeeded" if is_skip else "Cancelled"
                await expect(status).to_have_text(ended, timeout=30_000)
                noun = "skip" if is_skip else "cancellation"
                notice = page.get_by_test_id("notice")
                await expect(notice).to_contain_text(f"The {noun} you requested succeeded")
                rollback = page.locator("#rollback .stage")
                await expect(rollback).to_have_count(1 if is_rolled_back else 0)
                done = await plane.deployment(running.id)
                assert DeploymentStatus(done.status).name == ("SUCCESS" if is_skip else "CANCELLED")
                statuses = stage_statuses(done)
                assert f"ANALYSIS {'SKIPPED' if is_skip else 'CANCELLED'}" in statuses
                assert (f"{ROLLBACK} SUCCESS" in statuses) is is_rolled_back, statuses
                # The next one is requested where this one ended.
                await page.get_by_test_id("sync-again").click()
                await page.wait_for_url(f"**/applications/{application}*")
