# SPDX-License-Identifier: Apache-2.0
"""Finds the submodules of a commit and the remotes they come from."""

import os
from collections.abc import Iterable, Sequence
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
    """The submodules at or below some paths of a commit of `remote`, or all of them."""
    if not any(entry.name == _FILE for entry in await objects.entries(f"{commit}:")):
        return []
    requested = [validate_path(path) for path in paths]
    found: list[Submodule] = []
    for path, url in _parse_gitmodules(await objects.git_config(commit, _FILE)):
        required = _required_paths(path, requested)
        entry = await objects.entry(commit, path) if required is not None else None
        if required is None or entry is None or not entry.is_submodule:
            continue
        try:
            found.append(Submodule(path, submodule_remote(remote, url), entry.id, required))
        except PipecdError as e:
            raise UserMistake(f"submodule {path}: {e.message}", hint=e.hint) from e
    return found


def _parse_gitmodules(settings: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The path and the URL of each submodule that has both."""
    modules: dict[str, dict[str, str]] = {}
    for key, value in settings:
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        modules.setdefault(name, {})[field] = value
    declared = ((each.get("path", ""), each.get("url", "")) for each in modules.values())
    return [(os.path.normpath(path), url) for path, url in declared if path and url]


def _required_paths(module: str, requested: Sequence[str]) -> tuple[str, ...] | None:
    """The paths required of a submodule: None for nothing, an empty tuple for all of it."""
    if not requested or any(path == "." or _is_within(module, path) for path in requested):
        return ()
    return tuple(path[len(module) + 1 :] for path in requested if _is_within(path, module)) or None


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
