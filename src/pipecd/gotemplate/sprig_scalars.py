# SPDX-License-Identifier: Apache-2.0
# The values of a template have no static types.
# pyright: reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
"""Sprig's functions on numbers, defaults, types and dates.

Functions are named as sprig's documentation names them.
"""

import math
import re
import secrets
import string
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipecd.gotemplate.builtins import Functions
from pipecd.gotemplate.values import FunctionError, is_true, kind

# Longer lists and strings would only fill the memory.
_MAX_ITEMS = 1_000_000
# A float has no more digits.
_MAX_PLACES = 300


def int64(value: int) -> int:
    """Returns an integer as Go's 64 bits hold it, which wrap around."""
    return (value + 2**63) % 2**64 - 2**63


def to_int(value: Any) -> int:
    """Converts any value to an integer of 64 bits as sprig does; 0 if that is impossible."""
    match value:
        case bool() | int():
            return int64(int(value))
        case float():
            return int64(int(value)) if math.isfinite(value) else 0
        case str():
            try:
                number = int(value, 0) if re.match(r"[+-]?0[xXoObB]", value) else int(value)
            except ValueError:
                return 0
            return number if number == int64(number) else 0
        case _:
            return 0


def to_float(value: Any) -> float:
    """Converts any value to a float as sprig does; 0 if that is impossible."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return 0.0
    return float(value) if isinstance(value, int | float) else 0.0


def _divide(left: Any, right: Any) -> int:
    a, b = to_int(left), to_int(right)
    if b == 0:
        raise FunctionError("division by zero")
    # Go rounds towards zero, Python rounds down.
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _product(values: tuple[Any, ...], cast: Callable[[Any], Any]) -> Any:
    result = cast(values[0])
    for value in values[1:]:
        result *= cast(value)
    return result


def _until_step(start: Any, stop: Any, step: Any) -> list[int]:
    first, last, stride = to_int(start), to_int(stop), to_int(step)
    if stride == 0 or (last < first) != (stride < 0):
        return []
    steps = range(first, last, stride)
    if len(steps) > _MAX_ITEMS:
        raise FunctionError(f"{len(steps)} steps are out of range")
    return list(steps)


def seq(*bounds: Any) -> str:
    """Bash's `seq`: `seq LAST`, `seq FIRST LAST` or `seq FIRST STEP LAST`."""
    match [to_int(bound) for bound in bounds]:
        case [last]:
            first, step = 1, 1 if last >= 1 else -1
        case [first, last]:
            step = 1 if last >= first else -1
        case [first, step, last]:
            pass
        case _:
            return ""
    return " ".join(str(n) for n in _until_step(first, last + (1 if step > 0 else -1), step))


def round_number(value: Any, places: int, edge: float = 0.5) -> float:
    """`round 123.555 2` is `123.56`; fractions of at least `edge` are rounded up."""
    if abs(places) > _MAX_PLACES:
        raise FunctionError(f"{places} places are out of range")
    scaled = to_float(value) * 10**places
    whole = math.floor(scaled)
    return (whole + (1 if scaled - whole >= edge else 0)) / 10**places


def fail(message: str) -> Any:
    """Fails the rendering with a message."""
    raise FunctionError(message)


def _random(alphabet: str) -> Callable[[int], str]:
    def generate(count: int) -> str:
        if not 0 <= count <= _MAX_ITEMS:
            raise FunctionError(f"{count} characters are out of range")
        return "".join(secrets.choice(alphabet) for _ in range(count))

    return generate


# Variables in the syntax of Go's os.Expand.
_VARIABLE = re.compile(r"\$(?:\{[^}]*\}|[A-Za-z_][A-Za-z0-9_]*|[0-9*#$@!?-])")


def environment(variables: Mapping[str, str]) -> Functions:
    """Returns the functions that read environment variables, of which they see only these.

    Templates come from Git repositories, and the environment of piped may hold credentials.
    """

    def value_of(match: re.Match[str]) -> str:
        return variables.get(match[0][1:].strip("{}"), "")

    return {
        "env": lambda name: variables.get(name, ""),
        "expandenv": lambda text: _VARIABLE.sub(value_of, text),
    }


# Go writes a time layout as the reference time, Mon Jan 2 15:04:05 MST 2006, would be printed.
_LAYOUT = re.compile(
    r"2006|01|02|15|03|04|05|06|January|Jan|Monday|Mon|MST|Z07:00|-07:00|-0700|PM|pm|\.000000|\.000"
    r"|_2|1(?!\d)|2(?!\d)|3(?!\d)"
)
_STRFTIME = {
    "2006": "%Y",
    "01": "%m",
    "02": "%d",
    "15": "%H",
    "03": "%I",
    "04": "%M",
    "05": "%S",
    "06": "%y",
    "January": "%B",
    "Jan": "%b",
    "Monday": "%A",
    "Mon": "%a",
    "MST": "%Z",
    "PM": "%p",
    "-0700": "%z",
}


def _to_time(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    return datetime.now(UTC)


def _date(layout: str, value: Any) -> str:
    time = _to_time(value)
    offset = time.strftime("%z")
    offset_with_colon = f"{offset[:3]}:{offset[3:5]}"
    parts = {
        **{part: time.strftime(directive) for part, directive in _STRFTIME.items()},
        "Z07:00": "Z" if offset == "+0000" else offset_with_colon,
        "-07:00": offset_with_colon,
        "pm": time.strftime("%p").lower(),
        ".000": f".{time.microsecond // 1000:03d}",
        ".000000": f".{time.microsecond:06d}",
        "_2": f"{time.day:2d}",
        "1": str(time.month),
        "2": str(time.day),
        "3": str((time.hour - 1) % 12 + 1),
    }
    return _LAYOUT.sub(lambda match: parts[match[0]], layout)


def date_in_zone(layout: str, value: Any, zone: str) -> str:
    """Formats a time in a time zone; an unknown zone means UTC."""
    try:
        return _date(layout, _to_time(value).astimezone(ZoneInfo(zone or "UTC")))
    except (ZoneInfoNotFoundError, ValueError):
        return _date(layout, _to_time(value).astimezone(UTC))


SCALARS: Functions = {
    "int": to_int,
    "int64": to_int,
    "atoi": to_int,
    "float64": to_float,
    "toDecimal": lambda value: int(str(value), 8) if re.fullmatch("[0-7]{1,21}", str(value)) else 0,
    "add": lambda *values: int64(sum(to_int(value) for value in values)),
    "add1": lambda value: int64(to_int(value) + 1),
    "sub": lambda left, right: int64(to_int(left) - to_int(right)),
    "mul": lambda *values: int64(_product(values, to_int)),
    "div": _divide,
    "mod": lambda left, right: to_int(left) - _divide(left, right) * to_int(right),
    "max": lambda *values: max(to_int(value) for value in values),
    "biggest": lambda *values: max(to_int(value) for value in values),
    "min": lambda *values: min(to_int(value) for value in values),
    "maxf": lambda *values: max(to_float(value) for value in values),
    "minf": lambda *values: min(to_float(value) for value in values),
    "addf": lambda *values: math.fsum(to_float(value) for value in values),
    "add1f": lambda value: to_float(value) + 1,
    "subf": lambda first, *others: to_float(first) - math.fsum(to_float(v) for v in others),
    "mulf": lambda *values: _product(values, to_float),
    "divf": lambda left, right: to_float(left) / to_float(right),
    "floor": lambda value: float(math.floor(to_float(value))),
    "ceil": lambda value: float(math.ceil(to_float(value))),
    "round": round_number,
    "until": lambda count: _until_step(0, count, -1 if to_int(count) < 0 else 1),
    "untilStep": _until_step,
    "seq": seq,
    "default": lambda default, value=None: value if is_true(value) else default,
    "empty": lambda value: not is_true(value),
    "coalesce": lambda *values: next((value for value in values if is_true(value)), None),
    "all": lambda *values: all(is_true(value) for value in values),
    "any": lambda *values: any(is_true(value) for value in values),
    "ternary": lambda yes, no, condition: yes if condition else no,
    "fail": fail,
    "kindOf": kind,
    "typeOf": kind,
    "kindIs": lambda name, value: kind(value) == name,
    "typeIs": lambda name, value: kind(value) == name,
    "deepEqual": lambda left, right: left == right,
    "now": lambda: datetime.now(UTC),
    "date": _date,
    "dateInZone": date_in_zone,
    "htmlDate": lambda value: _date("2006-01-02", value),
    "unixEpoch": lambda value: str(int(_to_time(value).timestamp())),
    "uuidv4": lambda: str(uuid.uuid4()),
    "randAlphaNum": _random(string.ascii_letters + string.digits),
    "randAlpha": _random(string.ascii_letters),
    "randNumeric": _random(string.digits),
    "randAscii": _random("".join(chr(c) for c in range(33, 127))),
}
