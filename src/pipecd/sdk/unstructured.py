# SPDX-License-Identifier: Apache-2.0
"""Reads nested fields of objects, and returns changed copies that share unchanged parts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from pipecd.sdk.diff import is_list, is_map

Body: TypeAlias = Mapping[str, Any]


def at(body: Any, *path: str) -> Any:
    """Returns the value at a path, None without one."""
    for step in path:
        if not is_map(body):
            return None
        body = body.get(step)
    return body


def map_at(body: Any, *path: str) -> Mapping[str, Any]:
    """Returns the map at a path, an empty one without it."""
    value = at(body, *path)
    return value if is_map(value) else {}


def list_at(body: Any, *path: str) -> Sequence[Any]:
    """Returns the list at a path, an empty one without it."""
    value = at(body, *path)
    return value if is_list(value) else []


def text_at(body: Any, *path: str) -> str:
    """Returns the text at a path, an empty one without it."""
    value = at(body, *path)
    return value if isinstance(value, str) else ""


def condition_of(body: Any, name: str) -> Mapping[str, Any]:
    """Returns the condition of a type in the status of an object, an empty one without it."""
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "type") == name:
            return condition
    return {}


def with_value(body: Body, path: Sequence[str], value: Any) -> dict[str, Any]:
    """Returns a copy with another value at a path."""
    return changed(body, path, lambda _: value)


def with_entries(body: Body, path: Sequence[str], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy with entries added to the map at a path."""
    return changed(body, path, lambda old: {**map_at(old), **entries})


def without(body: Body, *path: str) -> dict[str, Any]:
    """Returns a copy without the value at a path."""
    *above, last = path
    if last not in map_at(body, *above):
        return dict(body)
    return changed(body, above, lambda old: {key: old[key] for key in old if key != last})


def changed(body: Any, path: Sequence[str], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Returns a copy with the value at a path replaced by the result of `change`."""
    if not path:
        return change(body)
    entries: dict[str, Any] = dict(body) if is_map(body) else {}
    entries[path[0]] = changed(entries.get(path[0]), path[1:], change)
    return entries
