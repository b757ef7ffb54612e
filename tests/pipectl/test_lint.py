# SPDX-License-Identifier: Apache-2.0
"""`pipectl lint` resolves references to other files of the repository."""

import json
from pathlib import Path

import jsonschema
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
    assert code == 1
    assert "spec.name: the name of an application has at most 36 characters" in shown
    assert "it cannot be deployed\n" in shown, "no warning, but an error"
    file.write_text(f"{head}  name: shop\n  timeout: -1s\n  plugins: {{wait: {{}}}}\n")
    code, shown = linted(file, capsys)
    assert (code, shown.endswith("1 file can be used, with 1 warning\n")) == (0, True)
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


def sarif_object(required: list[str], **properties: object) -> dict[str, object]:
    """An object of SARIF that has no other properties than these."""
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


# What SARIF 2.1.0 (sarif-schema-2.1.0.json of OASIS) says about the properties that we write.
TEXT, POSITIVE = {"type": "string"}, {"type": "integer", "minimum": 1}
MESSAGE = sarif_object(["text"], text=TEXT)
ARTIFACT = sarif_object([], uri={"type": "string", "format": "uri-reference"}, uriBaseId=TEXT, description=MESSAGE)  # fmt: skip
REGION = sarif_object(["startLine"], startLine=POSITIVE, startColumn=POSITIVE)
PHYSICAL_LOCATION = sarif_object(["artifactLocation"], artifactLocation=ARTIFACT, region=REGION)
LOCATION = sarif_object([], physicalLocation=PHYSICAL_LOCATION)
RESULT = sarif_object(
    ["message"],
    ruleId=TEXT,
    level={"enum": ["none", "note", "warning", "error"]},
    message=MESSAGE,
    locations={"type": "array", "items": LOCATION},
)
RULE = sarif_object(["id"], id=TEXT, shortDescription=MESSAGE)
DRIVER = sarif_object(
    ["name"], name=TEXT, version=TEXT, rules={"type": "array", "items": RULE, "uniqueItems": True}
)
RUN = sarif_object(
    ["tool"],
    tool=sarif_object(["driver"], driver=DRIVER),
    results={"type": "array", "items": RESULT},
    originalUriBaseIds={"type": "object", "additionalProperties": ARTIFACT},
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
)
SARIF = sarif_object(
    ["version", "runs"],
    version={"enum": ["2.1.0"]},
    runs={"type": "array", "items": RUN},
    **{"$schema": {"type": "string", "format": "uri"}},
)


def test_sarif_follows_its_schema_and_names_files_from_the_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "c d").mkdir()
    (repository / "c d" / "app.pipecd.yaml").write_text(WRONG)
    monkeypatch.chdir(repository)
    # Absolute paths are written from the current directory, too.
    for path in (".", str(repository)):
        assert run(tree(), ["lint", "--output", "sarif", path]) == 1
        document = json.loads(capsys.readouterr().out)
        jsonschema.Draft202012Validator(SARIF).validate(document)
        results = document["runs"][0]["results"]
        files = [r["locations"][0]["physicalLocation"]["artifactLocation"] for r in results]
        assert files == [
            {"uri": uri, "uriBaseId": "%SRCROOT%"}
            for uri in ("a/app.pipecd.yaml", "b/b.pipecd.yaml", "c%20d/app.pipecd.yaml")
        ]
        rules = {rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"]}
        assert {result["ruleId"] for result in results} == rules


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


@pytest.mark.parametrize(
    ("kind", "spec", "is_error"),
    [
        pytest.param("Application", "{name: a, pipeline: {stages: [{name: WAIT}]}}", True, id="a plugin refuses the options of a stage"),
        pytest.param("KubernetesApp", "{name: a, pipeline: {stages: [{name: WAIT, with: {duration: soon}}]}}", True, id="the same in a file of the first generation"),
        pytest.param("Application", "{name: a, plugins: {process: {input: {}}}}", True, id="a plugin refuses its section"),
        pytest.param("KubernetesApp", "{name: a, plugins: {process: {input: {}}}}", True, id="a section in a file of an older kind"),
        pytest.param("Application", "{name: a, pipeline: {stages: [{with: {}}]}}", True, id="a stage without a name"),
        pytest.param("Application", f"{{name: {'n' * 37}}}", True, id="a name that cannot be stored"),
        pytest.param("KubernetesApp", f"{{name: {'n' * 37}}}", True, id="such a name in the first generation"),
        pytest.param("Application", "{name: a, pipeline: {stages: [{name: MY_STAGE}]}}", False, id="a stage that a plugin of the piped may have"),
        pytest.param("KubernetesApp", "{name: a, pipeline: {stages: [{name: MY_STAGE}]}}", True, id="first-generation pipeds have no plugins"),
        pytest.param("KubernetesApp", "{name: a, plugins: {wait: {}}, pipeline: {stages: [{name: MY_STAGE}]}}", False, id="with a section it is of the second generation"),
        pytest.param("Application", "{name: a, planer: {}}", False, id="an unknown key of the second generation"),
        pytest.param("KubernetesApp", "{name: a, planer: {}}", True, id="an unknown key of the first generation"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_an_error_in_its_generation(
    kind: str, spec: str, is_error: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(f"{HEAD}kind: {kind}\nspec: {spec}\n")
    code, shown = linted(file, capsys)
    assert (code, "(warning)" in shown) == (1 if is_error else 0, not is_error), shown


@pytest.mark.parametrize(
    "platform",
    ["kubernetes", "terraform", "ecs", "lambda", "cloudrun", "process", "script"],
)
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
        pytest.param(
            ["--name", "a", "--platform", "vm"],
            "use one of kubernetes, terraform, ecs",
            id="a platform",
        ),
        pytest.param(["--name", "a" * 40, "--platform", "script"], "at most 36", id="a long name"),
    ],
)
def test_init_refuses(
    words: list[str], error_text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tree(), ["init", "--dir", str(tmp_path), *words]) == 1
    assert error_text in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
