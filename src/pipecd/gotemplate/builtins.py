# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""The predefined functions of Go's text/template.

The evaluator implements `and` and `or` itself, because they do not evaluate every argument.
"""

import html
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote_plus

from pipecd.gotemplate.printf import sprintf
from pipecd.gotemplate.values import FunctionError, equal, is_true, kind, less, to_text

Functions = Mapping[str, Callable[..., Any]]


def equal_to_any(first: Any, *others: Any) -> bool:
    """Go's `eq`: compares the first argument with each of the others."""
    if not others:
        raise FunctionError("missing argument for comparison")
    return any(equal(first, other) for other in others)


def length(value: Any) -> int:
    """Go's `len`; a string counts in bytes."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogateescape"))
    if isinstance(value, Mapping | Sequence):
        return len(value)
    raise FunctionError(f"len of type {kind(value)}")


def index(value: Any, *keys: Any) -> Any:
    """Go's `index`: `index x 1 "a"` is `x[1]["a"]`."""
    for key in keys:
        if isinstance(value, Mapping):
            # A missing key yields the zero value; `.field` of a missing key is an error.
            value = value.get(key)
        elif isinstance(value, str):
            data = value.encode()
            value = data[_position(key, len(data) - 1)]
        elif isinstance(value, Sequence):
            value = value[_position(key, len(value) - 1)]
        elif value is None:
            raise FunctionError("index of untyped nil")
        else:
            raise FunctionError(f"can't index item of type {kind(value)}")
    return value


def slice_of(value: Any, *bounds: Any) -> Any:
    """Go's `slice`: `slice x 1 2` is `x[1:2]`; a string is sliced by bytes."""
    if isinstance(value, str) and len(bounds) > 2:
        raise FunctionError("cannot 3-index slice a string")
    items: Any = value.encode() if isinstance(value, str) else value
    if not isinstance(value, Sequence):
        raise FunctionError(f"can't slice item of type {kind(value)}")
    start, *rest = [_position(bound, len(items)) for bound in bounds] or [0]
    end = rest[0] if rest else len(items)
    if start > end:
        raise FunctionError(f"invalid slice index: {start} > {end}")
    part: Any = items[start:end]
    return part.decode("utf-8", "replace") if isinstance(value, str) else part


def _position(key: Any, highest: int) -> int:
    if isinstance(key, bool) or not isinstance(key, int):
        raise FunctionError(f"cannot index slice/array with type {kind(key)}")
    if not 0 <= key <= highest:
        raise FunctionError(f"index out of range: {key}")
    return key


def _print(*values: Any) -> str:
    parts: list[str] = []
    for i, value in enumerate(values):
        # Go adds a space between two operands when neither is a string.
        if i and not isinstance(value, str) and not isinstance(values[i - 1], str):
            parts.append(" ")
        parts.append(to_text(value))
    return "".join(parts)


def escape_javascript(*values: Any) -> str:
    """Go's `js`: the text for use inside a JavaScript string."""
    text = json.dumps(_print(*values))[1:-1]
    return text.replace("'", "\\'").replace("<", "\\u003C").replace(">", "\\u003E")


BUILTINS: Functions = {
    "not": lambda value: not is_true(value),
    "eq": equal_to_any,
    "ne": lambda left, right: not equal(left, right),
    "lt": less,
    "le": lambda left, right: less(left, right) or equal(left, right),
    "gt": lambda left, right: less(right, left),
    "ge": lambda left, right: less(right, left) or equal(left, right),
    "len": length,
    "index": index,
    "slice": slice_of,
    "print": _print,
    "printf": sprintf,
    "println": lambda *values: " ".join(to_text(value) for value in values) + "\n",
    "html": lambda *values: html.escape(_print(*values)).replace("&#x27;", "&#39;"),
    "js": escape_javascript,
    "urlquery": lambda *values: quote_plus(_print(*values)),
}
