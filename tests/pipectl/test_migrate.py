# SPDX-License-Identifier: Apache-2.0
"""From kinds to plugins: files are rewritten, applications get deploy targets."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.commandline.main import run
from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application
from pipecd.pipectl.cli import tree
from pipecd.pipectl.migrate import to_plugin_format
from servers.control_plane import StartControlPlane

OLD = """\
# the shop
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: shop
  labels: {team: sales}
  input: {namespace: NAMESPACE}
  unknown: 1
  pipeline:
    stages:
      - name: K8S_CANARY_ROLLOUT
        with: {replicas: 10%}
      - name: ANALYSIS
        with: {duration: 10m, timeout: 20m, skipOn: {paths: [docs/**]}}
"""


def migrated(*arguments: str) -> int:
    return run(tree(), ["migrate", "application-config", *arguments])


def test_a_file_is_rewritten_for_plugins_and_the_old_one_stays(tmp_path: Path) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(OLD.replace("NAMESPACE", "shop"))
    assert migrated("--config-files", str(file)) == 0
    document = yaml.safe_load(file.read_text())
    assert document["kind"] == "Application"
    spec = document["spec"]
    assert spec["plugins"] == {
        "kubernetes": {"input": {"namespace": "shop"}},
        "analysis": {"appCustomArgs": {"k8sNamespace": "shop"}},
    }
    assert "unknown" not in spec
    analysis = spec["pipeline"]["stages"][1]
    assert analysis["timeout"] == analysis["with"]["timeout"] == "20m"
    assert analysis["skipOn"] == {"paths": ["docs/**"]}
    assert (tmp_path / "app.pipecd.yaml.old").read_text().startswith("# the shop")
    read_application(file.read_bytes(), file=file.name, catalog=load_catalog())


WITH_COMMENTS = """\
# The shop.
apiVersion: pipecd.dev/v1beta1  # both generations
kind: KubernetesApp
spec:
    name: shop
    # Who to ask.
    labels:
        team: sales

    description: |
      First line

      # not a comment
      third line
    # Rendered by Helm.
    input:
        helmChart:
            path: chart   # ours
        # of all environments
        namespace: shop
    unknown: 1
    service: {name: web}
    pipeline:
        stages:
            # Ask first.
            - name: WAIT_APPROVAL
              with:
                  approvers: [ann]  # and nobody else
                  timeout: 6h
            - name: SCRIPT_RUN
              with:
                  run: |
                      echo one
                      echo two
"""
MIGRATED = """\
# The shop.
apiVersion: pipecd.dev/v1beta1  # both generations
kind: Application
spec:
    name: shop
    # Who to ask.
    labels:
        team: sales

    description: |
      First line

      # not a comment
      third line
    plugins:
      kubernetes:
        # Rendered by Helm.
        input:
            helmChart:
                path: chart   # ours
            # of all environments
            namespace: shop
        service: {name: web}
    pipeline:
        stages:
            # Ask first.
            - name: WAIT_APPROVAL
              with:
                  approvers: [ann]  # and nobody else
                  timeout: 6h
              timeout: 6h
            - name: SCRIPT_RUN
              with:
                  run: |
                      echo one
                      echo two
"""


def test_comments_and_block_scalars_stay(tmp_path: Path) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(WITH_COMMENTS)
    assert migrated("--config-files", str(file)) == 0
    assert file.read_text() == MIGRATED


FLOW_STAGES = """\
kind: ECSApp # ours
spec:
  name: a # with a\ttab
  input:
    taskDefinitionFile: taskdef.json # of\tthe team
  pipeline:
    stages: # in order
      # First.
      - {name: ECS_SYNC, with: {timeout: 1m}} # at once
      - {name: WAIT, with: {duration: 1m}}
      - name: WAIT_APPROVAL # by hand
        with:
          timeout: 2h # not longer
          approvers: [ann]

      # Last.
      - {
          name: ECS_SYNC, # again
          with: {timeout: 3m, skipOn: {paths: [a]}},
        }
"""
MIGRATED_STAGES = """\
apiVersion: pipecd.dev/v1beta1
kind: Application # ours
spec:
  name: a # with a\ttab
  plugins:
    ecs:
      input:
        taskDefinitionFile: taskdef.json # of\tthe team
  pipeline:
    stages: # in order
      # First.
      - {name: ECS_SYNC, timeout: 1m, with: {timeout: 1m}} # at once
      - {name: WAIT, with: {duration: 1m}}
      - name: WAIT_APPROVAL # by hand
        with:
          timeout: 2h # not longer
          approvers: [ann]
        timeout: 2h

      # Last.
      - {
          name: ECS_SYNC, timeout: 3m, skipOn: {paths: [a]}, # again
          with: {timeout: 3m, skipOn: {paths: [a]}},
        }
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_comments_stay_beside_tabs_and_braces(
    newline: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_bytes(FLOW_STAGES.replace("\n", newline).encode())
    assert migrated("--config-files", str(file)) == 0
    assert file.read_bytes().decode() == MIGRATED_STAGES.replace("\n", newline)
    assert "comments of these lines" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        pytest.param(
            "# one\nkind: ECSApp\nspec: {name: a, # two\n  input: {}}\n", "[1,3]",
            id="a file in braces",
        ),
        pytest.param(
            "kind: ECSApp\nspec:\n  name: a\n  # gone with its key\n  unknown: 1 # too\n",
            "[4,5]",
            id="a key that plugins lack",
        ),
    ],
)  # fmt: skip
def test_comments_that_are_lost_are_reported_with_the_file(
    text: str, lines: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(text)
    assert migrated("--config-files", str(file)) == 0
    warning = capsys.readouterr().err.splitlines()[0]
    assert "comments of these lines are not in the new file" in warning
    assert str(file) in warning
    assert lines in warning.replace(" ", "")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{kind: ECSApp, spec: {name: a, description: "b\\nc\\n"}}', id="in braces"),
        pytest.param(
            "kind: ECSApp\nspec:\n  input: &i\n    a: 1\n  labels: *i\n  description: |\n"
            "    b\n    c\n",
            id="an alias",
        ),
        pytest.param(
            "kind: ECSApp\nspec:\n  description: |\n    b\n    c\n  pipeline:\n    stages: "
            "[{name: ECS_SYNC, with: {timeout: 1m}}]\n",
            id="stages in brackets",
        ),
        pytest.param(
            "spec:\n- a\nkind: ECSApp\nspec:\n  description: |\n    b\n    c\n", id="twice"
        ),
        pytest.param("kind: ECSApp\r\nspec:\r\n  description: |\r\n    b\r\n    c\r\n", id="CRLF"),
    ],
)
def test_a_file_in_another_style_has_the_same_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_bytes(text.encode())
    assert migrated("--config-files", str(file)) == 0
    assert yaml.safe_load(file.read_text()) == to_plugin_format(yaml.safe_load(text)).document
    assert "description: |\n" in file.read_text()
    assert ("\r\n" in file.read_bytes().decode()) == ("\r\n" in text)


KINDS = [
    pytest.param("TerraformApp", "terraform", id="Terraform"),
    pytest.param("ECSApp", "ecs", id="ECS"),
    pytest.param("LambdaApp", "lambda", id="Lambda"),
    pytest.param("CloudRunApp", "cloudrun", id="Cloud Run"),
]


@pytest.mark.parametrize(("kind", "plugin"), KINDS)
def test_every_kind_has_its_plugin(tmp_path: Path, kind: str, plugin: str) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(f"{{kind: {kind}, spec: {{name: a, input: {{x: 1}}, quickSync: {{}}}}}}")
    assert migrated("--config-files", str(file)) == 0
    plugins = yaml.safe_load(file.read_text())["spec"]["plugins"]
    assert plugins == {plugin: {"input": {"x": 1}, "quickSync": {}}}


MISTAKES = [
    pytest.param("kind: KubernetesApp", "spec is missing", id="no spec"),
    pytest.param("spec: {name: a}", "unsupported application kind", id="no kind"),
    pytest.param("kind: Piped\nspec: {}", "unsupported application kind: Piped", id="another kind"),
    pytest.param("- a", "the file is missing or not a map", id="a list"),
    pytest.param("a: [", "is not YAML", id="no YAML"),
    pytest.param(
        "{kind: ECSApp, spec: {pipeline: {stages: {}, x: 1}}}", "", id="stages that are none"
    ),
    pytest.param(
        "{kind: ECSApp, spec: {pipeline: {stages: {a: 1}}}}", "is not a list", id="stages as a map"
    ),
    pytest.param(
        "{kind: ECSApp, spec: {pipeline: {stages: [1]}}}", "stages[0] is missing", id="no stage"
    ),
]


@pytest.mark.parametrize(("text", "error_text"), MISTAKES)
def test_a_mistake_is_reported_and_the_file_stays(
    tmp_path: Path, text: str, error_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(text)
    code = migrated("--config-files", str(file))
    if error_text:
        assert code == 1
        assert error_text in capsys.readouterr().err
        assert file.read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == [file.name]
    else:
        assert code == 0


def test_a_directory_is_searched_and_a_bad_file_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.pipecd.yaml", "deep/.pipe.yaml", "deep/other.yaml"):
        (tmp_path / name).write_text(OLD)
    (tmp_path / "deep/bad.pipecd.yaml").write_text("kind: Nothing")
    assert migrated("--dirs", str(tmp_path), "--address", "nobody:1") == 0
    assert "file not migrated" in capsys.readouterr().err
    kinds = {
        str(path.relative_to(tmp_path)): yaml.safe_load(path.read_text())["kind"]
        for path in tmp_path.rglob("*.yaml")
    }
    assert kinds == {
        "a.pipecd.yaml": "Application",
        "deep/.pipe.yaml": "Application",
        "deep/other.yaml": "KubernetesApp",
        "deep/bad.pipecd.yaml": "Nothing",
    }


async def test_an_application_gets_the_target_that_its_provider_is(
    start_plane: StartControlPlane, typed_at: Any, piped_with_repository: Any
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        add = (
            f"application add --app-name web --app-kind ECS --piped-id {piped}"
            " --platform-provider prod --repo-id repo --app-dir apps/web"
        )
        id_ = (await typed(add))[2].split("id = ")[1].strip()
        for error_text in ("has deploy targets now", "has deploy targets already"):
            code, _, err = await typed(f"migrate database --applications {id_}")
            assert (code, error_text in err) == (0, True), err
        application = await plane.running.stores.applications.get(id_)
        targets = application.deploy_targets_by_plugin
        assert {p: list(t.deploy_targets) for p, t in targets.items()} == {"ecs": ["prod"]}
        code, _, err = await typed("migrate database --applications nothing")
        assert (code, "failed to get application" in err) == (1, True)
