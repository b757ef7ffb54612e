# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Truth, kinds, comparison and printing of template values, by the rules of Go."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pipecd.model.duration import SECOND, duration_text


class FunctionError(Exception):
    """A template function rejects its arguments; the evaluator adds template name and line."""


def is_true(value: Any) -> bool:
    """Reports whether `if` takes the branch: for anything but the zero value of its type."""
    if isinstance(value, bool | int | float | str | bytes | Mapping | Sequence):
        return bool(value)
    return value is not None


def kind(value: Any) -> str:
    """Returns the name that Go's reflection gives to the kind of a value."""
    for types, name in _KINDS:
        if isinstance(value, types):
            return name
    return "struct"


_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (type(None), "invalid"),
    (bool, "bool"),
    (int, "int"),
    (float, "float64"),
    (str, "string"),
    (bytes, "slice"),
    (Mapping, "map"),
    (Sequence, "slice"),
)


def to_text(value: Any) -> str:
    """Returns what `{{ value }}` prints, which is Go's `%v`."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case float() if type(value) is float:
            return float_text(value)
        case Mapping():
            pairs = sorted((to_text(k), to_text(v)) for k, v in value.items())
            text = "map[" + " ".join(f"{k}:{v}" for k, v in pairs) + "]"
        case Sequence():
            # Bytes print as numbers, as a []byte does in Go.
            text = "[" + " ".join(to_text(item) for item in value) + "]"
        case datetime():
            seconds = value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".")
            text = seconds + value.strftime(" %z %Z")
        case timedelta():
            text = duration_text(round(value.total_seconds() * SECOND))
        case None:
            text = "<nil>"
        case _:
            text = str(value)
    return text


def float_text(value: float) -> str:
    """Returns a float as Go's `%v` prints it: the shortest digits that parse to the same value."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    # The repr has the shortest digits; `%e` with as many digits is exact.
    digits = repr(value).lower().partition("e")[0].lstrip("-").replace(".", "").strip("0")
    mantissa, _, exponent = f"{value:.{len(digits) - 1}e}".partition("e")
    power = int(exponent)
    if -4 <= power < 21:
        return f"{value:.{max(len(digits) - 1 - power, 0)}f}"
    return f"{mantissa}e{power:+03d}"


def equal(left: Any, right: Any) -> bool:
    """Compares two values of one basic kind, as Go's `eq` does."""
    if left is None or right is None:
        return left is None and right is None
    if _basic_kind(left) != _basic_kind(right):
        raise FunctionError("incompatible types for comparison")
    return bool(left == right)


def less(left: Any, right: Any) -> bool:
    """Compares two numbers or two strings, as Go's `lt` does."""
    a, b = _basic_kind(left), _basic_kind(right)
    if a != b or a not in ("int", "float64", "string"):
        raise FunctionError("incompatible types for comparison")
    return bool(left < right)


def _basic_kind(value: Any) -> str:
    name = kind(value)
    if name in ("map", "slice", "struct"):
        raise FunctionError("non-comparable type")
    return name
