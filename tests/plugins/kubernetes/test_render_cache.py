# SPDX-License-Identifier: Apache-2.0
"""What was rendered is found again by its content, whatever commit it stands in."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree

import pytest

from pipecd.plugins.kubernetes.config import ChartSources, HelmChart, HelmOptions, ManifestInput
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.sdk import Source
from pipecd.sdk.host import plain_git_variables

OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n"
PROGRAM = """#!/bin/sh
[ "$1" = version ] && echo asked >> {calls}-for-version && echo {version} && exit
echo call >> {calls}
{more}
cat <<-END
{text}END
"""
HOUR = 3600.0


class NoInstaller:
    """A machine that has to have its programs."""

    async def tool(self, name: str, version: str, script: str) -> Path:
        raise AssertionError(f"{name} {version} was to be installed")


@dataclass
class RenderBench:
    """A repository, programs that count how often they render, and a clock."""

    place: Path
    time: float = 0.0
    commits: int = 0
    loader: ManifestLoader = field(init=False)

    def __post_init__(self) -> None:
        self.loader = ManifestLoader(
            ChartSources(), self.place / "k", plain_git_variables, clock=lambda: self.time
        )
        for name in ("helm", "kustomize"):
            self.install(name)

    def install(self, name: str, version: str = "1.2.3", more: str = "") -> None:
        """Puts a program on the machine."""
        program = self.place / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        calls = self.place / "calls"
        program.write_text(PROGRAM.format(version=version, calls=calls, text=OBJECT, more=more))
        program.chmod(0o755)

    def write(self, **files: str) -> None:
        """Writes files of the repository; two underscores stand for a slash, one for a point."""
        for name, text in files.items():
            path = self.place / "repository" / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    async def renders(self, wanted: ManifestInput | None = None, *, release: str = "web") -> int:
        """Renders a new commit in a working copy of its own, and returns how often a program ran."""
        self.commits += 1
        return await self.runs(self.copied(), wanted, release=release, commit=str(self.commits))

    async def renders_after(
        self, file: str, files: Mapping[str, str], wanted: ManifestInput
    ) -> int:
        """Changes one file after a rendering, and returns how often a program runs then."""
        self.write(**files)
        assert await self.renders(wanted) == 1
        assert await self.renders(wanted) == 0
        self.write(**{file: files.get(file, "") + "\n# changed"})
        return await self.renders(wanted)

    def copied(self) -> Path:
        """Returns a new working copy of the repository."""
        copy = self.place / "copies" / ("x" * (1 + self.commits))
        copytree(self.place / "repository", copy, symlinks=True)
        return copy

    async def runs(
        self, copy: Path, wanted: ManifestInput | None, *, release: str = "web", commit: str = "c"
    ) -> int:
        """Loads from a working copy, and returns how often a program ran."""
        before = self.calls
        source = Source(copy / "app", commit, b"", "app.pipecd.yaml", copy / ".pipe")
        order = RenderRequest(source, wanted or ManifestInput(), release, NoInstaller())
        assert [m.name for m in await self.loader.load(order)] == ["one"]
        return self.calls - before

    @property
    def calls(self) -> int:
        return self._lines("calls")

    @property
    def calls_for_version(self) -> int:
        return self._lines("calls-for-version")

    def _lines(self, name: str) -> int:
        file = self.place / name
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RenderBench:
    monkeypatch.setenv("PATH", str(tmp_path / "programs"), prepend=":")
    made = RenderBench(tmp_path)
    made.write(app__app_pipecd_yaml="kind: Application")
    return made


KUSTOMIZED = {
    "app__kustomization_yaml": """
        resources: [../base, own.yaml]
        configMapGenerator: [{name: settings, files: [settings=../base/settings]}]
        patches: [{path: patch.yaml}]
        generators: [generator.yaml]
        helmCharts: [{name: web, repo: https://charts.example.com, version: 1.0.0}]
    """,
    "app__own_yaml": "kind: Own",
    "app__patch_yaml": "kind: Patch",
    "app__generator_yaml": "kind: Generator\nfiles: [generated]",
    "app__generated": "1",
    "app__charts__web__values_yaml": "a: 1",
    "base__kustomization_yaml": "resources: [../deeper]",
    "base__settings": "a=1",
    "deeper__kustomization_yaml": "resources: [deep.yaml]",
    "deeper__deep_yaml": "kind: Deep",
    "deeper__other_yaml": "kind: Other",
    "elsewhere__kustomization_yaml": "kind: Elsewhere",
}
WITH_HELM = ManifestInput(kustomize_options={"enable-helm": ""})


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param("elsewhere__kustomization_yaml", 0, id="another application"),
        pytest.param("app__README_md", 0, id="a file of its directory that nothing names"),
        pytest.param("deeper__other_yaml", 0, id="a file of a base that nothing names"),
        pytest.param("app__kustomization_yaml", 1, id="the kustomization"),
        pytest.param("app__own_yaml", 1, id="a resource"),
        pytest.param("app__patch_yaml", 1, id="a patch"),
        pytest.param("app__generator_yaml", 1, id="a generator"),
        pytest.param("app__generated", 1, id="what a generator names"),
        pytest.param("app__charts__web__values_yaml", 1, id="a chart in the directory"),
        pytest.param("base__settings", 1, id="a file of a base under another name"),
        pytest.param("base__kustomization_yaml", 1, id="a base"),
        pytest.param("deeper__deep_yaml", 1, id="a resource of the base of a base"),
    ],
)
async def test_kustomize_builds_again_when_something_it_reads_changed(
    bench: RenderBench, file: str, expected: int
) -> None:
    assert await bench.renders_after(file, KUSTOMIZED, WITH_HELM) == expected


CHARTED = {
    "charts__web__Chart_yaml": """
        dependencies:
          - {name: library, repository: "file://../library"}
          - {name: db, repository: "https://charts.example.com", version: 1.0.0}
    """,
    "charts__web__templates__one_yaml": "kind: One",
    "charts__library__Chart_yaml": "name: library",
    "charts__other__Chart_yaml": "name: other",
    "app__prod_yaml": "a: 1",
    "app__dev_yaml": "a: 2",
    "app__text": "text",
}
CHART = ManifestInput(
    helm_chart=HelmChart(path="../charts/web"),
    helm_options=HelmOptions(value_files=("prod.yaml",), set_files={"text": "text"}),
)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        pytest.param("charts__other__Chart_yaml", 0, id="another chart"),
        pytest.param("app__dev_yaml", 0, id="values that are not used"),
        pytest.param("charts__web__templates__one_yaml", 1, id="a template"),
        pytest.param("charts__web__templates__two_yaml", 1, id="a new template"),
        pytest.param("charts__library__Chart_yaml", 1, id="a chart that it depends on"),
        pytest.param("app__prod_yaml", 1, id="values"),
        pytest.param("app__text", 1, id="a file that is a value"),
    ],
)
async def test_helm_renders_again_when_something_it_reads_changed(
    bench: RenderBench, file: str, expected: int
) -> None:
    assert await bench.renders_after(file, CHARTED, CHART) == expected


async def test_another_tool_version_option_or_release_is_another_rendering(
    bench: RenderBench,
) -> None:
    bench.write(**CHARTED)
    assert await bench.renders(CHART) == 1
    assert await bench.renders(CHART, release="other") == 1
    assert await bench.renders(CHART.model_copy(update={"namespace": "prod"})) == 1
    bench.install("helm", "4.5.6")
    assert await bench.renders(CHART) == 1
    bench.install("helm")
    assert await bench.renders(CHART) == 0


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def chart(**fields: str) -> ManifestInput:
    return ManifestInput(helm_chart=HelmChart(**fields))  # type: ignore[arg-type]


def values(file: str) -> ManifestInput:
    options = HelmOptions(value_files=(file,))
    return ManifestInput(helm_chart=HelmChart(path="."), helm_options=options)


@pytest.mark.parametrize(
    ("files", "wanted", "depends_on_network"),
    [
        ({}, chart(repository="ours", name="web", version="1.2.3"), False),
        ({}, chart(repository="ours", name="web", version="v1.2.3-rc.1+5"), False),
        ({}, chart(repository="ours", name="web", version="^1.2.3"), True),
        ({}, chart(repository="ours", name="web", version="1.2"), True),
        ({}, chart(repository="ours", name="web"), True),
        ({}, values("https://example.com/values.yaml"), True),
        (
            {"app__Chart_yaml": "dependencies: [{repository: '@ours', version: 1.x}]"},
            chart(path="."),
            True,
        ),
        (
            {"app__requirements_yaml": "dependencies: [{repository: 'https://a', version: 1.0.0}]"},
            chart(path="."),
            False,
        ),
        ({"app__kustomization_yaml": f"resources: ['https://a/b?ref={COMMIT}']"}, None, False),
        ({"app__kustomization_yaml": "resources: ['https://a/b?ref=main']"}, None, True),
        ({"app__kustomization_yaml": "resources: [github.com/a/b]"}, None, True),
        ({"app__kustomization_yaml": "commonAnnotations: {a: 'https://a'}"}, None, False),
        ({"app__kustomization_yaml": "patches: [{path: 'https://a'}]"}, None, True),
        ({"app__kustomization_yaml": "helmCharts: [{name: a, repo: 'https://a'}]"}, None, True),
    ],
)
async def test_what_the_network_decides_is_looked_at_by_each_commit_and_after_an_hour(
    bench: RenderBench,
    files: dict[str, str],
    wanted: ManifestInput | None,
    depends_on_network: bool,
) -> None:
    bench.write(**files)
    copy = bench.copied()
    assert await bench.runs(copy, wanted, commit="a") == 1
    assert await bench.runs(copy, wanted, commit="a") == 0
    assert await bench.runs(copy, wanted, commit="b") == int(depends_on_network)
    bench.time += HOUR
    assert await bench.runs(copy, wanted, commit="a") == int(depends_on_network)


async def test_charts_that_a_program_fetches_into_the_directory_are_no_change(
    bench: RenderBench,
) -> None:
    bench.install("helm", more="mkdir -p charts; date +%N > charts/db.tgz")
    bench.write(app__Chart_yaml="dependencies: [{repository: 'https://a', version: 1.0.0}]")
    copy = bench.copied()
    assert await bench.runs(copy, chart(path=".")) == 1
    assert (copy / "app/charts/db.tgz").exists()
    assert await bench.runs(copy, chart(path=".")) == 0
    assert await bench.renders(chart(path=".")) == 0


async def test_it_is_rendered_once_when_it_is_asked_for_several_times_at_once(
    bench: RenderBench,
) -> None:
    bench.write(**CHARTED)
    copy = bench.copied()
    await asyncio.gather(*(bench.runs(copy, CHART, commit=str(n)) for n in range(8)))
    assert (bench.calls, bench.calls_for_version) == (1, 1)


@pytest.mark.parametrize(
    ("target", "is_found"),
    [
        pytest.param("../../../shared", True, id="a directory of the repository"),
        pytest.param("..", True, id="a directory above, round and round"),
        pytest.param("/", False, id="somewhere else, which is not read"),
        pytest.param("nowhere", True, id="nothing"),
    ],
)
async def test_links_are_followed_inside_of_the_repository(
    bench: RenderBench, target: str, is_found: bool
) -> None:
    bench.write(**CHARTED, shared__x="1")
    (bench.place / "repository/charts/web/templates/link").symlink_to(target)
    assert await bench.renders(CHART) == 1
    assert await bench.renders(CHART) == int(not is_found)
    bench.write(shared__x="2")
    assert await bench.renders(CHART) == int(not is_found or "shared" in target)


async def test_helm_finds_no_plugins_in_a_directory_of_the_repository(
    bench: RenderBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HELM_PLUGINS", raising=False)
    seen = bench.place / "plugins-of-helm"
    bench.install("kustomize", more=f'echo "$HELM_PLUGINS" > {seen}')
    bench.write(**KUSTOMIZED)
    assert await bench.renders(WITH_HELM) == 1
    assert seen.read_text().strip() == str(bench.place / "k" / "helm" / "plugins")


async def test_plain_files_are_read_again_when_they_changed(bench: RenderBench) -> None:
    bench.write(app__a_yaml=OBJECT)
    assert await bench.renders() == 0
    bench.write(app__a_yaml=OBJECT.replace("one", "two"))
    with pytest.raises(AssertionError, match="two"):
        await bench.renders()
