# SPDX-License-Identifier: Apache-2.0
"""Durations in the syntax of Go, in whole nanoseconds."""

import re

SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": SECOND,
    "m": 60 * SECOND,
    "h": 3600 * SECOND,
}
LONGEST = 2**63 - 1
SYNTAX = "write a number with a unit, such as 30s, 5m or 1h30m"
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


def parse_duration(text: str) -> int:
    """Parses Go's duration syntax; a ValueError says what to write instead."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    if not rest:
        raise ValueError(f'invalid duration "{text}", {SYNTAX}')
    total = 0
    while rest:
        part = _PART.match(rest)
        if part is None or not (part[1] or part[2]):
            raise ValueError(f'invalid duration "{text}", {SYNTAX}')
        # Digits below a nanosecond of an hour change nothing.
        whole, fraction, unit = part[1], (part[2] or "")[:18], part[3]
        if not unit:
            raise ValueError(f'missing unit in duration "{text}", {SYNTAX}')
        if unit not in _UNITS:
            raise ValueError(
                f'unknown unit "{unit}" in duration "{text}", use one of ns us ms s m h'
            )
        if len(whole) > 19:
            whole = whole.lstrip("0")[:20]
        total += int(whole or "0") * _UNITS[unit]
        total += int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
        rest = rest[part.end() :]
    # The most negative duration has no positive counterpart.
    if total > LONGEST + (sign < 0):
        raise ValueError(f'invalid duration "{text}", the longest is 2562047h')
    return sign * total


def duration_text(nanoseconds: int) -> str:
    """Formats a duration as Go does, such as `6h0m0s` or `1.5s`."""
    left = abs(nanoseconds)
    sign = "-" if nanoseconds < 0 else ""
    if left == 0:
        return "0s"
    for unit in ("ns", "µs", "ms"):
        if left < 1000 * _UNITS[unit]:
            return f"{sign}{_decimal(left, _UNITS[unit])}{unit}"
    minutes, left = divmod(left, _UNITS["m"])
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(left, SECOND)}s"


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")
