# SPDX-License-Identifier: Apache-2.0
"""How many copies of a workload, absolute or as a share of the current number."""

import re
from dataclasses import dataclass
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

_NUMBER = re.compile(r"[+-]?[0-9]{1,18}")
_LARGEST = 2**63 - 1
_SYNTAX = "write a number such as 2, or a share such as 50%"


@dataclass(frozen=True, slots=True)
class Replicas:
    """A number of copies, written `2`, `"2"` or `50%`."""

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
        """Return the copies for a workload that has `total` now; none asked for is `default`."""
        if self.number == 0:
            return default
        if not self.is_share:
            return self.number
        return -(-self.number * total // 100)

    def __str__(self) -> str:
        return f"{self.number}%" if self.is_share else f"{self.number}"

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
        return {"anyOf": [{"type": "string", "pattern": "^[+-]?[0-9]+%?$"}, {"type": "number"}]}

    @classmethod
    def _of_input(cls, value: object) -> Self:
        match value:
            case Replicas():
                return cls(value.number, value.is_share)
            case str():
                return cls.parse(value)
            case bool() | None:
                raise ValueError(f"invalid replicas, {_SYNTAX}")
            case int() | float() if abs(value) <= _LARGEST:
                return cls(int(value))
            case _:
                raise ValueError(f"invalid replicas, {_SYNTAX}")
