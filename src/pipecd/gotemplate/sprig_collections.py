# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Sprig's functions on lists and dictionaries, named as sprig's documentation names them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.values import FunctionError, is_true, kind, to_text


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return list(value)
    raise FunctionError(f"a list is needed, not {kind(value)}")


def make_dict(*pairs: Any) -> dict[str, Any]:
    """`dict "a" 1 "b" 2`; a last key without a value gets an empty string."""
    return {
        to_text(pairs[i]): pairs[i + 1] if i + 1 < len(pairs) else ""
        for i in range(0, len(pairs), 2)
    }


def set_key(target: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`set DICT KEY VALUE` changes the dictionary and returns it."""
    target[key] = value
    return target


def unset(target: dict[str, Any], key: str) -> dict[str, Any]:
    """`unset DICT KEY` changes the dictionary and returns it."""
    target.pop(key, None)
    return target


def _merge(target: dict[str, Any], *others: Mapping[str, Any], overwrite: bool) -> dict[str, Any]:
    for other in others:
        for key, value in other.items():
            present = target.get(key)
            if isinstance(present, dict) and isinstance(value, Mapping):
                _merge(present, value, overwrite=overwrite)
            elif overwrite or not is_true(present):
                target[key] = copy.deepcopy(value)
    return target


def dig(*arguments: Any) -> Any:
    """`dig KEY… DEFAULT DICT` reads a nested value."""
    if len(arguments) < 3:
        raise FunctionError("dig needs at least three arguments")
    *keys, fallback, value = arguments
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return fallback
        value = value[key]
    return value


def uniq(values: Any) -> list[Any]:
    """Removes duplicates; the items may be lists and dictionaries, which cannot be hashed."""
    unique: list[Any] = []
    for value in _list(values):
        if value not in unique:
            unique.append(value)
    return unique


def chunk(size: int, values: Any) -> list[list[Any]]:
    """Splits a list into lists of at most `size` items."""
    if size < 1:
        raise FunctionError("the size of a chunk must be at least 1")
    items = _list(values)
    return [items[i : i + size] for i in range(0, len(items), size)]


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
    "uniq": uniq,
    "without": lambda values, *unwanted: [v for v in _list(values) if v not in unwanted],
    "has": _has,
    "mustHas": _has,
    "compact": lambda values: [value for value in _list(values) if is_true(value)],
    "chunk": chunk,
    "dict": make_dict,
    "get": lambda mapping, key: mapping.get(key, ""),
    "set": set_key,
    "unset": unset,
    "hasKey": lambda mapping, key: key in mapping,
    "pluck": lambda key, *mappings: [m[key] for m in mappings if key in m],
    "keys": lambda *mappings: [key for mapping in mappings for key in mapping],
    "values": lambda mapping: list(mapping.values()),
    "pick": lambda mapping, *keys: {k: v for k, v in mapping.items() if k in keys},
    "omit": lambda mapping, *keys: {k: v for k, v in mapping.items() if k not in keys},
    "merge": lambda target, *others: _merge(target, *others, overwrite=False),
    "mustMerge": lambda target, *others: _merge(target, *others, overwrite=False),
    "mergeOverwrite": lambda target, *others: _merge(target, *others, overwrite=True),
    "mustMergeOverwrite": lambda target, *others: _merge(target, *others, overwrite=True),
    "deepCopy": copy.deepcopy,
    "dig": dig,
}
