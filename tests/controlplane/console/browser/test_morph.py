# SPDX-License-Identifier: Apache-2.0
"""Morphing one version of a page into another gives exactly the other, and keeps what it can."""

import pytest
from playwright.async_api import Page

from servers.browser import OpenPage

pytestmark = pytest.mark.browser

# A generator with a seed builds trees of elements and texts, of which some have ids of a small set.
MORPH_RANDOM_TREES = """async ([address, seed, count]) => {
    const { morph } = await import(address);
    let state = seed;
    const random = (below) => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return Math.floor(state / 4294967296 * below);
    };
    const build = (depth, ids) => {
        const node = document.createElement(["div", "p", "span", "li"][random(4)]);
        if (random(2) && ids.length) node.id = ids.splice(random(ids.length), 1)[0];
        if (random(3) === 0) node.className = "c" + random(3);
        for (let n = depth ? random(5) : 0; n > 0; n -= 1) {
            node.append(random(4) ? build(depth - 1, ids) : document.createTextNode("t" + random(4)));
        }
        return node;
    };
    const tree = () => {
        const root = document.createElement("main");
        const ids = [..."abcdefghijkl"];
        for (let n = random(6); n > 0; n -= 1) root.append(build(3, ids));
        return root;
    };
    const different = [];
    for (let n = 0; n < count; n += 1) {
        const [from, to] = [tree(), tree()];
        const before = from.outerHTML;
        const target = to.cloneNode(true);
        morph(from, to);
        if (!from.isEqualNode(target)) different.push([before, target.outerHTML, from.outerHTML]);
    }
    return different;
}"""

KEPT = """async ([address, before, after, kept]) => {
    const { morph } = await import(address);
    const read = (html) => new DOMParser().parseFromString(`<main>${html}</main>`, "text/html").body.firstChild;
    const [from, to] = [read(before), read(after)];
    const elements = kept.map((selector) => from.querySelector(selector));
    morph(from, to);
    return elements.map((element) => from.contains(element));
}"""


async def script_address(page: Page) -> str:
    return await page.locator("script[type=module]").get_attribute("src") or ""


@pytest.mark.parametrize("seed", [1, 2026])
async def test_the_result_equals_the_new_version(open_page: OpenPage, seed: int) -> None:
    page = await open_page("/help")
    address = await script_address(page)
    assert await page.evaluate(MORPH_RANDOM_TREES, [address, seed, 500]) == []


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        pytest.param(
            "<p id=a>1</p><p id=b>2</p>",
            "<p id=new>0</p><p id=a>1</p><p id=b>3</p>",
            ["#a", "#b"],
            id="a part that appears above others",
        ),
        pytest.param(
            "<p id=a>1</p><p id=b>2</p><p id=c>3</p>",
            "<p id=c>3</p><p id=a>1</p>",
            ["#a", "#c"],
            id="parts that change places",
        ),
        pytest.param(
            "<form id=f><input name=x></form>",
            "<form id=f><input name=x class=wrong></form>",
            ["input"],
            id="a field without an id whose place is the same",
        ),
    ],
)
async def test_elements_stay_the_same(
    open_page: OpenPage, before: str, after: str, kept: list[str]
) -> None:
    page = await open_page("/help")
    address = await script_address(page)
    stayed = await page.evaluate(KEPT, [address, before, after, kept])
    assert stayed == [True] * len(kept)
