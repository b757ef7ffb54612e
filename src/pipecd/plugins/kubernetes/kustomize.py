# SPDX-License-Identifier: Apache-2.0
"""Kustomize: the arguments of `kustomize build`, and the files that a build reads."""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pipecd.plugins.kubernetes.render_inputs import RenderInputs, is_commit, is_pinned
from pipecd.sdk import UserMistake
from pipecd.sdk.diff import is_list, is_map
from pipecd.sdk.files import contained_path, read_contained
from pipecd.sdk.unstructured import text_at
from pipecd.sdk.yaml import read_documents

_FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
# Other flags of `kustomize build` start programs, read variables of piped or write files.
_ALLOWED_OPTIONS = (
    "allow-id-changes",
    "enable-helm",
    "enable-kyaml",
    "enable-managedby-label",
    "enable_managedby_label",
    "helm-api-versions",
    "helm-debug",
    "helm-kube-version",
    "load-restrictor",
    "load_restrictor",
    "reorder",
)
# Older versions have no --helm-command and run the helm in PATH.
_HELM_COMMAND_SINCE = (4, 1, 0)
# Under these keys a text that is no file is a URL.
_PATHS_OR_URLS = frozenset(
    {"resources", "bases", "components", "generators", "transformers", "validators"}
)
# Under these keys a text may also be an inline document.
_PATHS_URLS_OR_DOCUMENTS = frozenset(
    {"path", "valuesFile", "additionalValuesFiles", "crds", "configurations"}
)
# Files under these keys name further files.
_FILES_WITH_PATHS = frozenset({"generators", "transformers", "validators", "configurations"})
# Texts under these keys are paths, so they must not lead outside of the working copy.
_PATHS = (
    _PATHS_OR_URLS
    | _PATHS_URLS_OR_DOCUMENTS
    | _FILES_WITH_PATHS
    | {"files", "envs", "env", "paths", "values", "chartHome", "patches", "replacements"}
    | {"patchesStrategicMerge", "patchesJson6902"}
)
# The content of files under these keys becomes part of a manifest, whatever it is.
_SHOWN_FILES = frozenset({"files", "envs", "env", "values", "valuesFile", "additionalValuesFiles"})
_WEB_ADDRESS = re.compile(r"(?:[^=/]*=)?(?P<url>https?://.*)", re.IGNORECASE)
# Programs and arguments that Kustomize 3 ran for a chart.
_PROGRAM_KEYS = frozenset({"helmBin", "extraArgs"})
_LOAD_RESTRICTORS = ("load-restrictor", "load_restrictor")
_UNRESTRICTED = re.compile(r"(?:LoadRestrictions)?none", re.IGNORECASE)
_CHART_HOME = "charts"
# What is below these keys goes to a chart.
_VALUES_OF_CHARTS = frozenset({"valuesInline", "valuesLocal"})
# The keys of the repository and the version of a chart, in both formats of kustomizations.
_CHART_VERSIONS = (("repo", "version"), ("chartRepoUrl", "chartVersion"))
# Longer texts are documents and no file names.
_MAX_FILE_NAME = 255
_URL = re.compile(r"(?:https?|ssh|git|oci|s3)://|git::|git@")
_REF = re.compile(r"[?&](?:ref|version)=([^&]*)")


def is_kustomized(directory: Path) -> bool:
    """Reports whether a directory has a kustomization file."""
    return any((directory / name).is_file() for name in _FILES)


def uses_helm(options: Mapping[str, str]) -> bool:
    """Reports whether a build may render charts."""
    return "enable-helm" in options


def validate_options(options: Mapping[str, str], allowed_by_operator: Collection[str] = ()) -> None:
    """Refuses flags that are neither on the allow-list nor allowed by the operator."""
    allowed = {*_ALLOWED_OPTIONS, *allowed_by_operator}
    refused = sorted(options.keys() - allowed)
    if refused:
        raise UserMistake(
            f"input.kustomizeOptions: {', '.join(refused)}: not allowed for kustomize build",
            hint=f"write only {', '.join(sorted(allowed))}, or add them to "
            "rendering.kustomizeOptions of the piped",
        )


def is_unrestricted(options: Mapping[str, str]) -> bool:
    """Reports whether Kustomize may read files outside of the directory of a kustomization."""
    return any(_UNRESTRICTED.fullmatch(options.get(name, "")) for name in _LOAD_RESTRICTORS)


def build_arguments(options: Mapping[str, str], *, version: str, helm: Path | None) -> list[str]:
    """Returns the arguments of `kustomize build`, each flag with its value in one argument."""
    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    numbers = version.removeprefix("v").split("-")[0].split(".")
    is_release = all(part.isdigit() for part in numbers)
    if helm is not None and is_release and tuple(map(int, numbers)) >= _HELM_COMMAND_SINCE:
        flags.insert(0, f"--helm-command={helm}")
    return ["build", ".", *flags]


def inputs(
    directory: Path,
    options: Mapping[str, str],
    *,
    root: Path,
    allowed_by_operator: Collection[str] = (),
    hosts: Collection[str] = (),
) -> RenderInputs:
    """Returns the files that a build reads, also those outside of its directory.

    Refuses a kustomization that reads files outside of `root`. Kustomize keeps a remote base inside
    of its own repository, but not without load restrictions: then piped cannot know what it reads.
    Files by URL come from `hosts` only: any response of a network of piped would be shown.
    """
    collector = _InputCollector(directory.resolve(), root, hosts, charts=uses_helm(options))
    collector.collect()
    is_trusted = any(name in allowed_by_operator for name in _LOAD_RESTRICTORS)
    if collector.remotes and is_unrestricted(options) and not is_trusted:
        raise UserMistake(
            f"{collector.remotes[0]} is not in the repository, and load-restrictor allows a remote "
            "base to read any file of the host of piped",
            hint="copy the base into the repository, or add load-restrictor to "
            "rendering.kustomizeOptions of the piped",
        )
    return RenderInputs(collector.paths, collector.depends_on_network)


class _InputCollector:
    """Collects the files that a kustomization names, and those of its bases."""

    def __init__(
        self, directory: Path, root: Path, hosts: Collection[str], *, charts: bool
    ) -> None:
        self.paths: dict[str, Path] = {}
        self.remotes: list[str] = []
        self.depends_on_network = False
        self._directory, self._root = directory, root
        self._hosts, self._has_charts = hosts, charts
        self._queue = [directory]

    def collect(self) -> None:
        """Reads the kustomization and its bases until no new base is named."""
        visited: set[Path] = set()
        while self._queue:
            directory = self._queue.pop()
            if directory in visited:
                continue
            visited.add(directory)
            for name in _FILES:
                if (directory / name).is_file():
                    self._read(directory, directory / name)
            if self._has_charts and (directory / _CHART_HOME).is_dir():
                self._add(directory / _CHART_HOME)

    def _read(self, directory: Path, file: Path) -> None:
        self._add(file)
        try:
            text = read_contained(self._root, file).decode(errors="replace")
        except UserMistake as e:
            name = os.path.relpath(file, self._directory)
            raise UserMistake(f"{name} cannot be rendered: {e.message}") from e
        self._read_documents(directory, text, file.name)

    def _read_documents(self, directory: Path, text: str, name: str) -> None:
        for document in read_documents(text, file=name):
            for parent, key, value in _texts({}, "", document.value):
                if key in _PROGRAM_KEYS:
                    raise UserMistake(
                        f"{name}: {key} is not allowed, as it starts a program",
                        hint=f"remove {key} from the chart",
                    )
                if key in _FILES_WITH_PATHS and "\n" in value:
                    self._read_documents(directory, value, name)
                else:
                    self._add_reference(directory, key, value)
                # A chart without a pinned version depends on the index of its repository.
                self.depends_on_network |= any(
                    text_at(parent, repository) and not is_pinned(text_at(parent, version))
                    for repository, version in _CHART_VERSIONS
                )

    def _add_reference(self, directory: Path, key: str, text: str) -> None:
        if key in _SHOWN_FILES and (match := _WEB_ADDRESS.fullmatch(text)):
            self._validate_host(match["url"])
        # An entry of `files` of a generator may be `name=path`.
        path = self._path(directory, key, text.rpartition("=")[2])
        if path is not None and path.is_file():
            self._add(path)
            if key in _FILES_WITH_PATHS:
                self._read(directory, path)
        elif path is not None and is_kustomized(path) and path != directory:
            self._queue.append(path)
        elif path is not None and key == "chartHome" and path.is_dir():
            self._add(path)
        elif key in _PATHS_OR_URLS or (key in _PATHS_URLS_OR_DOCUMENTS and _URL.match(text)):
            ref = _REF.search(text)
            self.depends_on_network |= ref is None or not is_commit(ref[1])
            self.remotes.append(text)

    def _validate_host(self, url: str) -> None:
        host = urlsplit(url).hostname or ""
        if host not in self._hosts:
            raise UserMistake(
                f"the file at {host} cannot be rendered: the host is not allowed",
                hint="copy the file into the repository, or add the host to "
                "rendering.valueFileHosts of the piped",
            )

    def _path(self, directory: Path, key: str, text: str) -> Path | None:
        """Returns the path that a text names, or None if it is none.

        Any text may be a path; one outside of the working copy matters if Kustomize reads it.
        """
        if len(text) >= _MAX_FILE_NAME or not text.isprintable():
            return None
        try:
            return contained_path(self._root, directory / text)
        except UserMistake as e:
            if key in _PATHS and (key == "chartHome" or _is_readable(directory / text)):
                raise UserMistake(f"{text} cannot be rendered: {e.message}") from e
            return None

    def _add(self, path: Path) -> None:
        self.paths[os.path.relpath(path, self._directory)] = path


def _is_readable(path: Path) -> bool:
    """Reports whether Kustomize would read a path: a base, or anything but a directory."""
    try:
        return is_kustomized(path) or (path.exists() and not path.is_dir())
    except OSError:
        return True


def _texts(parent: Any, key: str, value: Any) -> Iterator[tuple[Any, str, str]]:
    """Yields every text of a document with the map and the key that it is under."""
    if is_map(value):
        for name, child in value.items():
            if name in _VALUES_OF_CHARTS:
                continue
            yield from _texts(value, name, child)
    elif is_list(value):
        for each in value:
            yield from _texts(parent, key, each)
    elif isinstance(value, str):
        yield parent, key, value
