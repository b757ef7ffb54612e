# SPDX-License-Identifier: Apache-2.0
"""Lengths of time as configuration files write them, in the syntax of Go."""

import re
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_SECOND = 10**9
_UNITS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_LONGEST = 2**63 - 1
_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")
_SYNTAX = "write a number with a unit, such as 30s, 5m or 1h30m"


class Duration(float):
    """A length of time in seconds.

    Files write `1h30m`, `1.5h`, `300ms`, or a bare number of nanoseconds as upstream reads it. It
    is exact to the nanosecond up to 26 days, and to the microsecond beyond.
    """

    @classmethod
    def of_nanoseconds(cls, nanoseconds: int) -> Self:
        """Return the length of so many nanoseconds."""
        return cls(nanoseconds / _SECOND)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Go's duration syntax; raise ValueError saying what to write instead."""
        sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
        if rest == "0":
            return cls(0)
        if not rest:
            raise ValueError(f'invalid duration "{text}", {_SYNTAX}')
        total = 0
        while rest:
            part = _PART.match(rest)
            if part is None or not (part[1] or part[2]):
                raise ValueError(f'invalid duration "{text}", {_SYNTAX}')
            total += _nanoseconds(part[1], part[2] or "", part[3], text)
            rest = rest[part.end() :]
        # The most negative length exists and has no positive twin.
        if total > _LONGEST + (sign < 0):
            raise ValueError(f'invalid duration "{text}", the longest is 2562047h')
        return cls.of_nanoseconds(sign * total)

    @property
    def nanoseconds(self) -> int:
        """Return the length in whole nanoseconds."""
        return round(self * _SECOND)

    def __str__(self) -> str:
        """Write the length as Go does, such as `6h0m0s` or `1.5s`."""
        left = abs(self.nanoseconds)
        sign = "-" if self.nanoseconds < 0 else ""
        if left == 0:
            return "0s"
        for unit in ("ns", "µs", "ms"):
            if left < 1000 * _UNITS[unit]:
                return f"{sign}{_decimal(left, _UNITS[unit])}{unit}"
        minutes, left = divmod(left, _UNITS["m"])
        hours, minutes = divmod(minutes, 60)
        head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
        return f"{sign}{head}{_decimal(left, _SECOND)}s"

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[Any], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._of_input, serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        number = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"
        pattern = rf"^[-+]?(0|({number}(ns|us|µs|μs|ms|s|m|h))+)$"
        return {"anyOf": [{"type": "string", "pattern": pattern}, {"type": "number"}]}

    @classmethod
    def _of_input(cls, value: object) -> Self:
        match value:
            case Duration():
                return cls(value)
            case str():
                return cls.parse(value)
            case bool() | None:
                raise ValueError(f"invalid duration, {_SYNTAX}")
            case int() | float() if abs(value) <= _LONGEST:
                return cls.of_nanoseconds(int(value))
            case _:
                raise ValueError(f"invalid duration, {_SYNTAX}")


def _nanoseconds(whole: str, fraction: str, unit: str, text: str) -> int:
    if not unit:
        raise ValueError(f'missing unit in duration "{text}", {_SYNTAX}')
    if unit not in _UNITS:
        raise ValueError(f'unknown unit "{unit}" in duration "{text}", use one of ns us ms s m h')
    if len(whole) > 19:
        whole = whole.lstrip("0")[:20]
    # Digits below a nanosecond of an hour change nothing.
    fraction = fraction[:18]
    return int(whole or "0") * _UNITS[unit] + (
        int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
    )


def _decimal(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}d}".rstrip("0")
