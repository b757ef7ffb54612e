# SPDX-License-Identifier: Apache-2.0
"""No symbolic link of a repository makes piped read a file or a device of its host."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from pipecd.git.lfs import LfsFiles
from pipecd.model.errors import PipecdError
from pipecd.plugins.analysis.config import AnalysisTemplate
from pipecd.plugins.kubernetes.config import (
    ChartRepository,
    ChartSources,
    HelmChart,
    HelmOptions,
    ManifestInput,
)
from pipecd.sdk import Source
from servers.rendering import CHART, SECRET, HostileBranch, Renderer, config_map, make_repository

CHART_OF_BRANCH = ManifestInput(helm_chart=HelmChart(path="chart"))
UNRESTRICTED = ManifestInput(kustomize_options={"load-restrictor": "LoadRestrictionsNone"})
SHOWN = config_map("shown", "{{ .Values.shown }}")
FILES_GET = config_map("shown", '{{ .Files.Get "file" }}')


def chart(links: dict[str, str], template: str = FILES_GET) -> HostileBranch:
    """Returns a branch with a chart that has links."""
    files = {"chart/Chart.yaml": CHART, "chart/templates/one.yaml": template}
    return HostileBranch(
        {name: text for name, text in files.items() if name not in links},
        links,
        CHART_OF_BRANCH,
    )


ATTACKS: dict[str, HostileBranch] = {
    "a manifest of the directory": HostileBranch(links={"a.yaml": "{host}/manifest.yaml"}),
    "a named manifest": HostileBranch(
        links={"a.yaml": "{up}/manifest.yaml"}, input=ManifestInput(manifests=("a.yaml",))
    ),
    "a manifest behind a directory": HostileBranch(
        links={"d": "{host}"}, input=ManifestInput(manifests=("d/manifest.yaml",))
    ),
    "a manifest behind two links": HostileBranch(
        links={"a.yaml": "b", "b": "{host}/manifest.yaml"},
        input=ManifestInput(manifests=("a.yaml",)),
    ),
    "a device as a manifest": HostileBranch(
        links={"a.yaml": "/dev/zero"}, input=ManifestInput(manifests=("a.yaml",))
    ),
    "a kustomization": HostileBranch(
        links={"kustomization.yaml": "{host}/generator/kustomization.yaml"}, input=UNRESTRICTED
    ),
    "a base": HostileBranch({"kustomization.yaml": "resources: [base]\n"}, {"base": "{host}/base"}),
    "a file of a generator": HostileBranch(
        {"kustomization.yaml": "configMapGenerator: [{name: a, files: [file]}]\n"},
        {"file": "{host}/secret"},
        UNRESTRICTED,
    ),
    "a device as a file of a generator": HostileBranch(
        {"kustomization.yaml": "configMapGenerator: [{name: a, files: [file]}]\n"},
        {"file": "/dev/zero"},
        UNRESTRICTED,
    ),
    "a patch": HostileBranch(
        {
            "kustomization.yaml": "resources: [a.yaml]\npatches: [{path: p.yaml}]\n",
            "a.yaml": config_map("a"),
        },
        {"p.yaml": "{host}/patch.yaml"},
        UNRESTRICTED,
    ),
    "kustomizeDir": HostileBranch(links={"overlay": "{host}/base"}, kustomize_dir="overlay"),
    "a file that a chart shows": chart({"chart/file": "{host}/secret"}),
    "a device in a chart": chart({"chart/file": "/dev/zero"}),
    "a directory in a chart": chart(
        {"chart/d": "{host}"}, config_map("shown", '{{ .Files.Get "d/secret" }}')
    ),
    "a template of a chart": chart({"chart/templates/two.yaml": "{host}/manifest.yaml"}),
    "the values of a chart": chart({"chart/values.yaml": "{host}/values.yaml"}, SHOWN),
    "the description of a chart": chart(
        {"chart/Chart.yaml": "{host}/chart/Chart.yaml", "chart/file": "{host}/secret"}
    ),
    "a chart": HostileBranch(links={"chart": "{host}/chart"}, input=CHART_OF_BRANCH),
    "a subchart": chart({"chart/charts/sub": "{host}/chart"}),
    "a directory with the name of a chart repository": HostileBranch(
        links={"stable": "{host}"},
        input=ManifestInput(helm_chart=HelmChart(repository="stable", name="chart")),
    ),
    "a value file": HostileBranch(
        {"chart/Chart.yaml": CHART, "chart/templates/one.yaml": SHOWN},
        {"values.yaml": "{host}/values.yaml"},
        ManifestInput(
            helm_chart=HelmChart(path="chart"),
            helm_options=HelmOptions(value_files=("values.yaml",)),
        ),
    ),
    "a set file": HostileBranch(
        {"chart/Chart.yaml": CHART, "chart/templates/one.yaml": SHOWN},
        {"file": "{host}/secret"},
        ManifestInput(
            helm_chart=HelmChart(path="chart"),
            helm_options=HelmOptions(set_files={"shown": "file"}),
        ),
    ),
    "a file in a chart of a kustomization": HostileBranch(
        {
            "kustomization.yaml": "helmCharts: [{name: chart, releaseName: r}]\n",
            "charts/chart/Chart.yaml": CHART,
            "charts/chart/values.yaml": "a: b\n",
            "charts/chart/templates/one.yaml": FILES_GET,
        },
        {"charts/chart/file": "{host}/secret"},
        ManifestInput(kustomize_options={"enable-helm": ""}),
    ),
    "the Git directory of the working copy": HostileBranch(
        links={"a.yaml": "../../.git/manifest.yaml"}, input=ManifestInput(manifests=("a.yaml",))
    ),
}


@pytest.fixture
def renderer(tmp_path: Path, rendering_tools: None) -> Renderer:
    renderer = Renderer(tmp_path)
    (renderer.root / ".git").mkdir()
    (renderer.root / ".git" / "manifest.yaml").write_text(config_map("git", SECRET))
    return renderer


@pytest.mark.parametrize("branch", ATTACKS.values(), ids=ATTACKS)
async def test_a_link_does_not_show_a_file_of_the_host(
    renderer: Renderer, branch: HostileBranch
) -> None:
    output = await renderer.output(branch)
    assert SECRET not in output
    assert output.startswith("refused")


async def test_links_of_a_chart_in_another_repository_do_not_lead_out_of_it(
    renderer: Renderer, tmp_path: Path
) -> None:
    remote = tmp_path / "remote"
    (remote / "chart" / "templates").mkdir(parents=True)
    (remote / "chart" / "Chart.yaml").write_text(CHART)
    (remote / "chart" / "templates" / "one.yaml").write_text(FILES_GET)
    (remote / "chart" / "file").symlink_to(renderer.host / "secret")
    make_repository(remote)
    configured = ChartRepository(type="GIT", git_remote=str(remote))
    branch = HostileBranch(
        input=ManifestInput(helm_chart=HelmChart(git_remote=str(remote), ref="main", path="chart"))
    )
    output = await renderer.output(branch, ChartSources(chart_repositories=(configured,)))
    assert SECRET not in output


async def test_the_links_of_an_archived_chart_are_not_followed(renderer: Renderer) -> None:
    with tarfile.open(renderer.application / "chart.tgz", "w:gz") as archive:
        for name, text in (("Chart.yaml", CHART), ("templates/one.yaml", FILES_GET)):
            member = tarfile.TarInfo(f"chart/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("chart/file")
        link.type, link.linkname = tarfile.SYMTYPE, str(renderer.host / "secret")
        archive.addfile(link)
    chart_input = ManifestInput(helm_chart=HelmChart(path="chart.tgz"))
    assert SECRET not in await renderer.output(HostileBranch(input=chart_input))


async def test_a_lock_file_that_is_a_link_is_not_written_to(renderer: Renderer) -> None:
    # Helm before 3.18.4 wrote the lock file of the dependencies through the link.
    lock = renderer.host / "secret"
    branch = HostileBranch(
        {
            "library/Chart.yaml": CHART.replace("chart", "library"),
            "chart/Chart.yaml": CHART
            + "dependencies: [{name: library, version: 1.0.0, repository: 'file://../library'}]\n",
        },
        {"chart/Chart.lock": "{host}/secret"},
        CHART_OF_BRANCH,
    )
    await renderer.output(branch)
    assert lock.read_text() == SECRET


def test_shared_configuration_is_not_read_through_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside.yaml"
    outside.write_text(
        "apiVersion: pipecd.dev/v1beta1\nkind: AnalysisTemplate\n"
        f"spec: {{metrics: {{{SECRET}: {{provider: p}}}}}}\n"
    )
    shared = tmp_path / "work" / ".pipe"
    shared.mkdir(parents=True)
    (shared / "a.yaml").symlink_to(outside)
    source = Source(tmp_path / "work", "c1", b"", "app.pipecd.yaml", shared)
    with pytest.raises(PipecdError, match=r"\.pipe/a\.yaml cannot be read") as refused:
        source.shared_config("AnalysisTemplate", AnalysisTemplate)
    assert SECRET not in str(refused.value)


async def test_git_lfs_opens_no_link(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / ".gitattributes").symlink_to(tmp_path / "fifo")
    # Opening the FIFO would wait for a writer.
    lfs = LfsFiles("repository", tmp_path / "clone", {})
    await lfs.replace_pointers("1" * 40, tmp_path / "work")


LINKS_INSIDE: dict[str, HostileBranch] = {
    "a manifest": HostileBranch(
        {"../shared/a.yaml": config_map("shown")}, {"a.yaml": "../shared/a.yaml"}
    ),
    "a base": HostileBranch(
        {
            "kustomization.yaml": "resources: [base]\n",
            "../base/kustomization.yaml": "resources: [a.yaml]\n",
            "../base/a.yaml": config_map("shown"),
        },
        {"base": "../base"},
    ),
    "a file and a template of a chart": HostileBranch(
        {
            "../shared/file": "harmless",
            "../shared/templates/one.yaml": FILES_GET,
            "chart/Chart.yaml": CHART,
        },
        {"chart/file": "../../shared/file", "chart/templates": "../../shared/templates"},
        CHART_OF_BRANCH,
    ),
}


@pytest.mark.parametrize("branch", LINKS_INSIDE.values(), ids=LINKS_INSIDE)
async def test_a_link_inside_of_the_repository_is_followed(
    renderer: Renderer, branch: HostileBranch
) -> None:
    output = await renderer.output(branch)
    assert "name: shown" in output
    assert "harmless" in output
