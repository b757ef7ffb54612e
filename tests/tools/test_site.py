# SPDX-License-Identifier: Apache-2.0
"""The documentation site is built without a broken link, and its reference has what exists."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.schema import kinds_of
from pipecd.controlplane.api.rest.routes import ROUTES

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "site"


def load(name: str) -> Any:
    """Loads a module of the tool, which is a program and not a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(TOOL))
        spec = importlib.util.spec_from_file_location(name, TOOL / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def metric_names_in(file: Path) -> set[str]:
    """The names that a file passes to the constructors of metrics, where they are plain texts."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            first = node.args[0] if node.args else None
            text = first.value if isinstance(first, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(
                r"Counter|Gauge|Histogram|\w+MetricFamily|tally", called
            ):
                names.add(text.removesuffix("_total"))
    return names


def test_the_reference_has_every_metric_that_the_code_declares() -> None:
    reference = load("reference")
    listed = re.findall(r"^\| `(\w+)`", reference.metrics_page(), re.M)
    files = (ROOT / "src" / "pipecd").rglob("*.py")
    declared = {
        name for file in files if "proto" not in file.parts for name in metric_names_in(file)
    }
    assert declared
    assert declared - {name.removesuffix("_total") for name in listed} == set()


def test_the_reference_has_every_kind_stage_and_endpoint() -> None:
    reference = load("reference")
    catalog, pages = load_catalog(), reference.reference_pages()
    assert {f"reference/{kind}.md" for kind in kinds_of(catalog)} <= pages.keys()
    stages = set(re.findall(r"^## `(\w+)`", pages["reference/stages.md"], re.M))
    assert stages == set(catalog.stages)
    endpoints = set(re.findall(r"^## `(\w+ [^`]+)`", pages["reference/rest.md"], re.M))
    assert endpoints == {f"{route.method} {route.path}" for route in ROUTES}


def test_every_page_has_a_title_of_its_own() -> None:
    pages = list(load("reference").reference_pages().values())
    pages += [page.read_text() for page in (ROOT / "docs" / "guide").glob("*.md")]
    titles = [text.partition("\n")[0] for text in pages]
    assert sorted(titles) == sorted(set(titles))


def test_the_reference_of_a_kind_begins_with_its_spec() -> None:
    pages = load("reference").reference_pages()
    kinds = [kind for kind in kinds_of(load_catalog()) if kind != "Piped"]
    first = [re.findall(r"^## (.*)$", pages[f"reference/{kind}.md"], re.M)[0] for kind in kinds]
    assert set(first) == {"spec"}


def test_links_that_leave_the_documentation_lead_to_their_copies() -> None:
    rewrite = load("build").rewrite_links
    text = (
        "[a](../../ARCHITECTURE.md#rules) [b](stages.md) `[c](x.md)` [d](../../examples/README.md)"
    )
    assert rewrite(text, "docs/guide/x.md", "guide/x.md") == (
        "[a](../project/architecture.md#rules) [b](stages.md) `[c](x.md)` [d](../examples/index.md)"
    )


@pytest.mark.slow
def test_the_site_has_no_broken_link_and_a_search() -> None:
    built = subprocess.run(
        [sys.executable, str(TOOL / "build.py")], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    site = ROOT / "build" / "docs" / "site"
    index = json.loads((site / "search.json").read_text())
    assert any("K8S_CANARY_ROLLOUT" in json.dumps(item) for item in index["items"])
    # A closed network has no other servers: pages load nothing from elsewhere.
    first = (site / "index.html").read_text()
    assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', first) == []
    broken = load("build").broken_links
    (site / "index.html").write_text('<a href="nowhere.html">x</a><a href="concepts.html#no">y</a>')
    assert broken(site)[:2] == ["index.html: nowhere.html", "index.html: concepts.html#no"]
