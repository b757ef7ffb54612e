# SPDX-License-Identifier: Apache-2.0
"""`pipectl lint` resolves references to other files of the repository."""

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


def test_an_exported_tree_has_its_templates_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".pipe").mkdir()
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(application("Application", "latency"))
    assert linted(file, capsys)[0] == 1
    (tmp_path / ".pipe" / "t.yaml").write_text(TEMPLATES)
    assert linted(file, capsys)[0] == 0
