# SPDX-License-Identifier: Apache-2.0
"""What our readers lose of upstream's configuration files, as tools/read_upstream.py finds it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipecd.config.catalog import Catalog
from pipecd.config.yaml_tree import of_plain

TOOL = Path(__file__).parents[2] / "tools" / "read_upstream.py"
UPSTREAM = os.environ.get("PIPECD_UPSTREAM_SOURCE", "")
HEAD = "apiVersion: pipecd.dev/v1beta1\n"
PIPED = """kind: Piped
spec:
  projectID: shop
  pipedID: p1
  pipedKeyFile: /etc/key
  apiAddress: localhost:9080
  syncInterval: 120s
  platformProviders:
    - {name: one, type: KUBERNETES}
    - {name: two, type: KUBERNETES}
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("read_upstream", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look up the module that they are defined in.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / "examples" / "v0" / "kubernetes" / name / "app.pipecd.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return root


def test_a_tree_is_counted_by_directory_and_kind(tool: ModuleType, tmp_path: Path) -> None:
    root = write(
        tmp_path,
        custom=f"{HEAD}kind: LambdaApp\nspec: {{pipeline: {{stages: [{{name: CUSTOM_SYNC, with: {{run: x}}}}]}}}}\n",
        manifest="apiVersion: apps/v1\nkind: Deployment\n",
        function=f"{HEAD}kind: LambdaFunction\nspec: {{}}\n",
        piped=HEAD + PIPED,
        refused=f"{HEAD}kind: KubernetesApp\nspec: {{foo: 1}}\n",
        simple=f"{HEAD}kind: KubernetesApp\nspec: {{name: a, timeout: 60m, labels: {{team: b}}}}\n---\n"
        f"{HEAD}kind: KubernetesApp\n",
        template="{{ .Values.a }}: {\n",
        unknown=f"{HEAD}kind: Application\nspec: {{name: a, foo: {{bar: 1}}}}\n",
    )  # fmt: skip
    documents = tool.read_tree(root)
    where = "examples/v0/kubernetes"
    assert tool.table(documents).splitlines()[2:] == [
        f"| {where} | Application | 1 | 1 | 1 | 0 | 3 | 1 | 0 |",
        f"| {where} | KubernetesApp | 2 | 3 | 1 | 2 | 4 | 0 | 0 |",
        f"| {where} | LambdaApp | 1 | 1 | 1 | 0 | 5 | 0 | 0 |",
        f"| {where} | Piped | 1 | 1 | 1 | 0 | 10 | 0 | 0 |",
        "| all |  | 5 | 6 | 4 | 2 | 22 | 1 | 0 |",
    ]
    refusals = [each.refusal for each in documents if each.refusal]
    assert "spec.foo: unknown field" in refusals[0]
    assert "document 2: only the first of a file is read" in refusals[1]
    assert [each.unknown for each in documents if each.unknown] == [("spec.foo",)]


@pytest.mark.parametrize(
    ("result", "lost"),
    [
        pytest.param({"steps": [{"wait": "1m0s"}, {"wait": "60s"}]}, (), id="nothing"),
        pytest.param({"steps": [{"wait": "60s"}]}, ("spec.steps[1].wait",), id="one of two"),
        pytest.param({"pauses": ["60s", "60s"]}, ("spec.steps[0].wait", "spec.steps[1].wait"), id="the key"),
        pytest.param({}, ("spec.steps[0].wait", "spec.steps[1].wait"), id="everything"),
    ],
)  # fmt: skip
def test_a_value_that_the_result_lacks_is_lost(
    tool: ModuleType, catalog: Catalog, result: dict[str, Any], lost: tuple[str, ...]
) -> None:
    written = {"steps": [{"wait": "60s"}, {"wait": "1m"}], "foo": {"bar": 1}}
    assert tool.lost_fields(of_plain(written), of_plain(result), ("spec.foo",), catalog) == lost


def test_a_lost_field_fails_the_program(tmp_path: Path) -> None:
    # As upstream does, a v0 piped uses the first of two providers with one name.
    twice = PIPED + "    - {name: one, type: KUBERNETES, labels: {env: lost}}\n"
    root = write(tmp_path, piped=HEAD + twice)
    run = subprocess.run(
        [sys.executable, TOOL, root, "--list"], capture_output=True, text=True, check=False
    )
    assert run.returncode == 1, run.stderr
    file = "examples/v0/kubernetes/piped/app.pipecd.yaml"
    assert f"lost: {file}: spec.platformProviders[2].labels.env" in run.stdout


CONFIG = "pkg/config/testdata"
MULTICLUSTER = "pkg/app/pipedv1/plugin/kubernetes_multicluster/deployment/testdata"
REFUSED = {
    # Upstream's loader refuses these too; its tests read none of them, or expect the refusal.
    f"{CONFIG}/application/cloudrun-app-bluegreen.yaml": "spec.input.image: unknown field",
    f"{CONFIG}/application/cloudrun-app-canary.yaml": "spec.input.image: unknown field",
    f"{CONFIG}/application/custom-sync-without-run.yaml": "the CUSTOM_SYNC stage requires run",
    f"{CONFIG}/application/ecs-app-invalid-access-type.yaml": "invalid accessType",
    f"{CONFIG}/application/k8s-app-helm.yaml": "spec.input.helmValueFiles: unknown field",
    f"{CONFIG}/application/k8s-app-istio-bluegreen.yaml": "spec.canaryVariant: unknown field",
    f"{CONFIG}/application/k8s-app-use-pipeline-template.yaml": "useTemplate: unknown field",
    f"{CONFIG}/application/k8s-plain-yaml.yaml": "spec.sealedSecrets: unknown field",
    f"{CONFIG}/sealedsecret/invalid.yaml": "unsupported kind: SealedSecret",
    f"{CONFIG}/sealedsecret/ok.yaml": "unsupported kind: SealedSecret",
    "pkg/configv1/testdata/application/invalid-kind.yaml": "unsupported kind: InvalidKind",
    "pkg/configv1/testdata/sealedsecret/invalid.yaml": "unsupported kind: SealedSecret",
    "pkg/configv1/testdata/sealedsecret/ok.yaml": "unsupported kind: SealedSecret",
    # Our control plane has no Firestore.
    f"{CONFIG}/control-plane/control-plane-config.yaml": "FIRESTORE is not supported",
    "pkg/configv1/testdata/control-plane/control-plane-config.yaml": "FIRESTORE is not supported",
}
# Keys that no type of upstream has either, where its loader ignores unknown keys.
UNKNOWN = {
    "examples/v0/cloudrun/analysis": {"stages[1].with.threshold", "stages[1].with.https[0].expected"},
    "examples/v0/kubernetes/analysis-with-baseline": {"stages[2].with.threshold"},
    "examples/v0/kubernetes_multicluster/canary": {"spec.plugins.kubernetes_multicluster.pipeline"},
    "examples/v0/lambda/custom-sync-sam": {"stages[0].with.env"},
    "pkg/app/pipedv1/plugin/ecs/planpreview/testdata": {"spec.plugin", "spec.deployTarget"},
    f"{MULTICLUSTER}/add_deploy_target/running": {"spec.quickSync"},
    f"{MULTICLUSTER}/add_deploy_target/target": {"spec.quickSync"},
    f"{MULTICLUSTER}/failed_all_of_rollback/running": {"spec.quickSync"},
    f"{MULTICLUSTER}/multicluster_failed_one_of_the_sync/target": {"spec.quickSync", "spec.input"},
    f"{MULTICLUSTER}/remove_deploy_target/running": {"spec.quickSync"},
    f"{MULTICLUSTER}/remove_deploy_target/target": {"spec.quickSync"},
    f"{MULTICLUSTER}/succes_one_of_rollback/running": {"spec.quickSync"},
    f"{CONFIG}/application": {"stages[1].with.failureLimit"},
}  # fmt: skip


@pytest.mark.skipif(not UPSTREAM, reason="PIPECD_UPSTREAM_SOURCE names no checkout of upstream")
def test_every_field_of_upstream_is_read(tool: ModuleType) -> None:
    documents = tool.read_tree(Path(UPSTREAM))
    assert [(each.file, each.lost) for each in documents if each.lost] == []
    unknown: dict[str, set[str]] = {}
    for each in documents:
        paths = {path.removeprefix("spec.pipeline.") for path in each.unknown}
        if paths:
            unknown.setdefault(str(each.file.parent), set()).update(paths)
    assert unknown == UNKNOWN
    refused = {str(d.file): d.refusal for d in documents if d.refusal and "only the first" not in d.refusal}  # fmt: skip
    assert refused.keys() == REFUSED.keys()
    for file, reason in REFUSED.items():
        assert reason in refused[file]
