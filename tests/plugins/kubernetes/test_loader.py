# SPDX-License-Identifier: Apache-2.0
"""Manifests are loaded from plain files, by Kustomize and by Helm."""

import asyncio
import subprocess
from pathlib import Path
from shutil import copytree

import pytest

from pipecd.git.credentials import GitCredentials, git_environment
from pipecd.plugins.kubernetes import helm, helm_values, kustomize
from pipecd.plugins.kubernetes.config import (
    ChartRepository,
    ChartSources,
    HelmChart,
    HelmOptions,
    ManifestInput,
)
from pipecd.plugins.kubernetes.helm import GitChartCache
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.host import plain_git_variables
from plugins.kubernetes.testbed import NoInstaller
from servers.git_ssh import GitSsh

CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n"


def source(directory: Path, commit: str = "c1") -> Source:
    """Returns the directory as the source of a commit."""
    return Source(directory, commit, b"", "app.pipecd.yaml", directory)


async def names(
    directory: Path, input_: ManifestInput | None = None, commit: str = "c1"
) -> list[str]:
    """Returns the names of the objects that a directory declares."""
    configured = ChartRepository(type="GIT", git_remote=str(directory.parent / "charts"))
    loader = ManifestLoader(
        ChartSources(chart_repositories=(configured,)),
        directory.parent / "state",
        plain_git_variables,
    )
    order = RenderRequest(
        source(directory, commit), input_ or ManifestInput(), "web", NoInstaller()
    )
    return [f"{m.key.namespace}/{m.name}" for m in await loader.load(order)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / "app"
    directory.mkdir()
    for name in ("b", "a"):
        (directory / f"{name}.yaml").write_text(CONFIG_MAP.format(name=name))
    return directory


async def test_all_manifest_files_are_read_in_order(directory: Path) -> None:
    (directory / "app.pipecd.yaml").write_text("kind: Application")
    (directory / "other.pipecd.yaml").write_text("kind: Application")
    (directory / "README.md").write_text("no: manifest")
    (directory / "deeper").mkdir()
    (directory / "c.json").write_text('{"apiVersion":"v1","kind":"Secret","metadata":{"name":"c"}}')
    assert await names(directory) == ["/a", "/b", "/c"]


async def test_input_manifests_selects_files(directory: Path) -> None:
    assert await names(directory, ManifestInput(manifests=("b.yaml",))) == ["/b"]
    with pytest.raises(
        UserMistake, match=r"x\.yaml cannot be read: it does not exist; correct input\.manifests"
    ):
        await names(directory, ManifestInput(manifests=("x.yaml",)))


async def test_the_namespace_of_the_input_applies_to_all_objects(directory: Path) -> None:
    assert await names(directory, ManifestInput(namespace="prod")) == ["prod/a", "prod/b"]


async def test_kustomize_builds(
    directory: Path, kustomize: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(kustomize).parent), prepend=":")
    (directory / "kustomization.yaml").write_text("namePrefix: my-\nresources: [a.yaml]\n")
    assert await names(directory) == ["/my-a"]
    (directory / "kustomization.yaml").write_text("resources: [missing.yaml]\n")
    with pytest.raises(UserMistake, match=r"kustomize build failed: .*missing\.yaml"):
        await names(directory)


CHART = "apiVersion: v2\nname: chart\nversion: 1.0.0\n"
TEMPLATE = CONFIG_MAP.format(name="{{ .Release.Name }}-{{ .Values.suffix }}")


@pytest.fixture
def chart(directory: Path, helm: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(Path(helm).parent), prepend=":")
    directory = directory / "chart"
    (directory / "templates").mkdir(parents=True)
    (directory / "Chart.yaml").write_text(CHART)
    (directory / "values.yaml").write_text("suffix: plain\n")
    (directory / "templates" / "one.yaml").write_text(TEMPLATE)
    return directory


async def test_helm_renders_a_chart_of_the_application(directory: Path, chart: Path) -> None:
    (directory / "values.prod.yaml").write_text("suffix: file\n")
    local = HelmChart(path="chart")
    assert await names(directory, ManifestInput(helm_chart=local, namespace="prod")) == [
        "prod/web-plain"
    ]
    by_set = HelmOptions(release_name="r", set_values={"suffix": "set"})
    assert await names(directory, ManifestInput(helm_chart=local, helm_options=by_set)) == [
        "/r-set"
    ]
    by_file = HelmOptions(value_files=("values.prod.yaml",))
    assert await names(directory, ManifestInput(helm_chart=local, helm_options=by_file)) == [
        "/web-file"
    ]


@pytest.fixture
def repository(directory: Path, chart: Path) -> str:
    remote = directory.parent / "charts"
    chart.parent.rename(remote)
    directory.mkdir()
    commit(remote)
    return str(remote)


def commit(directory: Path) -> None:
    """Makes a directory a repository of one commit."""
    for argv in (["init", "-q"], ["add", "."], ["commit", "-qm", "chart"], ["tag", "v1"]):
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *who, "-C", str(directory), *argv], check=True)


async def test_helm_renders_a_chart_of_another_repository(directory: Path, repository: str) -> None:
    remote = HelmChart(git_remote=repository, ref="v1", path="chart")
    assert await names(directory, ManifestInput(helm_chart=remote)) == ["/web-plain"]


async def test_several_applications_may_use_a_branch_of_charts_at_the_same_time(
    directory: Path, repository: str, tmp_path: Path
) -> None:
    configured = ChartRepository(type="GIT", git_remote=repository)
    sources = ChartSources(chart_repositories=(configured,))
    loader = ManifestLoader(sources, tmp_path / "state", plain_git_variables)
    input_ = ManifestInput(helm_chart=HelmChart(git_remote=repository, path="chart"))
    requests = [RenderRequest(source(directory), input_, name, NoInstaller()) for name in "abcd"]
    loaded = await asyncio.gather(*map(loader.load, requests))
    assert [each[0].name for each in loaded] == ["a-plain", "b-plain", "c-plain", "d-plain"]


async def test_kustomize_reads_bases_with_the_ssh_command_of_piped(
    directory: Path,
    kustomize: str,
    git_ssh: GitSsh,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(Path(kustomize).parent), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path))
    remote = tmp_path / "bases.git"
    copytree(directory, remote)
    (remote / "kustomization.yaml").write_text("resources: [a.yaml]\n")
    commit(remote)
    (directory / "kustomization.yaml").write_text(f"resources: ['{git_ssh.url(remote)}']\n")
    key = GitCredentials(ssh_key=git_ssh.private_key.encode())
    with git_environment(key, directory=tmp_path / "access") as environment:
        loader = ManifestLoader(ChartSources(), tmp_path / "state", environment.variables)
        order = RenderRequest(source(directory), ManifestInput(), "web", NoInstaller())
        assert [m.name for m in await loader.load(order)] == ["a"]


@pytest.mark.parametrize(
    ("ref", "path", "message"),
    [("v2", "chart", "cannot be read at v2"), ("v1", "../..", "has no directory")],
)
async def test_a_missing_chart_is_refused(
    directory: Path, repository: str, ref: str, path: str, message: str
) -> None:
    wrong = HelmChart(git_remote=repository, ref=ref, path=path)
    with pytest.raises(UserMistake, match=message):
        await names(directory, ManifestInput(helm_chart=wrong))


@pytest.mark.parametrize("option", ["--pathspec-from-file={file}", "--orphan=x", "-b x", "-"])
async def test_the_ref_of_a_chart_cannot_be_an_option_of_git(tmp_path: Path, option: str) -> None:
    host_file = tmp_path / "host-secret"
    host_file.write_text("content of the host")
    remote = tmp_path / "charts"
    (remote / "chart").mkdir(parents=True)
    (remote / "chart" / "Chart.yaml").write_text(CHART)
    commit(remote)
    configured = ChartRepository(type="GIT", git_remote=str(remote))
    charts = GitChartCache((configured,), tmp_path / "cached", plain_git_variables)
    chart = HelmChart(git_remote=str(remote), ref=option.format(file=host_file), path="chart")
    with pytest.raises(UserMistake, match="there is no such branch, tag or commit") as refused:
        async with charts.checkout(chart):
            pass
    assert "content of the host" not in str(refused.value)


async def test_the_remote_of_a_chart_cannot_be_an_option_of_git(tmp_path: Path) -> None:
    charts = GitChartCache((), tmp_path / "cached", plain_git_variables)
    chart = HelmChart(git_remote=f"--upload-pack=touch {tmp_path}/ran", path="chart")
    with pytest.raises(UserMistake, match="cannot be read"):
        async with charts.checkout(chart):
            pass
    assert not (tmp_path / "ran").exists()


async def test_release_names_and_charts_cannot_be_options_of_helm(
    directory: Path, chart: Path
) -> None:
    named = HelmOptions(release_name="--post-renderer=/bin/false")
    with pytest.raises(UserMistake, match="invalid release name"):
        await names(
            directory, ManifestInput(helm_chart=HelmChart(path="chart"), helm_options=named)
        )
    with pytest.raises(UserMistake, match="there is no chart --post-renderer=x"):
        await names(directory, ManifestInput(helm_chart=HelmChart(path="--post-renderer=x")))


async def test_the_error_has_the_stderr_of_helm(directory: Path, chart: Path) -> None:
    (chart / "templates" / "one.yaml").write_text("{{ .Values.nope.deeper }}")
    with pytest.raises(UserMistake, match=r"helm template failed: .*nil pointer"):
        await names(directory, ManifestInput(helm_chart=HelmChart(path="chart")))


@pytest.mark.parametrize("file", ["../app-secrets/x.yaml", "/etc/passwd", "s3://bucket/x.yaml"])
def test_value_files_outside_of_the_application_are_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / "app").mkdir()
    with pytest.raises(UserMistake, match=r"outside of the application|http or https"):
        helm_values.validate_files(tmp_path / "app", HelmOptions(value_files=(file,)), ())


def test_the_arguments_for_a_remote_chart() -> None:
    chart = helm.remote_chart(
        HelmChart(repository="oci://host/charts/", name="web", version="1.2.3"),
        Path("/"),
        insecure=True,
    )
    arguments = helm.template_arguments(
        chart, HelmOptions(), release="r", namespace="", value_files={}
    )
    assert arguments[-2:] == ["r", "oci://host/charts/web"]
    assert {"--version=1.2.3", "--insecure-skip-tls-verify", "--no-hooks"} <= set(arguments)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("", ["build", ".", "--enable-helm"]),
        ("4.0.5", ["build", ".", "--enable-helm"]),
        ("5.4.3", ["build", ".", "--helm-command=/bin/helm", "--enable-helm"]),
    ],
)
def test_helm_command_is_set_for_newer_kustomize_versions(
    version: str, expected: list[str]
) -> None:
    arguments = kustomize.build_arguments(
        {"enable-helm": ""}, version=version, helm=Path("/bin/helm")
    )
    assert arguments == expected


STARTS_PROGRAMS = """
apiVersion: transformers.example.co/v1
kind: Transformer
metadata:
  name: t
  annotations:
    config.kubernetes.io/function: |
      exec: {path: ./program.sh}
"""


@pytest.mark.parametrize(
    "options",
    [
        {"enable-alpha-plugins": "", "enable-exec": ""},
        {"enable-alpha-plugins=true": "", "enable-exec=true": ""},
        {"enable-helm": "--enable-alpha-plugins", "enable-managedby-label": "--enable-exec"},
        {"enable-helm=true": "--enable-exec"},
        {"reorder": "none", "-enable-alpha-plugins": "", "enable-exec": ""},
        {"helm-command": "./program.sh", "enable-helm": ""},
        {"helm-command=./program.sh": "", "enable-helm": ""},
        {"network": ""},
        {"network-name": "host"},
        {"mount": "type=bind,src=/,dst=/host"},
        {"env": "SECRET"},
        {"e": "SECRET"},
        {"output": "/tmp/file"},
        {"o": "/tmp/file"},
        {"": "--enable-exec"},
    ],
    ids=str,
)
async def test_kustomize_options_cannot_start_programs(
    directory: Path,
    kustomize: str,
    helm: str,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
) -> None:
    for tool in (kustomize, helm):
        monkeypatch.setenv("PATH", str(Path(tool).parent), prepend=":")
    program = directory / "program.sh"
    program.write_text(f"#!/bin/sh\ntouch {directory}/ran\ncat\n")
    program.chmod(0o755)
    (directory / "t.yaml").write_text(STARTS_PROGRAMS)
    (directory / "kustomization.yaml").write_text(
        "resources: [a.yaml]\ntransformers: [t.yaml]\n"
        "helmCharts: [{name: x, repo: https://example.invalid, version: 1.0.0}]\n"
    )
    with pytest.raises(UserMistake, match="kustomize"):
        await names(directory, ManifestInput(kustomize_options=options))
    assert not (directory / "ran").exists()


def test_a_refused_kustomize_option_is_reported_with_the_allowed_ones() -> None:
    with pytest.raises(
        UserMistake,
        match=r"kustomizeOptions: enable-exec, o: not allowed.*write only .*enable-helm.*reorder",
    ):
        kustomize.validate_options({"reorder": "none", "o": "x", "enable-exec": ""})


def test_a_kustomize_option_and_its_value_are_one_argument() -> None:
    arguments = kustomize.build_arguments(
        {"reorder": "none", "load-restrictor": "LoadRestrictionsNone", "enable-helm": ""},
        version="",
        helm=None,
    )
    assert arguments == [
        "build",
        ".",
        "--reorder=none",
        "--load-restrictor=LoadRestrictionsNone",
        "--enable-helm",
    ]
