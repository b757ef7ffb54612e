# SPDX-License-Identifier: Apache-2.0
"""Manifests that Helm renders from a chart."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipecd.plugins.kubernetes.application import HelmChart, HelmOptions
from pipecd.plugins.kubernetes.manifest.body import list_at, text_at
from pipecd.plugins.kubernetes.render.inputs import Inputs, is_pinned
from pipecd.sdk import UserMistake
from pipecd.sdk.yaml import read_documents


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
    """Refuses files outside of the application's directory: they may be anybody's.

    Helm reads a comma as the end of a path, so a list in one entry would pass unchecked.
    """
    for text in (*options.value_files, *options.set_files.values(), *options.set_files):
        if set(text) & set(',"') or (text in options.set_files and "=" in text):
            raise UserMistake(
                f"{text}: commas, quotes and = are not allowed in the name of a file or its key",
                hint="write one entry for each file under helmOptions",
            )
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
    return bool(_dependencies(chart))


def _dependencies(chart: Path) -> list[Any]:
    found: list[Any] = []
    for name in ("Chart.yaml", "requirements.yaml"):
        if (chart / name).is_file():
            text = (chart / name).read_text(errors="replace")
            for document in read_documents(text, file=name):
                found += list_at(document.value, "dependencies")
    return found


def value_inputs(directory: Path, options: HelmOptions) -> Inputs:
    """Returns the files of values that a rendering reads."""
    files = (*options.value_files, *options.set_files.values())
    paths = [file for file in files if not urlsplit(file).scheme]
    return Inputs({file: directory / file for file in paths}, is_open=len(paths) < len(files))


def chart_inputs(chart: Path) -> Inputs:
    """Returns what a chart of a directory is made from, with the directories that it depends on."""
    unread = [("chart:", chart.resolve())]
    places, is_open = dict(unread), False
    while unread:
        above, place = unread.pop()
        for dependency in _dependencies(place):
            path = text_at(dependency, "repository").removeprefix("file://")
            if path == text_at(dependency, "repository"):
                is_open |= bool(path) and not is_pinned(text_at(dependency, "version"))
                continue
            label, found = f"{above}/{path}", (place / path).resolve()
            if found not in places.values():
                places[label] = found
                unread.append((label, found))
    return Inputs(places, is_open)


def local_chart(chart: HelmChart) -> Chart:
    """Returns a chart of the application's own repository."""
    return Chart(chart.path)


def remote_chart(chart: HelmChart, *, insecure: bool) -> Chart:
    """Returns a chart of a repository that was added under a name, or of an OCI registry."""
    repository = chart.repository.rstrip("/")
    return Chart(
        f"{repository}/{chart.name}", version=chart.version, insecure=insecure, is_remote=True
    )
