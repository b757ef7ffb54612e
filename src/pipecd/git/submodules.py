# SPDX-License-Identifier: Apache-2.0
"""Finds the submodules of a commit and the remotes they come from."""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.git.objects import Objects
from pipecd.git.remote import submodule_remote
from pipecd.git.validate import validate_path
from pipecd.model.errors import PipecdError, UserMistake

_FILE = ".gitmodules"


@dataclass(frozen=True)
class Submodule:
    """A submodule at a path; `paths` are those required of it, none means all of them."""

    path: str
    remote: str
    commit: str
    paths: tuple[str, ...] = ()


async def find_submodules(
    objects: Objects, commit: str, *, remote: str, paths: Sequence[str]
) -> list[Submodule]:
    """Returns the submodules at or below some paths of a commit of `remote`, or all of them."""
    if not any(entry.name == _FILE for entry in await objects.entries(f"{commit}:")):
        return []
    declared: dict[str, dict[str, str]] = {}
    for key, value in await objects.git_config(commit, _FILE):
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        declared.setdefault(name, {})[field] = value
    requested = [validate_path(path) for path in paths]
    submodules: list[Submodule] = []
    for each in declared.values():
        if not (each.get("path") and each.get("url")):
            continue
        path = posixpath.normpath(each["path"])
        required = _required_paths(path, requested)
        entry = await objects.entry(commit, path) if required is not None else None
        if required is None or entry is None or not entry.is_submodule:
            continue
        try:
            source = submodule_remote(remote, each["url"])
        except PipecdError as e:
            raise UserMistake(f"submodule {path}: {e.message}", hint=e.hint) from e
        submodules.append(Submodule(path, source, entry.id, required))
    return submodules


def _required_paths(module: str, requested: Sequence[str]) -> tuple[str, ...] | None:
    """Returns the paths required of a submodule: None for nothing, an empty tuple for all of it."""
    if not requested or any(path == "." or _is_within(module, path) for path in requested):
        return ()
    return tuple(path[len(module) + 1 :] for path in requested if _is_within(path, module)) or None


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
