# SPDX-License-Identifier: Apache-2.0
"""Percentages as configuration files write them."""

import re
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")


class Percentage(int):
    """A whole number of hundredths, written `30`, `"30"` or `30%`; the sign `%` is kept."""

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
        return {"anyOf": [{"type": "string", "pattern": "^[+-]?[0-9]+%?$"}, {"type": "integer"}]}

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
