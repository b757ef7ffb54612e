# SPDX-License-Identifier: Apache-2.0
"""Documents and archives that expand beyond memory fail their application and nothing else."""

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
from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.replacement import FieldFormat, Replacement, apply_replacement
from pipecd.plugins.kubernetes.config import ChartSources, HelmChart, ManifestInput
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.program.broken_inputs import BrokenInputs
from pipecd.program.workers import WorkerLimits, WorkerPool
from pipecd.sdk import Source
from pipecd.sdk.host import plain_git_variables
from pipecd.sdk.yaml import read_documents
from plugins.kubernetes.testbed import NoInstaller

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
