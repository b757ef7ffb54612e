# SPDX-License-Identifier: Apache-2.0
"""Lengths of time as configuration files write them, in the syntax of Go."""

from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from pipecd.model.duration import LONGEST, SECOND, SYNTAX, duration_text, parse_duration


class Duration(float):
    """A length of time in seconds.

    Files write `1h30m`, `1.5h`, `300ms`, or a bare number of nanoseconds as upstream reads it. It
    is exact to the nanosecond up to 26 days, and to the microsecond beyond.
    """

    @classmethod
    def of_nanoseconds(cls, nanoseconds: int) -> Self:
        """Return the length of so many nanoseconds."""
        return cls(nanoseconds / SECOND)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read Go's duration syntax; raise ValueError saying what to write instead."""
        return cls.of_nanoseconds(parse_duration(text))

    @property
    def nanoseconds(self) -> int:
        """Return the length in whole nanoseconds."""
        return round(self * SECOND)

    def __str__(self) -> str:
        """Write the length as Go does, such as `6h0m0s` or `1.5s`."""
        return duration_text(self.nanoseconds)

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
                raise ValueError(f"invalid duration, {SYNTAX}")
            case int() | float() if abs(value) <= LONGEST:
                return cls.of_nanoseconds(int(value))
            case _:
                raise ValueError(f"invalid duration, {SYNTAX}")
