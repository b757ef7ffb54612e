# SPDX-License-Identifier: Apache-2.0
"""Rendered manifests are cached by the content of their inputs."""

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
from plugins.kubernetes.testbed import NoInstaller

OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n"
PROGRAM = """#!/bin/sh
[ "$1" = version ] && echo call >> {calls}-for-version && echo {version} && exit
echo call >> {calls}
{more}
cat <<-END
{text}END
"""
HOUR = 3600.0


@dataclass
class RenderBench:
    """A repository, programs that count how often they render, and a clock."""

    directory: Path
    time: float = 0.0
    commits: int = 0
    loader: ManifestLoader = field(init=False)

    def __post_init__(self) -> None:
        self.loader = ManifestLoader(
            ChartSources(), self.directory / "k", plain_git_variables, clock=lambda: self.time
        )
        for name in ("helm", "kustomize"):
            self.install(name)

    def install(self, name: str, version: str = "1.2.3", more: str = "") -> None:
        """Installs a program in PATH."""
        program = self.directory / "programs" / name
        program.parent.mkdir(exist_ok=True)
        program.unlink(missing_ok=True)
        calls = self.directory / "calls"
        program.write_text(PROGRAM.format(version=version, calls=calls, text=OBJECT, more=more))
        program.chmod(0o755)

    def write(self, **files: str) -> None:
        """Writes files of the repository; two underscores mean a slash, one a dot."""
        for name, text in files.items():
            path = self.directory / "repository" / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    async def renders(self, input_: ManifestInput | None = None, *, release: str = "web") -> int:
        """Renders a new commit in a working copy of its own, and returns how often a program ran."""
        self.commits += 1
        return await self.runs(self.copied(), input_, release=release, commit=str(self.commits))

    async def renders_after(
        self, file: str, files: Mapping[str, str], input_: ManifestInput
    ) -> int:
        """Changes one file after a rendering, and returns how often a program runs then."""
        self.write(**files)
        assert await self.renders(input_) == 1
        assert await self.renders(input_) == 0
        self.write(**{file: files.get(file, "") + "\n# changed"})
        return await self.renders(input_)

    def copied(self) -> Path:
        """Returns a new working copy of the repository."""
        copy = self.directory / "copies" / ("x" * (1 + self.commits))
        copytree(self.directory / "repository", copy, symlinks=True)
        return copy

    async def runs(
        self, copy: Path, input_: ManifestInput | None, *, release: str = "web", commit: str = "c"
    ) -> int:
        """Loads from a working copy, and returns how often a program ran."""
        before = self.calls
        source = Source(copy / "app", commit, b"", "app.pipecd.yaml", copy / ".pipe")
        request = RenderRequest(source, input_ or ManifestInput(), release, NoInstaller())
        assert [m.name for m in await self.loader.load(request)] == ["one"]
        return self.calls - before

    @property
    def calls(self) -> int:
        return self._lines("calls")

    @property
    def calls_for_version(self) -> int:
        return self._lines("calls-for-version")

    def _lines(self, name: str) -> int:
        file = self.directory / name
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RenderBench:
    monkeypatch.setenv("PATH", str(tmp_path / "programs"), prepend=":")
    created = RenderBench(tmp_path)
    created.write(app__app_pipecd_yaml="kind: Application")
    return created


DATA = 'data: {a: 1, b: 1.5, c: true, d: null, e: [1, [x]], f: "1", g: 2026-01-01, 1: é}\n'


async def test_cached_manifests_equal_rendered_ones(bench: RenderBench) -> None:
    bench.write(app__one_yaml=f"{OBJECT}{DATA}---\n{OBJECT}")
    source = Source(bench.copied() / "app", "c", b"", "app.pipecd.yaml", bench.directory)
    request = RenderRequest(source, ManifestInput(), "web", NoInstaller())
    rendered = await bench.loader.load(request)
    assert [each.origin for each in rendered] == ["one.yaml:1", "one.yaml:5"]
    assert await bench.loader.load(request) == rendered
    assert rendered[0].body["data"] == {
        **{"a": 1, "b": 1.5, "c": True, "d": None, "e": [1, ["x"]], "f": "1"},
        **{"g": "2026-01-01", "1": "é"},
    }


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
        pytest.param("app__generated", 1, id="a file of a generator"),
        pytest.param("app__charts__web__values_yaml", 1, id="a chart in the directory"),
        pytest.param("base__settings", 1, id="a file of a base under another name"),
        pytest.param("base__kustomization_yaml", 1, id="a base"),
        pytest.param("deeper__deep_yaml", 1, id="a resource of the base of a base"),
    ],
)
async def test_kustomize_builds_again_when_an_input_changed(
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
async def test_helm_renders_again_when_an_input_changed(
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


@pytest.mark.parametrize(
    ("files", "input_", "depends_on_network"),
    [
        ({}, chart(repository="ours", name="web", version="1.2.3"), False),
        ({}, chart(repository="ours", name="web", version="v1.2.3-rc.1+5"), False),
        ({}, chart(repository="ours", name="web", version="^1.2.3"), True),
        ({}, chart(repository="ours", name="web", version="1.2"), True),
        ({}, chart(repository="ours", name="web"), True),
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
async def test_manifests_that_depend_on_the_network_are_rendered_per_commit_and_hour(
    bench: RenderBench,
    files: dict[str, str],
    input_: ManifestInput | None,
    depends_on_network: bool,
) -> None:
    bench.write(**files)
    copy = bench.copied()
    assert await bench.runs(copy, input_, commit="a") == 1
    assert await bench.runs(copy, input_, commit="a") == 0
    assert await bench.runs(copy, input_, commit="b") == int(depends_on_network)
    bench.time += HOUR
    assert await bench.runs(copy, input_, commit="a") == int(depends_on_network)


async def test_charts_downloaded_into_the_directory_do_not_cause_another_rendering(
    bench: RenderBench,
) -> None:
    bench.install("helm", more="mkdir -p charts; date +%N > charts/db.tgz")
    bench.write(app__Chart_yaml="dependencies: [{repository: 'https://a', version: 1.0.0}]")
    copy = bench.copied()
    assert await bench.runs(copy, chart(path=".")) == 1
    assert (copy / "app/charts/db.tgz").exists()
    assert await bench.runs(copy, chart(path=".")) == 0
    assert await bench.renders(chart(path=".")) == 0


async def test_concurrent_requests_render_once(
    bench: RenderBench,
) -> None:
    bench.write(**CHARTED)
    copy = bench.copied()
    await asyncio.gather(*(bench.runs(copy, CHART, commit=str(n)) for n in range(8)))
    assert (bench.calls, bench.calls_for_version) == (1, 1)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("../../../shared", id="a directory of the repository"),
        pytest.param("..", id="a directory above, round and round"),
        pytest.param("missing", id="nothing"),
    ],
)
async def test_symlinks_are_followed_inside_of_the_repository(
    bench: RenderBench, target: str
) -> None:
    bench.write(**CHARTED, shared__x="1")
    (bench.directory / "repository/charts/web/templates/link").symlink_to(target)
    assert await bench.renders(CHART) == 1
    assert await bench.renders(CHART) == 0
    bench.write(shared__x="2")
    assert await bench.renders(CHART) == int("shared" in target)


async def test_helm_loads_no_plugins_from_the_repository(
    bench: RenderBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HELM_PLUGINS", raising=False)
    recorded = bench.directory / "plugins-of-helm"
    bench.install("kustomize", more=f'echo "$HELM_PLUGINS" > {recorded}')
    bench.write(**KUSTOMIZED)
    assert await bench.renders(WITH_HELM) == 1
    assert recorded.read_text().strip() == str(bench.directory / "k" / "helm" / "plugins")


async def test_plain_files_are_read_again_when_they_changed(bench: RenderBench) -> None:
    bench.write(app__a_yaml=OBJECT)
    assert await bench.renders() == 0
    bench.write(app__a_yaml=OBJECT.replace("one", "two"))
    with pytest.raises(AssertionError, match="two"):
        await bench.renders()
