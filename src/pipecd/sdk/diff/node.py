# SPDX-License-Identifier: Apache-2.0
"""One place where two documents differ."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeGuard


class Missing(Enum):
    """The type of `MISSING`."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING
"""The value of a side that has nothing at this path; a null is a value."""

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Node:
    """The two values at one path, the old or live side first."""

    path: Path
    old: Any
    new: Any

    @cached_property
    def where(self) -> str:
        """The path as users write it in ignore lists."""
        return ".".join(map(str, self.path))


def is_map(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Reports whether a value has keys."""
    return isinstance(value, Mapping)


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Reports whether a value has elements."""
    return isinstance(value, list | tuple)


def find(nodes: Iterable[Node], pattern: str) -> list[Node]:
    """Returns the nodes whose path the pattern matches somewhere."""
    compiled = re.compile(pattern)
    return [node for node in nodes if compiled.search(node.where)]


def scalar_text(value: Any) -> str:
    """Writes a scalar without quotes: numbers in the shortest decimal form, no exponent."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return _decimal(value)
        case _:
            return str(value)


def _decimal(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value.is_integer():
        return str(int(value))
    text = repr(value)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    places = len(digits.partition(".")[2]) - int(exponent)
    return f"{value:.{max(places, 0)}f}"
