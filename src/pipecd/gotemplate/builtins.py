# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""The functions every Go template has; `and` and `or` are the evaluator's, as they stop early."""

import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from pipecd.gotemplate.printf import sprintf
from pipecd.gotemplate.values import Wrong, equal, is_true, kind, less, to_text

Functions = Mapping[str, Callable[..., Any]]


def _eq(first: Any, *others: Any) -> bool:
    if not others:
        raise Wrong("missing argument for comparison")
    return any(equal(first, other) for other in others)


def _length(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, Mapping | Sequence):
        return len(value)
    raise Wrong(f"len of type {kind(value)}")


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = _item(value, key)
    return value


def _item(value: Any, key: Any) -> Any:
    if isinstance(value, Mapping):
        # Indexing a map with a key it lacks gives the zero value, other than a field does.
        return value.get(key)
    if isinstance(value, str | bytes):
        data = value.encode() if isinstance(value, str) else value
        return data[_position(key, len(data) - 1)]
    if isinstance(value, Sequence):
        return value[_position(key, len(value) - 1)]
    if value is None:
        raise Wrong("index of untyped nil")
    raise Wrong(f"can't index item of type {kind(value)}")


def _position(key: Any, highest: int) -> int:
    if isinstance(key, bool) or not isinstance(key, int):
        raise Wrong(f"cannot index slice/array with type {kind(key)}")
    if not 0 <= key <= highest:
        raise Wrong(f"index out of range: {key}")
    return key


def _slice(value: Any, *bounds: Any) -> Any:
    if isinstance(value, str):
        if len(bounds) > 2:
            raise Wrong("cannot 3-index slice a string")
        data = value.encode()
        return _cut(data, bounds).decode("utf-8", "replace")
    if isinstance(value, Sequence):
        return _cut(value, bounds)
    raise Wrong(f"can't slice item of type {kind(value)}")


def _cut(value: Sequence[Any], bounds: tuple[Any, ...]) -> Any:
    start, *rest = [_position(bound, len(value)) for bound in bounds] or [0]
    end = rest[0] if rest else len(value)
    if start > end:
        raise Wrong(f"invalid slice index: {start} > {end}")
    return value[start:end]


def _print(*values: Any) -> str:
    parts: list[str] = []
    for at, value in enumerate(values):
        # Go puts a space between two operands when neither is a text.
        if at and not isinstance(value, str) and not isinstance(values[at - 1], str):
            parts.append(" ")
        parts.append(to_text(value))
    return "".join(parts)


def _javascript(*values: Any) -> str:
    text = json.dumps(_print(*values))[1:-1]
    return text.replace("'", "\\'").replace("<", "\\u003C").replace(">", "\\u003E")


BUILTINS: Functions = {
    "not": lambda value: not is_true(value),
    "eq": _eq,
    "ne": lambda left, right: not equal(left, right),
    "lt": less,
    "le": lambda left, right: less(left, right) or equal(left, right),
    "gt": lambda left, right: less(right, left),
    "ge": lambda left, right: less(right, left) or equal(left, right),
    "len": _length,
    "index": _index,
    "slice": _slice,
    "print": _print,
    "printf": sprintf,
    "println": lambda *values: " ".join(to_text(value) for value in values) + "\n",
    "html": lambda *values: html.escape(_print(*values)).replace("&#x27;", "&#39;"),
    "js": _javascript,
    "urlquery": lambda *values: quote_plus(_print(*values)),
}
