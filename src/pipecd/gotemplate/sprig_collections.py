# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Sprig's functions on lists and dictionaries."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.values import Wrong, is_true, kind, to_text


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    raise Wrong(f"a list is needed, not {kind(value)}")


def _dict(*pairs: Any) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for at in range(0, len(pairs), 2):
        # A key without a value gets the empty text, as in sprig.
        made[to_text(pairs[at])] = pairs[at + 1] if at + 1 < len(pairs) else ""
    return made


def _set(target: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    target[key] = value
    return target


def _unset(target: dict[str, Any], key: str) -> dict[str, Any]:
    target.pop(key, None)
    return target


def _merge(target: dict[str, Any], *others: Mapping[str, Any], overwrite: bool) -> dict[str, Any]:
    for other in others:
        for key, value in other.items():
            known = target.get(key)
            if isinstance(known, dict) and isinstance(value, Mapping):
                _merge(known, value, overwrite=overwrite)
            elif overwrite or not is_true(known):
                target[key] = copy.deepcopy(value)
    return target


def _dig(*arguments: Any) -> Any:
    if len(arguments) < 3:
        raise Wrong("dig needs at least three arguments")
    *keys, fallback, value = arguments
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return fallback
        value = value[key]
    return value


def _keys(*values: Mapping[str, Any]) -> list[str]:
    return [key for value in values for key in value]


def _unique(values: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept


def _slice(values: Any, *bounds: int) -> list[Any]:
    start = bounds[0] if bounds else 0
    end = bounds[1] if len(bounds) > 1 else len(_list(values))
    return _list(values)[start:end]


def _chunk(size: int, values: Any) -> list[list[Any]]:
    if size < 1:
        raise Wrong("the size of a chunk must be at least 1")
    whole = _list(values)
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def _has(needle: Any, values: Any) -> bool:
    return needle in _list(values)


COLLECTIONS: Functions = {
    "list": lambda *values: list(values),
    "tuple": lambda *values: list(values),
    "first": lambda values: next(iter(_list(values)), None),
    "mustFirst": lambda values: next(iter(_list(values)), None),
    "last": lambda values: _list(values)[-1] if _list(values) else None,
    "rest": lambda values: _list(values)[1:],
    "initial": lambda values: _list(values)[:-1],
    "append": lambda values, value: [*_list(values), value],
    "push": lambda values, value: [*_list(values), value],
    "prepend": lambda values, value: [value, *_list(values)],
    "concat": lambda *lists: [value for values in lists for value in _list(values)],
    "reverse": lambda values: _list(values)[::-1],
    "uniq": lambda values: _unique(_list(values)),
    "without": lambda values, *unwanted: [v for v in _list(values) if v not in unwanted],
    "has": _has,
    "mustHas": _has,
    "compact": lambda values: [value for value in _list(values) if is_true(value)],
    "slice": _slice,
    "chunk": _chunk,
    "dict": _dict,
    "get": lambda mapping, key: mapping.get(key, ""),
    "set": _set,
    "unset": _unset,
    "hasKey": lambda mapping, key: key in mapping,
    "pluck": lambda key, *mappings: [m[key] for m in mappings if key in m],
    "keys": _keys,
    "values": lambda mapping: list(mapping.values()),
    "pick": lambda mapping, *keys: {k: v for k, v in mapping.items() if k in keys},
    "omit": lambda mapping, *keys: {k: v for k, v in mapping.items() if k not in keys},
    "merge": lambda target, *others: _merge(target, *others, overwrite=False),
    "mustMerge": lambda target, *others: _merge(target, *others, overwrite=False),
    "mergeOverwrite": lambda target, *others: _merge(target, *others, overwrite=True),
    "mustMergeOverwrite": lambda target, *others: _merge(target, *others, overwrite=True),
    "deepCopy": copy.deepcopy,
    "dig": _dig,
}
