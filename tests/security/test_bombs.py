# SPDX-License-Identifier: Apache-2.0
"""Documents, archives and Git trees that expand beyond memory or disk fail their application only."""

import asyncio
import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application
from pipecd.config.rendering import RenderingSpec
from pipecd.config.units import Duration, Size
from pipecd.git.credentials import GitCredentials
from pipecd.git.merge import merge_commits
from pipecd.git.mirror import Mirrors, Repository, open_mirrors
from pipecd.git.tree_limits import TreeLimits
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.eventwatcher.replacement import FieldFormat, Replacement, apply_replacement
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Sources
from pipecd.plugins.kubernetes.config import ChartSources, HelmChart, ManifestInput
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.program.broken_inputs import BrokenInputs
from pipecd.program.workers import WorkerLimits, WorkerPool
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.sdk import Source
from pipecd.sdk.host import plain_git_variables
from pipecd.sdk.yaml import read_documents
from plugins.kubernetes.testbed import NoInstaller
from servers.git_trees import blob, graft, nested, tree
from servers.origin import Origin

MEBIBYTE = 1024**2
HEAD = "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: web\n"
VALUES, DEEP = "values with its aliases expanded", "nested more than"


def laughs(levels: int, width: int = 9) -> str:
    """Aliases of aliases: width to the power of levels values."""
    lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
    for n in range(1, levels):
        lines.append(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]")
    return "\n".join(lines) + "\n"


def below_spec(text: str, key: str = "labels") -> str:
    return f"{HEAD}  {key}:\n" + "".join(f"    {line}\n" for line in text.splitlines())


ATTACKS_ON_CONFIGURATIONS: dict[str, tuple[str, str]] = {
    "a billion laughs": (below_spec(laughs(12)), VALUES),
    "a billion laughs outside of the spec": (laughs(12) + HEAD, VALUES),
    "one list many times": (
        f"x: &x [{'1, ' * 1000}]\ny: [{'*x, ' * 1000}]\n" + HEAD,
        VALUES,
    ),
    "a map merged many times": (
        f"x: &x {{{', '.join(f'k{n}: 1' for n in range(500))}}}\n"
        f"y: {{<<: [{', '.join(['*x'] * 500)}]}}\n" + HEAD,
        VALUES,
    ),
    "merged maps of merged maps": (
        "m0: &m0 {k: 1}\n"
        + "".join(f"m{n}: &m{n} {{<<: *m{n - 1}, k{n}: 1}}\n" for n in range(1, 2000))
        + HEAD,
        VALUES,
    ),
    "an alias of itself": (f"x: &x [*x]\n{HEAD}", "contains itself"),
    "lists within lists": (f"{HEAD}  x: {'[' * 1_000_000}", DEEP),
    "maps within maps": (f"{HEAD}  x: {'{a: ' * 200_000}", DEEP),
    "dashes within dashes": (f"{HEAD}  x:\n   {'- ' * 500_000}1\n", DEEP),
    "a key of a million characters": (f"{HEAD}  {'k' * 1_000_000}: 1\n", "not valid YAML"),
    "thousands of unknown keys": (
        HEAD + "".join(f"  unknown{n}: 1\n" for n in range(40_000)),
        VALUES,
    ),
    "thousands of mistakes": (
        below_spec("".join(f"k{n}: [1]\n" for n in range(6_000))),
        "must be",
    ),
}


@pytest.mark.parametrize(
    ("text", "error"), ATTACKS_ON_CONFIGURATIONS.values(), ids=ATTACKS_ON_CONFIGURATIONS
)
def test_a_configuration_that_expands_is_refused(text: str, error: str) -> None:
    with pytest.raises(UserMistake, match=error) as e:
        read_application(text, file="app.pipecd.yaml", catalog=load_catalog())
    # The text is stored by the control plane and shown.
    assert len(str(e.value)) < 100_000


ATTACKS_BY_NUMBERS: dict[str, str] = {
    "an integer of a million digits": "9" * 1_000_000,
    "a hexadecimal of a million digits": "0x" + "f" * 1_000_000,
    "an octal of a million digits": "0" + "7" * 1_000_000,
    "an exponent out of range": "1e" + "9" * 1_000,
    "a fraction of a million digits": "0." + "1" * 1_000_000,
}


@pytest.mark.parametrize("number", ATTACKS_BY_NUMBERS.values(), ids=ATTACKS_BY_NUMBERS)
def test_huge_numbers_are_texts_or_floats(number: str) -> None:
    [document] = read_documents(f"replicas: {number}\n", file="a.yaml")
    assert isinstance(document.value["replicas"], str | float)


def test_many_documents_take_linear_time() -> None:
    documents = read_documents("---\na: 1\n" * 10_000, file="a.yaml")
    assert len(documents) == 10_000
    with pytest.raises(UserMistake, match=r"a\.yaml:20002:1: not valid YAML"):
        read_documents("---\na: 1\n" * 10_000 + "---\n]", file="a.yaml")


ATTACKS_ON_EVENT_FILES: dict[str, tuple[FieldFormat, str, str]] = {
    "JSON that is nested": (FieldFormat.JSON, "$.tag", '{"a":' * 100_000),
    "lists of JSON that are nested": (FieldFormat.JSON, "$.tag", "[" * 1_000_000),
    "YAML that is nested": (FieldFormat.YAML, "$.tag", "[" * 1_000_000),
    "HCL blocks that are nested": (FieldFormat.HCL, "$.tag", "a {\n" * 100_000),
    "HCL strings that are nested": (FieldFormat.HCL, "$.tag", 'a = "' + '${"' * 100_000),
    "aliases of aliases": (FieldFormat.YAML, "$.tag", laughs(12)),
}


@pytest.mark.parametrize(
    ("field_format", "path", "text"), ATTACKS_ON_EVENT_FILES.values(), ids=ATTACKS_ON_EVENT_FILES
)
async def test_a_file_that_an_event_changes_is_refused(
    field_format: FieldFormat, path: str, text: str
) -> None:
    limits = WorkerLimits(seconds=10, memory=300 * MEBIBYTE)
    async with WorkerPool(limits) as pool:
        with pytest.raises(UserMistake, match=r"^file: "):
            await apply_replacement(
                text.encode(), Replacement("file", field_format, path), "v2", workers=pool
            )


async def load(
    directory: Path,
    input_: ManifestInput,
    rendering: RenderingSpec,
    workers: WorkerPool | None = None,
) -> list[str]:
    loader = ManifestLoader(
        ChartSources(),
        directory.parent / "state",
        plain_git_variables,
        rendering=rendering,
        workers=workers,
    )
    source = Source(directory, "c1", b"", "app.pipecd.yaml", directory)
    request = RenderRequest(source, input_, "web", NoInstaller())
    return [manifest.name for manifest in await loader.load(request)]


CHART = "apiVersion: v2\nname: bomb\nversion: 0.1.0\n"
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\n"
DOUBLING = '{{- $x := "aaaaaaaa" }}{{ range until 60 }}{{ $x = print $x $x }}{{ end }}{{ len $x }}'


def template(text: str) -> Callable[[Path], None]:
    def write(chart: Path) -> None:
        (chart / "templates" / "bomb.yaml").write_text(text)

    return write


def archive(chart: Path) -> None:
    """A dependency of 120 KB that is 120 MB when it is unpacked."""
    (chart / "charts").mkdir()
    member = tarfile.TarInfo("sub/templates/zeros.txt")
    member.size = 120 * MEBIBYTE
    head = tarfile.TarInfo("sub/Chart.yaml")
    content = CHART.replace("bomb", "sub").encode()
    head.size = len(content)
    with (
        gzip.open(chart / "charts" / "sub-0.1.0.tgz", "wb", compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        tar.addfile(head, io.BytesIO(content))
        tar.addfile(member, _Zeros(member.size))


class _Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        self._left = size

    def read(self, size: int = -1) -> bytes:
        taken = min(size, self._left)
        self._left -= taken
        return bytes(taken)


def values(text: str) -> Callable[[Path], None]:
    def write(chart: Path) -> None:
        (chart / "values.yaml").write_text(text)
        (chart / "templates" / "a.yaml").write_text("x: {{ .Values | toYaml | len }}\n")

    return write


TIME, MEMORY, OUTPUT = "exceeds the time limit", "the memory limit", "exceeds the output limit"

ATTACKS_BY_CHARTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a text that doubles": (template(DOUBLING), f"{MEMORY}|{TIME}"),
    "a list that fills the memory": (template("{{ until 900000000 | len }}"), f"{MEMORY}|{TIME}"),
    "ranges within ranges": (
        template("{{ range until 90000 }}{{ range until 90000 }}{{ end }}{{ end }}"),
        TIME,
    ),
    "a result that does not fit": (
        template('{{ $x := repeat 1000000 "a" }}{{ range until 90 }}{{ $x }}\n{{ end }}'),
        f"{OUTPUT}|{MEMORY}|{TIME}",
    ),
    "an archive that expands": (archive, f"{MEMORY}|{TIME}|failed"),
    "values of a billion laughs": (values(laughs(10)), f"{MEMORY}|{TIME}|failed"),
}


@pytest.fixture
def chart(tmp_path: Path, rendering_tools: None) -> Path:
    """The directory of a chart without templates, in that of an application."""
    directory = tmp_path / "app" / "chart"
    (directory / "templates").mkdir(parents=True)
    (directory / "Chart.yaml").write_text(CHART)
    return directory


@pytest.mark.parametrize(("write", "error"), ATTACKS_BY_CHARTS.values(), ids=ATTACKS_BY_CHARTS)
async def test_a_chart_that_expands_fails_the_application(
    write: Callable[[Path], None],
    error: str,
    chart: Path,
    tmp_path: Path,
) -> None:
    write(chart)
    rendering = RenderingSpec(timeout=Duration(2), memory=Size(200 * MEBIBYTE))
    input_ = ManifestInput(helm_chart=HelmChart(path="chart"))
    with pytest.raises(UserMistake, match=error):
        await load(tmp_path / "app", input_, rendering)


async def test_a_chart_that_exceeded_a_limit_is_refused_after_a_restart(
    chart: Path, tmp_path: Path
) -> None:
    template("{{ range until 90000 }}{{ range until 90000 }}{{ end }}{{ end }}")(chart)
    rendering = RenderingSpec(timeout=Duration(1))
    input_ = ManifestInput(helm_chart=HelmChart(path="chart"))
    stored = list[bytes]()
    async with WorkerPool(broken=BrokenInputs(save=stored.append)) as pool:
        with pytest.raises(UserMistake, match=TIME):
            await load(tmp_path / "app", input_, rendering, pool)
    async with WorkerPool(broken=BrokenInputs(BrokenInputs.parse(stored[-1]))) as pool:
        with pytest.raises(UserMistake, match="tried again after a day"):
            await load(tmp_path / "app", input_, rendering, pool)
        template(CONFIG_MAP)(chart)
        assert await load(tmp_path / "app", input_, RenderingSpec(), pool) == ["web"]


async def test_a_large_result_is_read_by_a_worker(chart: Path, tmp_path: Path) -> None:
    template(CONFIG_MAP + 'data: {x: "{{ repeat 400000 "a" }}"}\n')(chart)
    input_ = ManifestInput(helm_chart=HelmChart(path="chart"))
    async with WorkerPool() as pool:
        assert await load(tmp_path / "app", input_, RenderingSpec(), pool) == ["web"]


async def test_an_ordinary_chart_and_configuration_are_read(chart: Path, tmp_path: Path) -> None:
    (chart / "templates" / "a.yaml").write_text(CONFIG_MAP)
    input_ = ManifestInput(helm_chart=HelmChart(path="chart"))
    assert await load(tmp_path / "app", input_, RenderingSpec()) == ["web"]
    text = f"x: &x {{a: '1'}}\n{HEAD}  labels: {{<<: *x}}\n"
    config = read_application(text, file="app.pipecd.yaml", catalog=load_catalog())
    assert config.spec.labels == {"a": "1"}


GIT_CONFIG = (HEAD + "  trigger: {{onCommit: {{paths: [{paths}]}}}}\n").format
APPLICATION = {"web/app.pipecd.yaml": HEAD}
LIMITS = TreeLimits(entries=20_000, size=64 * MEBIBYTE)
FILES, DEPTH, BYTES = "more than 20,000 files", "nested more than 200 deep", "of files"


def bomb(width: int, levels: int, content: bytes | None = None) -> Callable[[Origin], str]:
    def push(origin: Origin) -> str:
        leaf = "" if content is None else blob(origin, content)
        return graft(origin, "web", {"bomb": nested(origin, width=width, levels=levels, leaf=leaf)})

    return push


def names(count: int) -> Callable[[Origin], str]:
    """A directory with many names of one file."""

    def push(origin: Origin) -> str:
        file = blob(origin, b"x")
        return graft(origin, "web", {"d": tree(origin, {f"f{n:07}": file for n in range(count)})})

    return push


def references(origin: Origin) -> str:
    """A file far down that refers to many files of its parent directories."""
    text = "".join(f"../f{n}\n" for n in range(40_000))
    entry = blob(origin, text.encode())
    for _ in range(150):
        entry = tree(origin, {"d": entry})
    return graft(origin, "web", {"d": entry})


def patterns(origin: Origin) -> str:
    paths = ", ".join(f"web/d/f{n}" for n in range(15_000))
    files = {f"g{n:06}": blob(origin, b"x") for n in range(1)}
    directory = tree(origin, {f"g{n:06}": files["g000000"] for n in range(15_000)})
    config = blob(origin, GIT_CONFIG(paths=paths).encode())
    return graft(origin, "web", {"app.pipecd.yaml": config, "d": directory})


def submodules(origin: Origin) -> str:
    """Two submodules with the commit before, which has two with the commit before, and so on."""
    modules = "".join(f'[submodule "m{n}"]\npath = web/m{n}\nurl = ./\n' for n in range(2))
    head = origin.commit({".gitmodules": modules})
    for _ in range(12):
        head = graft(origin, "web", {f"m{n}": f"160000 commit {head}" for n in range(2)})
    return head


def large_files(origin: Origin) -> str:
    pointer = (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 900000000000\n"
    )
    return origin.commit({"web/.gitattributes": "*.bin filter=lfs\n", "web/large.bin": pointer})


ATTACKS_BY_TREES: dict[str, tuple[Callable[[Origin], str], str]] = {
    "empty directories within directories": (bomb(5, 10), FILES),
    "empty directories without end": (bomb(20, 60), FILES),
    "a file many times": (bomb(10, 9, b"x"), FILES),
    "directories far too deep": (bomb(1, 1500), DEPTH),
    "a file far too deep": (bomb(1, 1500, b"x"), DEPTH),
    "a file larger than the disk": (bomb(1, 1, bytes(70 * MEBIBYTE)), BYTES),
    "a file that fills the disk by its copies": (bomb(100, 1, bytes(MEBIBYTE)), BYTES),
    "a directory with too many names": (names(25_000), FILES),
    "a directory that is larger than memory": (names(300_000), "more than 100,000 names"),
    "references to everything": (references, ""),
    "patterns of everything": (patterns, ""),
    "submodules within submodules": (submodules, "more than 1,000 submodules"),
    "an object of Git LFS larger than the disk": (large_files, BYTES),
}


class OtherTask:
    """Counts how often another task of the event loop runs."""

    def __init__(self) -> None:
        self.turns = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.turns += 1


def sources(mirrors: Mirrors, workers: WorkerPool) -> Sources:
    return Sources(
        mirrors,
        ApplicationConfigs(load_catalog()),
        project="shop",
        renderer=TemplateRenderer(workers),
    )


@pytest.mark.slow
@pytest.mark.timeout(100)
@pytest.mark.parametrize(("push", "error"), ATTACKS_BY_TREES.values(), ids=ATTACKS_BY_TREES)
async def test_a_git_tree_that_expands_fails_its_application_and_nothing_waits_for_it(
    push: Callable[[Origin], str], error: str, tmp_path: Path, workers: WorkerPool
) -> None:
    origin = Origin.begin(tmp_path / "origin")
    main = origin.commit(APPLICATION)
    origin.git("checkout", "-q", "-b", "feature")
    head, other = push(origin), OtherTask()
    repo = ApplicationGitRepository(id="site", remote="", branch="main")
    git_path = ApplicationGitPath(repo=repo, path="web", config_filename="app.pipecd.yaml")
    into = tmp_path / "into"
    async with open_mirrors(
        [Repository("site", origin.remote, "feature")],
        directory=tmp_path / "git",
        credentials=GitCredentials(),
        limits=LIMITS,
    ) as mirrors:
        clone = mirrors.of("site").clone
        await clone.ensure_commit(head)
        running = asyncio.create_task(other.run())
        problems: list[str] = []
        for read in (
            sources(mirrors, workers).at(git_path, head, into=into),
            merge_commits(clone, main, head, "a preview"),
            clone.objects.changed_files(main, head),
            clone.objects.files(head),
        ):
            try:
                await read
            except PipecdError as e:
                problems.append(str(e))
        running.cancel()
    assert other.turns
    if error:
        assert error in problems[0]
        assert not into.exists()
    else:
        assert problems == []


async def test_the_size_of_an_ordinary_commit_is_that_of_its_files(tmp_path: Path) -> None:
    origin = Origin.begin(tmp_path / "origin")
    head = origin.commit({"a/b/c": "12345", "a/b/d": "12345", "a/e": "1", "f": ""})
    async with open_mirrors(
        [Repository("site", origin.remote, "main")],
        directory=tmp_path / "git",
        credentials=GitCredentials(),
        limits=TreeLimits(entries=7, size=11),
    ) as mirrors:
        objects = mirrors.of("site").objects
        await mirrors.of("site").update()
        for _ in range(2):
            whole = await objects.check_size(head)
            assert (whole.entries, whole.size, whole.depth) == (7, 11, 3)
        part = await objects.check_size(head, ["a/b", "f"])
        assert (part.entries, part.size, part.depth) == (4, 10, 1)
        grown = origin.commit({"g": ""})
        await mirrors.of("site").update()
        with pytest.raises(UserMistake, match="more than 7 files and directories"):
            await objects.check_size(grown)
