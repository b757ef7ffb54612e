# SPDX-License-Identifier: Apache-2.0
"""Parses numbers and names of requests into enums."""

from enum import IntEnum
from typing import TypeVar

from pipecd.model.errors import UserMistake

E = TypeVar("E", bound=IntEnum)


def enum_by_number(kind: type[E], number: int) -> E:
    """The member with that number; protobuf accepts any number."""
    try:
        return kind(number)
    except ValueError as e:
        raise UserMistake(f"{number} is not a known {kind.__name__}") from e


def enum_by_name(kind: type[E], name: str, message: str) -> E:
    """The member with that name; UserMistake with this message if there is none."""
    try:
        return kind[name]
    except KeyError as e:
        raise UserMistake(message) from e
