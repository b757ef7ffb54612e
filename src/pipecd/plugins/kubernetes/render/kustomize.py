# SPDX-License-Identifier: Apache-2.0
"""Manifests that Kustomize builds."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import text_at
from pipecd.plugins.kubernetes.render.inputs import Inputs, is_commit, is_pinned
from pipecd.sdk import UserMistake
from pipecd.sdk.diff import is_list, is_map
from pipecd.sdk.yaml import read_documents

FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
# Before this version Kustomize looked for Helm itself.
_KNOWS_HELM_COMMAND = (4, 1, 0)
# What stands under these keys is read, and comes from the network when there is no such file.
_READ = frozenset({"resources", "bases", "components", "generators", "transformers", "validators"})
# Here it may be a document as well.
_READ_BY_ADDRESS = frozenset(
    {"path", "valuesFile", "additionalValuesFiles", "crds", "configurations"}
)
# Files under these keys name further files.
_FOLLOWED = frozenset({"generators", "transformers", "validators", "configurations"})
_CHART_HOME = "charts"
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
# Longer texts are documents, which no file system has as names.
_LONGEST_NAME = 255
_ADDRESS = re.compile(r"(?:https?|ssh|git|oci|s3)://|git::|git@")
_REF = re.compile(r"[?&](?:ref|version)=([^&]*)")


def is_kustomized(directory: Path) -> bool:
    """Reports whether Kustomize builds this directory."""
    return any((directory / name).is_file() for name in FILES)


def uses_helm(options: Mapping[str, str]) -> bool:
    """Reports whether a build may render charts."""
    return "enable-helm" in options


def arguments(options: Mapping[str, str], *, version: str, helm: Path | None) -> list[str]:
    """Returns the arguments of a build, each option with its value in one argument."""
    refused = sorted(options.keys() - set(_ALLOWED_OPTIONS))
    if refused:
        raise UserMistake(
            f"input.kustomizeOptions: {', '.join(refused)}: not allowed for kustomize build",
            hint=f"write only {', '.join(_ALLOWED_OPTIONS)}",
        )
    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in options.items()]
    if helm is not None and _at_least(version):
        flags.insert(0, f"--helm-command={helm}")
    return ["build", ".", *flags]


def _at_least(version: str) -> bool:
    numbers = version.removeprefix("v").split("-")[0].split(".")
    if not version or not all(part.isdigit() for part in numbers):
        return False
    return tuple(map(int, numbers)) >= _KNOWS_HELM_COMMAND


class _Reach:
    """Finds what a build reads: the files that are named, and those of the bases likewise."""

    def __init__(self, directory: Path) -> None:
        self.places: dict[str, Path] = {}
        self.is_open = False
        self._directory = directory
        self._unread = [directory]

    def follow(self) -> None:
        """Goes from base to base until nothing new is named."""
        seen: set[Path] = set()
        while self._unread:
            place = self._unread.pop()
            if place not in seen:
                seen.add(place)
                for name in FILES:
                    if (place / name).is_file():
                        self._read(place, place / name)

    def _read(self, place: Path, file: Path) -> None:
        self._add(file)
        for document in read_documents(file.read_text(errors="replace"), file=file.name):
            for above, key, text in _texts({}, "", document.value):
                self._take(place, key, text)
                self.is_open |= _is_unpinned_chart(above)

    def _take(self, place: Path, key: str, text: str) -> None:
        # Of files that become a ConfigMap or a Secret a name may stand before the path.
        found = (place / text.rpartition("=")[2]).resolve() if _is_name(text) else place
        if found.is_file():
            self._add(found)
            if key in _FOLLOWED:
                self._read(place, found)
        elif is_kustomized(found) and found != place:
            self._unread.append(found)
        elif key == "chartHome" and found.is_dir():
            self._add(found)
        elif key in _READ or (key in _READ_BY_ADDRESS and _ADDRESS.match(text)):
            self.is_open |= not _is_fixed(text)

    def _add(self, path: Path) -> None:
        self.places[os.path.relpath(path, self._directory)] = path


def inputs(directory: Path, options: Mapping[str, str]) -> Inputs:
    """Returns what a build reads, below its directory and above it."""
    reach = _Reach(directory.resolve())
    reach.follow()
    if uses_helm(options) and (directory / _CHART_HOME).is_dir():
        reach.places[_CHART_HOME] = directory / _CHART_HOME
    return Inputs(reach.places, reach.is_open)


def _texts(above: Any, key: str, value: Any) -> Iterator[tuple[Any, str, str]]:
    """Yields every text with the map and the key that it stands under."""
    if is_map(value):
        for name, below in value.items():
            yield from _texts(value, name, below)
    elif is_list(value):
        for each in value:
            yield from _texts(above, key, each)
    elif isinstance(value, str):
        yield above, key, value


def _is_name(text: str) -> bool:
    return len(text) < _LONGEST_NAME and text.isprintable()


def _is_unpinned_chart(entry: Any) -> bool:
    known = (("repo", "version"), ("chartRepoUrl", "chartVersion"))
    return any(
        text_at(entry, repository) and not is_pinned(text_at(entry, version))
        for repository, version in known
    )


def _is_fixed(text: str) -> bool:
    match = _REF.search(text)
    return match is not None and is_commit(match[1])
