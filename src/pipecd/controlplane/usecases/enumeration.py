# SPDX-License-Identifier: Apache-2.0
"""Numbers and names of the wire as members of our enums."""

from enum import IntEnum
from typing import TypeVar

from pipecd.model.errors import UserMistake

E = TypeVar("E", bound=IntEnum)


def known(kind: type[E], number: int) -> E:
    """The member with that number; the wire lets any number through."""
    try:
        return kind(number)
    except ValueError as e:
        raise UserMistake(f"{number} is not a known {kind.__name__}") from e


def named(kind: type[E], name: str, message: str) -> E:
    """The member with that name, or a mistake in these words."""
    try:
        return kind[name]
    except KeyError as e:
        raise UserMistake(message) from e
