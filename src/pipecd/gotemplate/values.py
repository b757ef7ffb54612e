# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""How values of a template count, compare and print, by the rules of Go."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from pipecd.config.units import Duration


class Wrong(Exception):
    """A function was given something it cannot work with; the evaluator adds the place."""


def is_true(value: Any) -> bool:
    """What `if` takes for true: anything but the zero value of its type."""
    if value is None:
        return False
    if isinstance(value, datetime):
        return True
    if isinstance(value, bool | int | float | str | bytes | Mapping | Sequence):
        return bool(value)
    return True


def kind(value: Any) -> str:
    """The name that Go gives to the type of a value."""
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
    """What `{{value}}` prints, which is Go's `%v`."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not isinstance(value, Duration):
        return float_text(value)
    return _compound_text(value)


def _compound_text(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = sorted((to_text(k), to_text(v)) for k, v in value.items())
        return "map[" + " ".join(f"{k}:{v}" for k, v in pairs) + "]"
    if isinstance(value, Sequence):  # the numbers of bytes, or the items of a list
        return "[" + " ".join(to_text(item) for item in value) + "]"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f").rstrip("0").rstrip(".") + value.strftime(
            " %z %Z"
        )
    if isinstance(value, timedelta):
        return str(Duration(value.total_seconds()))
    return "<nil>" if value is None else str(value)


def float_text(value: float) -> str:
    """A float as Go's `%v` prints it: the shortest digits that read back the same."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    digits, _, exponent = f"{value!r}".lower().partition("e")
    power = int(exponent or 0) + _magnitude(digits)
    if -4 <= power < 21:
        text = format(value, "f") if exponent else digits
        return _plain(value) if exponent else text.removesuffix(".0")
    mantissa, _, _ = f"{value:.17e}".partition("e")
    short = _shortest_mantissa(value) or mantissa
    return f"{short}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _magnitude(digits: str) -> int:
    whole, _, fraction = digits.lstrip("-").partition(".")
    if whole.strip("0"):
        return len(whole.lstrip("0")) - 1
    return -(len(fraction) - len(fraction.lstrip("0")) + 1)


def _plain(value: float) -> str:
    if value == int(value):
        return str(int(value))
    return format(value, ".30f").rstrip("0").rstrip(".")


def _shortest_mantissa(value: float) -> str:
    for digits in range(17):
        text = f"{value:.{digits}e}"
        if float(text) == value:
            return text.partition("e")[0]
    return ""


def equal(left: Any, right: Any) -> bool:
    """Go's `eq` on two values of a comparable kind."""
    if left is None or right is None:
        return left is None and right is None
    if _comparable(left) != _comparable(right):
        raise Wrong("incompatible types for comparison")
    return bool(left == right)


def less(left: Any, right: Any) -> bool:
    """Go's `lt` on two numbers or two texts."""
    a, b = _comparable(left), _comparable(right)
    if a != b or a not in ("int", "float", "string"):
        raise Wrong("incompatible types for comparison")
    return bool(left < right)


def _comparable(value: Any) -> str:
    match value:
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case str():
            return "string"
        case None:
            return "nil"
        case _:
            raise Wrong("non-comparable type")
