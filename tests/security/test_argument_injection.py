# SPDX-License-Identifier: Apache-2.0
"""No ref, name or value of a repository becomes an option, a program or a second value."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipecd.config.rendering import RenderingSpec
from pipecd.git.credentials import GitCredentials, git_environment
from pipecd.git.remote import submodule_remote
from pipecd.model.errors import UserMistake
from pipecd.plugins.kubernetes.config import (
    ChartRepository,
    ChartSources,
    HelmChart,
    HelmOptions,
    ManifestInput,
)
from pipecd.program.run import capture
from servers.rendering import CHART, SECRET, HostileBranch, Renderer, config_map, make_repository

RAN = "ran"
PROGRAM = "#!/bin/sh\ntouch {host}/ran\ncat\n"
WITH_CHARTS = ManifestInput(kustomize_options={"enable-helm": ""})
HELM_CHART = {
    "charts/chart/Chart.yaml": CHART,
    "charts/chart/values.yaml": "a: b\n",
    "charts/chart/templates/one.yaml": config_map("shown"),
}


def kustomization(text: str, input_: ManifestInput | None = None) -> HostileBranch:
    """Returns a branch with a kustomization and a program."""
    files = {"kustomization.yaml": text, "a.yaml": config_map("a"), "program.sh": PROGRAM}
    return HostileBranch({**files, **HELM_CHART}, input=input_ or ManifestInput())


def helm_chart(text: str) -> HostileBranch:
    """Returns a branch with a kustomization that renders a chart."""
    return kustomization(f"helmCharts: [{{{text}}}]\n", WITH_CHARTS)


def options(**values: str) -> HostileBranch:
    """Returns a branch with a kustomization that starts a program if an option lets it."""
    named = {name.replace("_", "-"): value for name, value in values.items()}
    return HostileBranch(
        {
            "kustomization.yaml": "resources: [a.yaml]\ntransformers: [t.yaml]\n"
            "helmCharts: [{name: x, repo: https://example.invalid, version: 1.0.0}]\n",
            "a.yaml": config_map("a"),
            "program.sh": PROGRAM,
            "t.yaml": "apiVersion: t.example/v1\nkind: T\nmetadata:\n  name: t\n  annotations:\n"
            "    config.kubernetes.io/function: |\n      exec: {path: ./program.sh}\n",
        },
        input=ManifestInput(kustomize_options=named),
    )


# Each would start a program, which leaves a file on the host, or show a file of the host.
ATTACKS: dict[str, HostileBranch] = {
    "upload-pack as the ref of a remote base": kustomization(
        "resources: ['file://{host}/bases//base?ref=--upload-pack=touch {host}/ran;']\n"
    ),
    "upload-pack as the version of a remote base": kustomization(
        "resources: ['file://{host}/bases//base?version=--upload-pack=touch {host}/ran;']\n"
    ),
    "an abbreviated option as the ref of a remote base": kustomization(
        "resources: ['file://{host}/bases//base?ref=--upl=touch {host}/ran;']\n"
    ),
    "another repository of the host as a remote base": kustomization(
        "resources: ['file://{host}/bases//base?ref=main']\n"
    ),
    "a post-renderer as the release of a chart": helm_chart(
        "name: chart, releaseName: '--post-renderer={application}/program.sh'"
    ),
    "a post-renderer as a release with its value": helm_chart(
        "name: chart, releaseName: --post-renderer, namespace: program.sh"
    ),
    "a credential helper in the configuration of Helm": HostileBranch(
        {
            "kustomization.yaml": "helmGlobals: {configHome: config}\n"
            "helmCharts: [{name: chart, repo: 'oci://127.0.0.1:1/charts', version: 1.0.0}]\n",
            "config/registry/config.json": '{"credsStore": "x/../../program.sh"}',
            "docker-credential-x/a": "",
            "program.sh": PROGRAM,
        },
        input=WITH_CHARTS,
    ),
    "enable-exec": options(enable_alpha_plugins="", enable_exec=""),
    "enable-exec inside of a value": options(
        enable_helm="--enable-alpha-plugins", enable_managedby_label="--enable-exec"
    ),
    "a helm command": options(helm_command="./program.sh", enable_helm=""),
    "a helm command inside of a name": options(
        **{"helm_command=./program.sh": "", "enable_helm": ""}
    ),
    "a mount": options(mount="type=bind,src=/,dst=/host"),
    "an option without a name": options(**{"": "--enable-exec"}),
    "a variable of piped": options(env="PIPED_TOKEN"),
    "a variable of piped in a file": HostileBranch(
        {
            "kustomization.yaml": "configMapGenerator: [{name: a, envs: [variables.env]}]\n",
            "variables.env": "PIPED_TOKEN\n",
        }
    ),
    "a post-renderer as a release": HostileBranch(
        {**HELM_CHART, "program.sh": PROGRAM},
        input=ManifestInput(
            helm_chart=HelmChart(path="charts/chart"),
            helm_options=HelmOptions(release_name="--post-renderer=./program.sh"),
        ),
    ),
    "a post-renderer as a chart": HostileBranch(
        {**HELM_CHART, "program.sh": PROGRAM},
        input=ManifestInput(helm_chart=HelmChart(path="--post-renderer=./program.sh")),
    ),
    "an internal address as a file of a generator": kustomization(
        "configMapGenerator: [{name: a, files: ['k=http://127.0.0.1:1/secret']}]\n"
    ),
    "a NUL in a ref": HostileBranch(
        input=ManifestInput(
            helm_chart=HelmChart(git_remote="https://example.invalid/x", ref="a\0b")
        )
    ),
    "an option as the remote of a chart": HostileBranch(
        input=ManifestInput(helm_chart=HelmChart(git_remote="--upload-pack=touch {host}/ran"))
    ),
    "a program as the remote of a chart": HostileBranch(
        input=ManifestInput(helm_chart=HelmChart(git_remote="ext::touch {host}/ran"))
    ),
}


@pytest.fixture
def renderer(tmp_path: Path, rendering_tools: None, monkeypatch: pytest.MonkeyPatch) -> Renderer:
    monkeypatch.setenv("PIPED_TOKEN", SECRET)
    # The operator may have allowed every transport for other purposes.
    config = tmp_path / "gitconfig"
    config.write_text("[protocol]\n\tallow = always\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    renderer = Renderer(tmp_path)
    bases = renderer.host / "bases"
    (renderer.host / "base").rename(bases)
    (bases / "base").mkdir()
    for file in ("kustomization.yaml", "manifest.yaml"):
        (bases / file).rename(bases / "base" / file)
    make_repository(bases)
    return renderer


@pytest.mark.parametrize("branch", ATTACKS.values(), ids=ATTACKS)
async def test_no_program_is_started_and_nothing_of_the_host_is_shown(
    renderer: Renderer, branch: HostileBranch
) -> None:
    program = renderer.application / "program.sh"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.touch(0o755)
    output = await renderer.output(branch)
    assert not (renderer.host / RAN).exists()
    assert SECRET not in output


@dataclass(frozen=True)
class Values:
    """Entries of helmOptions that try to set `stolen` as well."""

    set_values: dict[str, str] = field(default_factory=dict[str, str])
    set_files: dict[str, str] = field(default_factory=dict[str, str])


ATTACKS_BY_VALUES: dict[str, Values] = {
    "a comma in a value": Values({"a": "b,stolen=yes"}),
    "a list with more behind it": Values({"a": "{b},stolen=yes"}),
    "a list with more behind it, without a comma": Values({"a": "{b}stolen=yes"}),
    "an escaped backslash before a comma": Values({"a": r"b\\,stolen=yes"}),
    "a comma in a key": Values({"stolen=yes,a": "b"}),
    "an equals sign in a key": Values({"stolen=yes": "b"}),
    "a comma in the key of a file": Values(set_files={"stolen=file,a": "file"}),
    "a comma in a file": Values(set_files={"a": "file,stolen=file"}),
    "a backslash at the end of the key of a file": Values(set_files={"a\\": "x,stolen=file"}),
}


@pytest.mark.parametrize("values", ATTACKS_BY_VALUES.values(), ids=ATTACKS_BY_VALUES)
async def test_one_entry_sets_one_value(renderer: Renderer, values: Values) -> None:
    branch = HostileBranch(
        {
            "chart/Chart.yaml": CHART,
            "chart/templates/one.yaml": config_map(
                "shown", "{{ if .Values.stolen }}was-stolen{{ end }}"
            ),
            "file": "yes",
            "x,stolen=file": "yes",
        },
        input=ManifestInput(
            helm_chart=HelmChart(path="chart"),
            helm_options=HelmOptions(set_values=values.set_values, set_files=values.set_files),
        ),
    )
    assert "was-stolen" not in await renderer.output(branch)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain=text", "plain=text"),
        (r"a\,b", "a,b"),
        ("{a,b}", "[a b]"),
        (r"{a\,b,c}", "[a,b c]"),
        ("", ""),
        ("3", "3"),
    ],
)
async def test_ordinary_values_are_set_as_helm_reads_them(
    renderer: Renderer, value: str, shown: str
) -> None:
    branch = HostileBranch(
        {
            "chart/Chart.yaml": CHART,
            "chart/templates/one.yaml": config_map("a", "<{{ .Values.k.deep }}>"),
        },
        input=ManifestInput(
            helm_chart=HelmChart(path="chart"),
            helm_options=HelmOptions(set_values={"k.deep": value}),
        ),
    )
    assert f"<{shown}>" in await renderer.output(branch)


ATTACKS_BY_REF: dict[str, str] = {
    "a file of paths": "--pathspec-from-file={host}/secret",
    "a new branch": "--orphan=x",
    "a short option": "-bx",
    "the previous branch": "-",
    "a hook": "--recurse-submodules",
    "the end of options": "--end-of-options",
    "two dashes": "--",
}


@pytest.mark.parametrize("ref", ATTACKS_BY_REF.values(), ids=ATTACKS_BY_REF)
async def test_the_ref_of_a_chart_is_no_option(renderer: Renderer, ref: str) -> None:
    remote = chart_repository(renderer.host)
    branch = HostileBranch(
        input=ManifestInput(helm_chart=HelmChart(git_remote=remote, ref=ref, path="chart"))
    )
    output = await renderer.output(branch, configured(remote))
    assert "there is no such branch, tag or commit" in output
    assert SECRET not in output


@pytest.mark.parametrize("ref", ["", "main", "v1", "origin/main", "HEAD~0"])
async def test_the_ref_of_a_chart_may_be_a_branch_a_tag_or_a_commit(
    renderer: Renderer, ref: str
) -> None:
    remote = chart_repository(renderer.host)
    branch = HostileBranch(
        input=ManifestInput(helm_chart=HelmChart(git_remote=remote, ref=ref, path="chart"))
    )
    assert "name: shown" in await renderer.output(branch, configured(remote))


def chart_repository(directory: Path) -> str:
    """Creates a Git repository with a chart and returns its path."""
    remote = directory / "charts"
    (remote / "chart" / "templates").mkdir(parents=True)
    (remote / "chart" / "Chart.yaml").write_text(CHART)
    (remote / "chart" / "templates" / "one.yaml").write_text(config_map("shown"))
    make_repository(remote)
    return str(remote)


def configured(remote: str) -> ChartSources:
    """Returns the chart repositories of an operator who allows a remote."""
    return ChartSources(chart_repositories=(ChartRepository(type="GIT", git_remote=remote),))


ATTACKS_BY_SUBMODULE: dict[str, tuple[str, str]] = {
    "a program": ("https://h/a/b", "ext::sh -c touch% x"),
    "an open file": ("https://h/a/b", "fd::17/x"),
    "an option of ssh": ("https://h/a/b", "ssh://-oProxyCommand=x/y"),
    "an option of ssh as a host": ("https://h/a/b", "git@-oProxyCommand=x:y"),
    "an option of git": ("https://h/a/b", "--upload-pack=x:y"),
    "a directory of the host": ("https://h/a/b", "/srv/other.git"),
    "a directory of the host as a URL": ("https://h/a/b", "file:///srv/other.git"),
    "a directory far from a local repository": ("/srv/git/app", "/var/lib/private"),
    "a path far from a local repository": ("/srv/git/app", "../../../var/lib/private"),
}


@pytest.mark.parametrize(("parent", "url"), ATTACKS_BY_SUBMODULE.values(), ids=ATTACKS_BY_SUBMODULE)
def test_the_url_of_a_submodule_is_no_program_and_no_other_directory(parent: str, url: str) -> None:
    with pytest.raises(UserMistake, match="of a submodule"):
        submodule_remote(parent, url)


@pytest.mark.parametrize(
    ("parent", "url"),
    [
        ("https://h/a/b", "https://other/x.git"),
        ("https://h/a/b", "git@other:x.git"),
        ("/srv/git/app", "../library"),
        ("/srv/git/app", "/srv/git/library"),
    ],
)
def test_an_ordinary_submodule_is_cloned(parent: str, url: str) -> None:
    assert submodule_remote(parent, url)


@pytest.mark.usefixtures("renderer")
async def test_git_of_piped_starts_no_program_of_a_transport(tmp_path: Path) -> None:
    ran = tmp_path / RAN
    with git_environment(GitCredentials(), directory=tmp_path / "git") as environment:
        done = await capture(
            ["git", "ls-remote", f"ext::touch {ran}"], cwd=tmp_path, env=environment.variables()
        )
    assert done.code
    assert not ran.exists()


async def test_a_remote_base_is_cloned_by_an_allowed_transport(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A test has no server in the Internet: the operator allows the transport of local files.
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "file")
    branch = kustomization("resources: ['file://{host}/bases//base?ref=main']\n")
    output = await renderer.output(
        branch, rendering=RenderingSpec(variables=("GIT_ALLOW_PROTOCOL",))
    )
    assert "name: host" in output
