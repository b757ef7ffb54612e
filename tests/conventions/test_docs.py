# SPDX-License-Identifier: Apache-2.0
"""The documentation matches the code: samples are valid, links resolve, all keys are named."""

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from pipecd.config.application import ApplicationSpec
from pipecd.config.catalog import load_catalog
from pipecd.config.controlplane import ControlPlaneSpec
from pipecd.config.piped import PipedSpec, V0PipedSpec
from pipecd.config.read import read_file
from pipecd.config.spec import Spec
from pipecd.piped.pluginhost.local import GROUP, builtin_plugins
from pipecd.plugins.kubernetes.tools import DOWNLOADS as KUBERNETES_TOOLS
from pipecd.plugins.scriptrun.plugin import script_environment
from pipecd.plugins.terraform.tools import DOWNLOADS as TERRAFORM_TOOLS
from pipecd.proto.model.deployment_pb2 import Deployment as DeploymentMessage
from pipecd.sdk import Deployment
from servers.config_keys import keys_of

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guide"
CATALOG = load_catalog()
FENCE = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.M | re.S)
# The manifest of a Cloud Run service, which its own test deploys.
OF_KNATIVE = "apiVersion: serving.knative.dev/"
EXPECTS_WARNINGS = "<!-- expects warnings -->\n"


def markdown_files() -> list[Path]:
    """Every page that is, or is about to be, part of the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted({ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()})


PAGES = markdown_files()
GUIDE_PAGES = sorted(GUIDES.glob("*.md"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def words(page: Path) -> set[str]:
    """The names that a page sets in code, outside of its samples."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose(page)))))


@dataclass(frozen=True)
class Sample:
    """A configuration file in a page."""

    page: Path
    line: int
    text: str
    expects_warnings: bool


def samples() -> Iterator[Sample]:
    for page in (*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"):
        text = page.read_text()
        for block in FENCE.finditer(text):
            is_ours = re.search(r"^kind:", block[3], re.M) and OF_KNATIVE not in block[3]
            if block[2] in ("yaml", "yml") and is_ours:
                line = text[: block.start()].count("\n") + 2
                marked = text[: block.start()].endswith(EXPECTS_WARNINGS)
                yield Sample(page, line, block[3], marked)


@pytest.mark.parametrize(
    "sample", [pytest.param(s, id=f"{name_of(s.page)}:{s.line}") for s in samples()]
)
def test_a_sample_is_read_as_it_is_marked(sample: Sample) -> None:
    read = read_file(sample.text, file=f"{name_of(sample.page)}:{sample.line}", catalog=CATALOG)
    if sample.expects_warnings:
        assert read.warnings, "the sample is marked and gives no warning: remove the mark"
    else:
        assert read.warnings == ()


def anchors(page: Path) -> set[str]:
    """The places of a page that a link can name, as hosts of repositories make them."""
    titles = re.findall(r"^#+ +(.+?) *$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", prose(page))):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost: list[str] = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_every_guide_can_be_reached_from_the_first_page() -> None:
    reached, fresh = set[Path](), {ROOT / "README.md"}
    while fresh:
        reached |= fresh
        targets = {
            (p.parent / link.partition("#")[0]).resolve() for p in fresh for link in links(p)
        }
        fresh = {t for t in targets if t.suffix == ".md"} - reached
    assert {name_of(page) for page in set(GUIDE_PAGES) - reached} == set()


@pytest.mark.parametrize(
    ("spec", "guide"),
    [
        pytest.param(ApplicationSpec, "configuration.md", id="an application"),
        pytest.param(PipedSpec, "piped-configuration.md", id="a piped"),
        pytest.param(V0PipedSpec, "piped-configuration.md", id="a piped of the first generation"),
        pytest.param(ControlPlaneSpec, "control-plane-configuration.md", id="a control plane"),
    ],
)
def test_the_guide_names_every_key_of(spec: type[Spec], guide: str) -> None:
    assert set(keys_of(spec)) - words(GUIDES / guide) == set()


def test_every_stage_that_a_file_may_name_is_in_a_guide() -> None:
    documented = {word for page in GUIDE_PAGES for word in words(page)}
    assert {*CATALOG.stages, *CATALOG.v0_stages} - documented == set()


STAGES = GUIDES / "stages.md"
GUIDED = prose(STAGES)


def stages_in(text: str) -> set[str]:
    return set(re.findall(r"`([A-Z][A-Z0-9_]+)`", text)) - set(re.findall(r"`(SR_\w+)`", text))


def runnable_stages() -> set[str]:
    """The stages that pipelines may name and that some plugin of this installation carries out."""
    carried_out = {stage.name for load in builtin_plugins().values() for stage in load().stages}
    older = {name for name, stage in CATALOG.v0_stages.items() if stage.name in carried_out}
    return carried_out & CATALOG.stages.keys() | older


def test_the_guide_has_every_stage_and_every_stage_runs() -> None:
    every = {*CATALOG.stages, *CATALOG.v0_stages}
    assert runnable_stages() == every
    assert stages_in(GUIDED) & every == every


def test_the_guide_names_every_option_of_the_stages_that_run() -> None:
    options = {key for stage in runnable_stages() & CATALOG.stages.keys() for key in keys_of(CATALOG.stages[stage])}  # fmt: skip
    assert options - words(STAGES) == set()


def test_the_guide_names_the_plugin_of_every_stage() -> None:
    named = words(STAGES)
    assert {entry.name for entry in entry_points(group=GROUP)} - named == set()
    assert {plugin.name for plugin in CATALOG.plugins} - named == set()


def test_the_guide_names_every_variable_of_a_script() -> None:
    message = DeploymentMessage(labels={"name": "x"})
    given = script_environment(Deployment.of(message), "commit", is_rollback=False)
    assert set(given) == set(re.findall(r"`(SR_\w+)`", GUIDED))


def test_decisions_are_numbered_without_gaps() -> None:
    files = sorted(p for p in (ROOT / "docs" / "decisions").glob("*.md") if p.name != "README.md")
    assert [p.name[:5] for p in files] == [f"{n:04}-" for n in range(1, len(files) + 1)]
    titles = [p.read_text().splitlines()[0] for p in files]
    assert [re.match(r"# \d+\. ", t) and int(t.split()[1][:-1]) for t in titles] == [
        *range(1, len(files) + 1)
    ]


def test_the_guide_lists_every_background_job() -> None:
    jobs = (ROOT / "src" / "pipecd" / "controlplane" / "jobs" / "__init__.py").read_text()
    table = (GUIDES / "operations.md").read_text().partition("## Jobs")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `([\w-]+)` \|", table, re.M)
    assert sorted(listed) == sorted(re.findall(r'Job\(\s*"([\w-]+)"', jobs))


def test_the_page_of_closed_networks_names_the_files_of_every_tool() -> None:
    downloads = {**KUBERNETES_TOOLS, **{tool.program: tool for tool in TERRAFORM_TOOLS.values()}}
    files = {
        f"tools/{name}/{tool.version}/{url.rpartition('/')[2]}"
        for name, tool in downloads.items()
        for url in (
            text.format(v=tool.version, os="linux", arch="amd64")
            for text in (tool.url, tool.checksums)
        )
    }
    listed = re.findall(r"`(tools/[^`]+)`", prose(GUIDES / "air-gapped.md"))
    assert set(listed) == files


BROWSER_TESTS = ROOT / "tests" / "controlplane" / "console" / "browser"


def console_rows(heading: str) -> list[list[str]]:
    """The cells of the rows of a table of the page of features."""
    text = (ROOT / "docs" / "status.md").read_text().partition(f"| {heading} |")[2]
    lines = text.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("heading", "count"), [("Must have", 25), ("Beyond that", 15)])
def test_every_feature_of_the_console_names_the_browser_tests_of_it(
    heading: str, count: int
) -> None:
    rows = console_rows(heading)
    assert len(rows) == count
    for feature, state, tests in rows:
        files = re.findall(r"`([^`]+)`", tests)
        # What is not built has a reason instead.
        assert bool(files) is not state.startswith("no: "), feature
        for name in files:
            places = (BROWSER_TESTS / name, ROOT / "tests" / name)
            found = next((place for place in places if place.is_file()), None)
            assert found is not None, f"{feature}: there is no {name}"
            assert "playwright" in found.read_text(), f"{name} drives no browser"


def test_the_first_page_is_one_screen_with_a_picture_and_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 45
    [picture] = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert (ROOT / picture).is_file()
    commands = re.findall(r"^    (\S.*)$", text, re.M)
    assert commands == ["make quickstart", ".venv/bin/pipecd quickstart --break"]
    assert re.search(r"^quickstart:", (ROOT / "Makefile").read_text(), re.M)
    assert re.search(r"^## Where next$", text, re.M)
