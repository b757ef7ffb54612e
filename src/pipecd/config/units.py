# SPDX-License-Identifier: Apache-2.0
"""Durations in the syntax of Go, sizes in that of Kubernetes, percentages and replica counts."""

import re
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipecd.model.duration import LONGEST, SECOND, SYNTAX, duration_text, parse_duration


class _Unit:
    """Makes a class a type of configuration fields that are strings or numbers in files."""

    __slots__ = ()
    _pattern: ClassVar[str]
    _number_type: ClassVar[str] = "number"

    @classmethod
    @abstractmethod
    def _of_input(cls, value: object) -> Self:
        """Return the value of a string or number; raise ValueError for any other."""

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
        return {"anyOf": [{"type": "string", "pattern": cls._pattern}, {"type": cls._number_type}]}


_DECIMAL = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)"


class Duration(_Unit, float):
    """A length of time in seconds.

    Files write `1h30m`, `1.5h`, `300ms`, or a bare number of nanoseconds as upstream reads it. It
    is exact to the nanosecond up to 26 days, and to the microsecond beyond.
    """

    _pattern = rf"^[-+]?(0|({_DECIMAL}(ns|us|µs|μs|ms|s|m|h))+)$"

    @classmethod
    def of_nanoseconds(cls, nanoseconds: int) -> Self:
        """Return a duration in nanoseconds."""
        return cls(nanoseconds / SECOND)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Go's duration syntax; raise ValueError saying what to write instead."""
        return cls.of_nanoseconds(parse_duration(text))

    @property
    def nanoseconds(self) -> int:
        """Return the duration in whole nanoseconds."""
        return round(self * SECOND)

    def __str__(self) -> str:
        """Return the duration as Go prints it, such as `6h0m0s` or `1.5s`."""
        return duration_text(self.nanoseconds)

    def __repr__(self) -> str:
        return f"Duration({str(self)!r})"

    @classmethod
    def _of_input(cls, value: object) -> Self:
        match value:
            case Duration():
                return cls(value)
            case str():
                return cls.parse(value)
            case bool() | None:
                raise ValueError(f"invalid duration, {SYNTAX}")
            case int() | float() if abs(value) <= LONGEST:
                return cls.of_nanoseconds(int(value))
            case _:
                raise ValueError(f"invalid duration, {SYNTAX}")


_SIZE = re.compile(r"([0-9]{1,15})([KMGT]i?)?")
_SIZE_SYNTAX = "write it like 512Mi or 2Gi"
_FACTORS = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("", 1000), ("i", 1024))
}


class Size(_Unit, int):
    """A number of bytes, written `512Mi`, `2G` or as a bare number."""

    _pattern = "^[0-9]+([KMGT]i?)?$"
    _number_type = "integer"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a quantity of Kubernetes; raise ValueError saying what to write instead."""
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(f'invalid size "{text}", {_SIZE_SYNTAX}')
        return cls(int(match[1]) * _FACTORS[match[2] or ""])

    def __str__(self) -> str:
        """Return the size with the largest binary suffix that divides it."""
        for suffix in ("Ti", "Gi", "Mi", "Ki"):
            if self and self % _FACTORS[suffix] == 0:
                return f"{self // _FACTORS[suffix]}{suffix}"
        return f"{int(self)}"

    def __repr__(self) -> str:
        return f"Size({str(self)!r})"

    @classmethod
    def _of_input(cls, value: object) -> Self:
        match value:
            case Size():
                return cls(value)
            case str():
                return cls.parse(value)
            case int() if not isinstance(value, bool) and value >= 0:
                return cls(value)
            case _:
                raise ValueError(f"invalid size, {_SIZE_SYNTAX}")


_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_PERCENT_OR_NUMBER = "^[+-]?[0-9]+%?$"


class Percentage(_Unit, int):
    """A whole percentage, written `30`, `"30"` or `30%`; it prints as it was written."""

    _pattern = _PERCENT_OR_NUMBER
    _number_type = "integer"

    has_sign: bool

    def __new__(cls, number: int, *, has_sign: bool = False) -> Self:
        self = super().__new__(cls, number)
        self.has_sign = has_sign
        return self

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `30` or `30%`; raise ValueError saying what to write instead."""
        number = text.removesuffix("%")
        if not _NUMBER.fullmatch(number):
            raise ValueError(f'invalid percentage "{text}", write a whole number such as 30 or 30%')
        return cls(int(number), has_sign=number != text)

    def __str__(self) -> str:
        return f"{int(self)}%" if self.has_sign else f"{int(self)}"

    def __repr__(self) -> str:
        return f"Percentage({str(self)!r})"

    @classmethod
    def _of_input(cls, value: object) -> Self:
        match value:
            case Percentage():
                return cls(value, has_sign=value.has_sign)
            case str():
                return cls.parse(value)
            case int() if not isinstance(value, bool):
                return cls.parse(str(value))
            case _:
                raise ValueError("invalid percentage, write a whole number such as 30 or 30%")


_MAX_NUMBER = 2**63 - 1
_SYNTAX = "write a number such as 2 or a percentage such as 50%"


@dataclass(frozen=True, slots=True)
class Replicas(_Unit):
    """A number of replicas, written `2`, `"2"` or `50%`."""

    _pattern = _PERCENT_OR_NUMBER

    number: int
    is_share: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `2` or `50%`; raise ValueError saying what to write instead."""
        number = text.removesuffix("%")
        if not _NUMBER.fullmatch(number):
            raise ValueError(f'invalid replicas "{text}", {_SYNTAX}')
        return cls(int(number), is_share=number != text)

    def of(self, total: int, *, default: int = 1) -> int:
        """Return the replicas for a workload that has `total` now; 0 means `default`."""
        if self.number == 0:
            return default
        if not self.is_share:
            return self.number
        return -(-self.number * total // 100)

    def __str__(self) -> str:
        return f"{self.number}%" if self.is_share else f"{self.number}"

    @classmethod
    def _of_input(cls, value: object) -> Self:
        match value:
            case Replicas():
                return cls(value.number, value.is_share)
            case str():
                return cls.parse(value)
            case bool() | None:
                raise ValueError(f"invalid replicas, {_SYNTAX}")
            case int() | float() if abs(value) <= _MAX_NUMBER:
                return cls(int(value))
            case _:
                raise ValueError(f"invalid replicas, {_SYNTAX}")
