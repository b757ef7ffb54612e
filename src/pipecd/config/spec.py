# SPDX-License-Identifier: Apache-2.0
"""The base of every configuration type."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


@dataclass(frozen=True, slots=True)
class Advice:
    """Something in a part that loads and yet is not what its author wants."""

    at: tuple[str | int, ...]
    what: str


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that a part names and a file under `.pipe/` has: an entry of one of its sections.

    `at` is where the name stands in the part.
    """

    at: tuple[str | int, ...]
    kind: str
    section: str
    name: str


class Spec(BaseModel):
    """A frozen part of a configuration file.

    Attributes are the snake_case of the camelCase keys. Whether unknown keys are refused is a
    property of the file that is read (`pipecd.config.decode`), not of the type. A broken rule is
    a `ValueError` of a validator, or `pipecd.config.rule.refuse`, which tells several at once.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="ignore",
        alias_generator=to_camel,
        populate_by_name=True,
        arbitrary_types_allowed=True,
    )

    tolerant: ClassVar[bool] = False
    """Whether unknown keys pass even where the file is read strictly, as in pipeline stages."""

    def advice(self) -> Iterator[Advice]:
        """Yield what `pipectl lint` tells about a part that upstream loads without a word."""
        yield from ()

    def references(self) -> Iterator[Reference]:
        """Yield what `pipectl lint` looks up in the repository of the file."""
        yield from ()


def plain(spec: Spec) -> dict[str, Any]:
    """Return a part as its file would write it: keys in camelCase, absent values left out."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)
