# SPDX-License-Identifier: Apache-2.0
"""Manifests that Helm renders from a chart."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pipecd.plugins.kubernetes.application import HelmChart, HelmOptions
from pipecd.sdk import UserMistake


@dataclass(frozen=True)
class Chart:
    """A chart as Helm finds it: a path or a name, and what belongs to a remote one."""

    reference: str
    version: str = ""
    insecure: bool = False
    is_remote: bool = False


def arguments(chart: Chart, options: HelmOptions, *, release: str, namespace: str) -> list[str]:
    """Returns the arguments of a rendering; hooks are left out, definitions are not."""
    flags: list[str] = ["--no-hooks", "--include-crds"]
    if chart.version:
        flags += [f"--version={chart.version}"]
    if not chart.is_remote:
        flags += ["--dependency-update"]
    if chart.insecure:
        flags += ["--insecure-skip-tls-verify"]
    if namespace:
        flags += [f"--namespace={namespace}"]
    for key, value in options.set_values.items():
        flags += ["--set", f"{key}={value}"]
    for file in options.value_files:
        flags += ["-f", file]
    for key, file in options.set_files.items():
        flags += ["--set-file", f"{key}={file}"]
    for version in options.api_versions:
        flags += ["--api-versions", version]
    if options.kube_version:
        flags += ["--kube-version", options.kube_version]
    return ["template", *flags, "--", options.release_name or release, chart.reference]


def check_files(directory: Path, options: HelmOptions) -> None:
    """Refuses files outside of the application's directory: they may be anybody's."""
    for file in (*options.value_files, *options.set_files.values()):
        scheme = urlsplit(file).scheme.lower()
        if scheme in ("http", "https"):
            continue
        if scheme:
            raise UserMistake(f"{file}: a value file is a path, or an http or https address")
        if not (directory / file).resolve().is_relative_to(directory.resolve()):
            raise UserMistake(
                f"{file} lies outside of the application's directory",
                hint="move the file beside the application's configuration",
            )


def has_dependencies(chart: Path) -> bool:
    """Reports whether a chart of a directory uses other charts, which may be in a repository."""
    if (chart / "requirements.yaml").is_file():
        return True
    about = chart / "Chart.yaml"
    return about.is_file() and "dependencies:" in about.read_text(errors="replace")


def local_chart(chart: HelmChart) -> Chart:
    """Returns a chart of the application's own repository."""
    return Chart(chart.path)


def remote_chart(chart: HelmChart, *, insecure: bool) -> Chart:
    """Returns a chart of a repository that was added under a name, or of an OCI registry."""
    repository = chart.repository.rstrip("/")
    return Chart(
        f"{repository}/{chart.name}", version=chart.version, insecure=insecure, is_remote=True
    )
