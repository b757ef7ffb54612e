# SPDX-License-Identifier: Apache-2.0
"""No path in a repository makes piped show a file of its host."""

from pathlib import Path
from shutil import copytree

import pytest

from pipecd.plugins.kubernetes.config import HelmChart, HelmOptions, ManifestInput
from servers.rendering import CHART, SECRET, HostileBranch, Renderer, config_map, make_repository

UNRESTRICTED = ManifestInput(kustomize_options={"load-restrictor": "LoadRestrictionsNone"})
WITH_CHARTS = ManifestInput(
    kustomize_options={"load-restrictor": "LoadRestrictionsNone", "enable-helm": ""}
)
SHOWN = config_map("shown", "{{ .Values.shown }}")
OWN_CHART = {"chart/Chart.yaml": CHART, "chart/templates/one.yaml": SHOWN}


def kustomization(text: str, input_: ManifestInput = UNRESTRICTED, **files: str) -> HostileBranch:
    """Returns a branch with a kustomization; `files` has further files by name."""
    named = {f"{name}.yaml": content for name, content in files.items()}
    return HostileBranch(
        {"kustomization.yaml": text, "a.yaml": config_map("a"), **named}, input=input_
    )


def chart(helm_chart: HelmChart, options: HelmOptions | None = None) -> HostileBranch:
    """Returns a branch that renders a chart."""
    return HostileBranch(
        OWN_CHART, input=ManifestInput(helm_chart=helm_chart, helm_options=options)
    )


OWN = HelmChart(path="chart")
GENERATOR = (
    "apiVersion: builtin\nkind: ConfigMapGenerator\nmetadata: {name: a}\nfiles: [k={host}/secret]\n"
)
PATCH = "apiVersion: builtin\nkind: PatchTransformer\nmetadata: {name: p}\npath: {host}/patch.yaml\ntarget: {kind: ConfigMap}\n"

ATTACKS: dict[str, HostileBranch] = {
    "an absolute path in manifests": HostileBranch(
        input=ManifestInput(manifests=("{host}/manifest.yaml",))
    ),
    "a path upwards in manifests": HostileBranch(
        input=ManifestInput(manifests=("{up}/manifest.yaml",))
    ),
    "a base above the repository": kustomization("resources: ['{up}/base']\n", ManifestInput()),
    "a component above the repository": kustomization(
        "resources: ['{up}/generator', a.yaml]\n", ManifestInput()
    ),
    "kustomizeDir above the repository": HostileBranch(kustomize_dir="{up}/base"),
    "an absolute resource": kustomization("resources: ['{host}/manifest.yaml']\n"),
    "a file of a generator": kustomization(
        "configMapGenerator: [{name: a, files: ['{host}/secret']}]\n"
    ),
    "a renamed file of a generator": kustomization(
        "configMapGenerator: [{name: a, files: ['k={up}/secret']}]\n"
    ),
    "a file of variables": kustomization(
        "configMapGenerator: [{name: a, envs: ['{host}/secret.env']}]\n"
    ),
    "one file of variables": kustomization(
        "configMapGenerator: [{name: a, env: '{host}/secret.env'}]\n"
    ),
    "the path of a patch": kustomization(
        "resources: [a.yaml]\npatches: [{path: '{host}/patch.yaml'}]\n"
    ),
    "a strategic merge patch": kustomization(
        "resources: [a.yaml]\npatchesStrategicMerge: ['{host}/patch.yaml']\n"
    ),
    "a generator in a file": kustomization("generators: [g.yaml]\n", g=GENERATOR),
    "a generator in the kustomization": kustomization(
        "generators:\n- |\n  " + GENERATOR.replace("\n", "\n  ") + "\n"
    ),
    "a transformer in the kustomization": kustomization(
        "resources: [a.yaml]\ntransformers:\n- |\n  " + PATCH.replace("\n", "\n  ") + "\n"
    ),
    "a chart home of the host": kustomization(
        "helmGlobals: {chartHome: '{host}'}\nhelmCharts: [{name: chart}]\n", WITH_CHARTS
    ),
    "a chart name with a path upwards": kustomization(
        "helmCharts: [{name: '../{up}/chart', valuesFile: a.yaml}]\n", WITH_CHARTS
    ),
    "a values file of the host": HostileBranch(
        {
            "kustomization.yaml": "helmCharts: [{name: chart, valuesFile: '{host}/values.yaml'}]\n",
            "charts/chart/Chart.yaml": CHART,
            "charts/chart/templates/one.yaml": SHOWN,
        },
        input=WITH_CHARTS,
    ),
    "an absolute path of a chart": chart(HelmChart(path="{host}/chart")),
    "a path of a chart upwards": chart(HelmChart(path="{up}/chart")),
    "a directory as a chart repository": chart(HelmChart(repository="{host}", name="chart")),
    "a path upwards as a chart repository": chart(HelmChart(repository="{up}", name="chart")),
    "a path upwards in the name of a chart": chart(HelmChart(repository="x", name="../{up}/chart")),
    "a directory as the Git remote of a chart": chart(
        HelmChart(git_remote="{host}/charts", path="chart")
    ),
    "a dependency of a chart on the host": HostileBranch(
        OWN_CHART
        | {
            "chart/Chart.yaml": CHART
            + "dependencies: [{name: chart, alias: b, version: 1.0.0, repository: 'file://{host}/chart'}]\n"
        },
        input=ManifestInput(helm_chart=OWN),
    ),
    "an absolute value file": chart(OWN, HelmOptions(value_files=("{host}/values.yaml",))),
    "a value file behind a comma": chart(
        OWN, HelmOptions(value_files=("a.yaml,{host}/values.yaml",))
    ),
    "a quoted value file": chart(OWN, HelmOptions(value_files=('"{host}/values.yaml"',))),
    "a value file as a file URL": chart(
        OWN, HelmOptions(value_files=("file://{host}/values.yaml",))
    ),
    "an absolute set file": chart(OWN, HelmOptions(set_files={"shown": "{host}/secret"})),
    "a set file behind a comma": chart(
        OWN, HelmOptions(set_files={"a": "a.yaml,shown={host}/secret"})
    ),
    "a set file with escaped dots": chart(
        OWN, HelmOptions(set_files={"shown": "{escaped}/secret"})
    ),
    "a set file inside of a key": chart(
        OWN, HelmOptions(set_files={"shown={host}/secret,b": "a.yaml"})
    ),
}


@pytest.fixture
def renderer(tmp_path: Path, rendering_tools: None) -> Renderer:
    renderer = Renderer(tmp_path)
    copytree(renderer.host / "chart", renderer.host / "charts" / "chart")
    make_repository(renderer.host / "charts")
    return renderer


@pytest.mark.parametrize("branch", ATTACKS.values(), ids=ATTACKS)
async def test_a_path_does_not_show_a_file_of_the_host(
    renderer: Renderer, branch: HostileBranch
) -> None:
    output = await renderer.output(branch)
    assert SECRET not in output
    assert output.startswith("refused")


PATHS_INSIDE: dict[str, HostileBranch] = {
    "a manifest of another directory": HostileBranch(
        {"../shared/a.yaml": config_map("shown")},
        input=ManifestInput(manifests=("../shared/a.yaml",)),
    ),
    "a base and a file of other directories": HostileBranch(
        {
            "../base/kustomization.yaml": "resources: [a.yaml]\n",
            "../base/a.yaml": config_map("shown"),
            "../files/key": "harmless",
            "kustomization.yaml": "resources: [../base]\n"
            "configMapGenerator: [{name: a, files: [../files/key]}]\n"
            "commonAnnotations: {home: /etc/passwd}\n",
        },
        input=UNRESTRICTED,
    ),
    "a chart of a kustomization": HostileBranch(
        {
            "kustomization.yaml": "helmCharts:\n- name: chart\n  releaseName: r\n"
            "  valuesInline: {shown: harmless, ingress: {path: /, files: /etc/passwd}}\n",
            "charts/chart/Chart.yaml": CHART,
            "charts/chart/templates/one.yaml": SHOWN,
            "charts/chart/values.yaml": "shown: default\n",
        },
        input=ManifestInput(kustomize_options={"enable-helm": ""}),
    ),
    "values, files and a dependency of a chart": HostileBranch(
        OWN_CHART
        | {
            "../library/Chart.yaml": CHART.replace("chart", "library"),
            "chart/Chart.yaml": CHART
            + "dependencies: [{name: library, version: 1.0.0, repository: 'file://../../library'}]\n",
            "deep/values,1.yaml": "shown: other\n",
            "deep/file,1": "harmless",
        },
        input=ManifestInput(
            helm_chart=OWN,
            helm_options=HelmOptions(
                value_files=("deep/../deep/values,1.yaml",), set_files={"shown": "deep/file,1"}
            ),
        ),
    ),
}


@pytest.mark.parametrize("branch", PATHS_INSIDE.values(), ids=PATHS_INSIDE)
async def test_a_path_inside_of_the_repository_is_rendered(
    renderer: Renderer, branch: HostileBranch
) -> None:
    output = await renderer.output(branch)
    assert "name: shown" in output
    assert "harmless" in output
