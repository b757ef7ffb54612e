# SPDX-License-Identifier: Apache-2.0
"""Which submodules a part of a commit contains, and where they come from."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipecd.git.objects import Objects, inside
from pipecd.git.remote.address import nested_address
from pipecd.model.errors import PipecdError, UserMistake

_FILE = ".gitmodules"


@dataclass(frozen=True)
class Submodule:
    """A repository inside of another one; `paths` are those wanted of it, none means all."""

    path: str
    remote: str
    commit: str
    paths: tuple[str, ...] = ()


async def submodules(
    objects: Objects, commit: str, *, remote: str, paths: Sequence[str]
) -> list[Submodule]:
    """The submodules at or below some paths of a commit, or all of them."""
    if not any(entry.name == _FILE for entry in await objects.entries(f"{commit}:")):
        return []
    wanted = [inside(path) for path in paths]
    found: list[Submodule] = []
    for path, url in _parsed(await objects.settings_in(commit, _FILE)):
        parts = _wanted_parts(path, wanted)
        entry = await objects.entry(commit, path) if parts is not None else None
        if parts is None or entry is None or not entry.is_submodule:
            continue
        try:
            address = nested_address(remote, url)
        except PipecdError as e:
            raise UserMistake(f"submodule {path}: {e.message}", hint=e.hint) from e
        found.append(Submodule(path, address, entry.id, parts))
    return found


def _wanted_parts(module: str, wanted: Sequence[str]) -> tuple[str, ...] | None:
    """What is wanted of a submodule: None for nothing, no paths for everything."""
    if not wanted or any(path == "." or _is_within(module, path) for path in wanted):
        return ()
    parts = tuple(path[len(module) + 1 :] for path in wanted if _is_within(path, module))
    return parts or None


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")


def _parsed(settings: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """The path and the address of each submodule that has both."""
    known: dict[str, dict[str, str]] = {}
    for key, value in settings:
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        known.setdefault(name, {})[field] = value
    for module in known.values():
        path, url = module.get("path", ""), module.get("url", "")
        if path and url:
            yield os.path.normpath(path), url
