# SPDX-License-Identifier: Apache-2.0
"""axe, which finds what readers with a disability could not use on a page."""

from functools import cache
from pathlib import Path

from playwright.async_api import Locator, Page

from servers import programs

_RUN = """(part) => axe.run(part ?? document).then((found) => found.violations.map(
    (v) => `${v.id}: ${v.nodes.map((n) => n.html.slice(0, 200)).join(" | ")}`))"""


@cache
def _source() -> str:
    return Path(programs.built_program("axe")).read_text()


async def violations(page: Page, part: Locator | None = None) -> list[str]:
    """What axe finds on the page, or in a part of it; skips the test where axe is not installed."""
    try:
        source = _source()
    except programs.NotInstalled as e:
        programs.skip_or_fail(e)
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(source)
    return await (part.evaluate(_RUN) if part else page.evaluate(_RUN))
