# SPDX-License-Identifier: Apache-2.0
"""Manifests that Kustomize builds."""

from collections.abc import Mapping
from pathlib import Path

FILES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
# Before this version Kustomize looked for Helm itself.
_KNOWS_HELM_COMMAND = (4, 1, 0)


def is_kustomized(directory: Path) -> bool:
    """Reports whether Kustomize builds this directory."""
    return any((directory / name).is_file() for name in FILES)


def arguments(options: Mapping[str, str], *, version: str, helm: Path | None) -> list[str]:
    """Returns the arguments of a build."""
    given = [part for key, value in options.items() for part in (f"--{key}", value) if part]
    if helm is not None and _at_least(version) and "--helm-command" not in given:
        given = ["--helm-command", str(helm), *given]
    return ["build", ".", *given]


def _at_least(version: str) -> bool:
    numbers = version.removeprefix("v").split("-")[0].split(".")
    if not version or not all(part.isdigit() for part in numbers):
        return False
    return tuple(map(int, numbers)) >= _KNOWS_HELM_COMMAND
