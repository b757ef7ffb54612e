# SPDX-License-Identifier: Apache-2.0
"""Kustomize: the arguments of `kustomize build`, and the files that a build reads."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipecd.plugins.kubernetes.render_inputs import RenderInputs, is_commit, is_pinned
from pipecd.plugins.kubernetes.unstructured import text_at
from pipecd.sdk import UserMistake
from pipecd.sdk.diff import is_list, is_map
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
_CHART_HOME = "charts"
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


def validate_options(options: Mapping[str, str]) -> None:
    """Refuses flags that are not on the allow-list."""
    refused = sorted(options.keys() - set(_ALLOWED_OPTIONS))
    if refused:
        raise UserMistake(
            f"input.kustomizeOptions: {', '.join(refused)}: not allowed for kustomize build",
            hint=f"write only {', '.join(_ALLOWED_OPTIONS)}",
        )


def build_arguments(options: Mapping[str, str], *, version: str, helm: Path | None) -> list[str]:
    """Returns the arguments of `kustomize build`, each flag with its value in one argument."""
    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    numbers = version.removeprefix("v").split("-")[0].split(".")
    is_release = all(part.isdigit() for part in numbers)
    if helm is not None and is_release and tuple(map(int, numbers)) >= _HELM_COMMAND_SINCE:
        flags.insert(0, f"--helm-command={helm}")
    return ["build", ".", *flags]


def inputs(directory: Path, options: Mapping[str, str]) -> RenderInputs:
    """Returns the files that a build reads, also those outside of its directory."""
    collector = _InputCollector(directory.resolve())
    collector.collect()
    if uses_helm(options) and (directory / _CHART_HOME).is_dir():
        collector.paths[_CHART_HOME] = directory / _CHART_HOME
    return RenderInputs(collector.paths, collector.depends_on_network)


class _InputCollector:
    """Collects the files that a kustomization names, and those of its bases."""

    def __init__(self, directory: Path) -> None:
        self.paths: dict[str, Path] = {}
        self.depends_on_network = False
        self._directory = directory
        self._queue = [directory]

    def collect(self) -> None:
        """Reads the kustomization and its bases until no new base is named."""
        visited: set[Path] = set()
        while self._queue:
            directory = self._queue.pop()
            if directory not in visited:
                visited.add(directory)
                for name in _FILES:
                    if (directory / name).is_file():
                        self._read(directory, directory / name)

    def _read(self, directory: Path, file: Path) -> None:
        self._add(file)
        for document in read_documents(file.read_text(errors="replace"), file=file.name):
            for parent, key, text in _texts({}, "", document.value):
                self._add_reference(directory, key, text)
                # A chart without a pinned version depends on the index of its repository.
                self.depends_on_network |= any(
                    text_at(parent, repository) and not is_pinned(text_at(parent, version))
                    for repository, version in _CHART_VERSIONS
                )

    def _add_reference(self, directory: Path, key: str, text: str) -> None:
        is_name = len(text) < _MAX_FILE_NAME and text.isprintable()
        # An entry of `files` of a generator may be `name=path`.
        path = (directory / text.rpartition("=")[2]).resolve() if is_name else directory
        if path.is_file():
            self._add(path)
            if key in _FILES_WITH_PATHS:
                self._read(directory, path)
        elif is_kustomized(path) and path != directory:
            self._queue.append(path)
        elif key == "chartHome" and path.is_dir():
            self._add(path)
        elif key in _PATHS_OR_URLS or (key in _PATHS_URLS_OR_DOCUMENTS and _URL.match(text)):
            ref = _REF.search(text)
            self.depends_on_network |= ref is None or not is_commit(ref[1])

    def _add(self, path: Path) -> None:
        self.paths[os.path.relpath(path, self._directory)] = path


def _texts(parent: Any, key: str, value: Any) -> Iterator[tuple[Any, str, str]]:
    """Yields every text of a document with the map and the key that it is under."""
    if is_map(value):
        for name, child in value.items():
            yield from _texts(value, name, child)
    elif is_list(value):
        for each in value:
            yield from _texts(parent, key, each)
    elif isinstance(value, str):
        yield parent, key, value
