# SPDX-License-Identifier: Apache-2.0
"""`pipectl lint` resolves references to other files of the repository."""

import json
from pathlib import Path

import pytest

from pipecd.commandline.main import run
from pipecd.pipectl.cli import tree

HEAD = "apiVersion: pipecd.dev/v1beta1\n"
CHECK = "{provider: prometheus, interval: 1m, query: q, expected: {max: 1}}"
TEMPLATES = f"{HEAD}kind: AnalysisTemplate\nspec: {{metrics: {{latency: {CHECK}}}}}\n"
BROKEN = f"{HEAD}kind: AnalysisTemplate\nspec: {{metrics: {{latency: {{interval: soon}}}}}}\n"
EVENTS = f"{HEAD}kind: EventWatcher\nspec: {{events: []}}\n"


def application(kind: str, name: str) -> str:
    return f"""{HEAD}kind: {kind}
spec:
  name: shop
  pipeline:
    stages:
      - name: ANALYSIS
        with:
          duration: 5m
          metrics:
            - template: {{name: {name}}}
"""


def linted(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = run(tree(), ["lint", str(file)])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("kind", ["Application", "KubernetesApp"])
@pytest.mark.parametrize(
    ("files", "name", "said"),
    [
        pytest.param({"t.yaml": TEMPLATES}, "latency", "", id="a template that is there is right"),
        pytest.param({"a.yaml": EVENTS, "t.yaml": TEMPLATES}, "latency", "", id="other files beside it do not matter"),
        pytest.param({"t.yaml": TEMPLATES}, "latenzy", 'there is no metrics "latenzy" in a file of kind AnalysisTemplate under .pipe/, it has: latency', id="a template that is not there"),
        pytest.param({}, "latency", 'there is no metrics "latency" in a file of kind AnalysisTemplate under .pipe/', id="a repository without templates"),
        pytest.param({"t.yaml": BROKEN}, "latency", "cannot be resolved: .pipe/t.yaml:3:", id="templates that cannot be read"),
    ],
)  # fmt: skip
def test_a_template_that_a_stage_names_is_looked_up(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    files: dict[str, str],
    name: str,
    said: str,
) -> None:
    (tmp_path / ".git").mkdir()
    for each, text in files.items():
        (tmp_path / ".pipe").mkdir(exist_ok=True)
        (tmp_path / ".pipe" / each).write_text(text)
    file = tmp_path / "apps" / "shop" / "app.pipecd.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(application(kind, name))
    code, shown = linted(file, capsys)
    assert code == (1 if said else 0)
    where = f"{file}:11:32: spec.pipeline.stages[0].with.metrics[0].template.name: "
    assert (where + said in shown) == bool(said)


def test_a_file_outside_of_a_repository_is_checked_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(application("Application", "latency"))
    code, shown = linted(file, capsys)
    assert (code, shown) == (0, "1 file is right\n")


def test_warnings_are_shown_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "app.pipecd.yaml"
    head = "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n"
    file.write_text(f"{head}  name: {'n' * 37}\n  timeout: -1s\n  plugins: {{wait: {{}}}}\n")
    code, shown = linted(file, capsys)
    assert code == 0
    assert "spec.name: the name of an application has at most 36 characters" in shown
    assert shown.endswith("1 file can be used, with 2 warnings\n")
    file.write_text(f"{head}  naem: shop\n  planner: 1\n")
    code, shown = linted(file, capsys)
    assert code == 1
    assert "spec.planner: must be an object" in shown
    assert 'spec.naem: unknown field, did you mean "name"? (warning)' in shown


def test_an_exported_tree_has_its_templates_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".pipe").mkdir()
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(application("Application", "latency"))
    assert linted(file, capsys)[0] == 1
    (tmp_path / ".pipe" / "t.yaml").write_text(TEMPLATES)
    assert linted(file, capsys)[0] == 0


UNKNOWN = f"{HEAD}kind: Application\nspec: {{name: shop, descripton: x}}\n"
WRONG = f"{HEAD}kind: Application\nspec: {{name: [1]}}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in {
        "a/app.pipecd.yaml": UNKNOWN,
        "b/b.pipecd.yaml": WRONG,
        ".pipe/t.yaml": TEMPLATES,
        "b/other.yaml": "{",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    (tmp_path / ".git").mkdir()
    return tmp_path


def test_a_directory_is_searched(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree(), ["lint", str(repository)]) == 1
    shown = capsys.readouterr()
    assert "1 of 3 files cannot be used" in shown.err
    assert "descripton" in shown.out
    assert "(warning)" in shown.out
    (repository / "empty").mkdir()
    assert run(tree(), ["lint", str(repository / "empty")]) == 1
    assert "there is no configuration file in" in capsys.readouterr().err


def test_strict_makes_warnings_mistakes(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(repository / "a" / "app.pipecd.yaml")
    assert run(tree(), ["lint", file]) == 0
    assert "1 file can be used, with 1 warning" in capsys.readouterr().out
    assert run(tree(), ["lint", "--strict", file]) == 1
    assert "(warning)" not in capsys.readouterr().out


def test_findings_as_json_and_sarif(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tree(), ["lint", "--output", "json", str(repository)]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [(Path(each["file"]).name, each["level"]) for each in found] == [
        ("app.pipecd.yaml", "warning"),
        ("b.pipecd.yaml", "error"),
    ]
    assert found[1]["line"] == 3
    assert run(tree(), ["lint", "--output", "sarif", str(repository)]) == 1
    [results] = [each["results"] for each in json.loads(capsys.readouterr().out)["runs"]]
    [location] = results[1]["locations"]
    assert location["physicalLocation"]["region"]["startLine"] == 3
    assert results[1]["level"] == "error"


@pytest.mark.parametrize("platform", ["kubernetes", "terraform", "script"])
def test_a_new_file_is_right_and_names_its_schema(
    tmp_path: Path, platform: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    directory = tmp_path / "apps" / "web"
    init = ["init", "--name", "web", "--platform", platform, "--dir", str(directory)]
    assert run(tree(), init) == 0
    file = directory / "app.pipecd.yaml"
    first = file.read_text().splitlines()[0]
    assert first == "# yaml-language-server: $schema=../../.pipecd/application.schema.json"
    schema = json.loads((directory / "../../.pipecd/application.schema.json").read_text())
    assert "properties" in json.dumps(schema)
    assert run(tree(), ["lint", "--strict", str(file)]) == 0, capsys.readouterr().out
    assert run(tree(), init) == 1
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error_text"),
    [
        pytest.param(["--platform", "script"], "--name is not set", id="nobody to ask"),
        pytest.param(["--name", "a", "--platform", "vm"], "use one of kubernetes", id="a platform"),
        pytest.param(["--name", "a" * 40, "--platform", "script"], "at most 36", id="a long name"),
    ],
)
def test_init_refuses(
    words: list[str], error_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree(), ["init", "--dir", str(tmp_path), *words]) == 1
    assert error_text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
