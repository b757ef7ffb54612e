# SPDX-License-Identifier: Apache-2.0
"""The base of every configuration type."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError


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
    a `ValueError` of a validator, or `pipecd.config.spec.refuse`, which tells several at once.
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


Rule: TypeAlias = tuple[object, str | tuple[str | int, ...], str]
"""Whether it is broken, the key (or the path, or "" for the whole) and what is wrong."""


def refuse(spec: Spec, *rules: Rule) -> None:
    """Refuse `spec` for every rule that is broken."""
    broken = [
        InitErrorDetails(
            type=PydanticCustomError("mistake", "{what}", {"what": what}),
            loc=at if isinstance(at, tuple) else (at,) if at else (),
            input=None,
        )
        for is_broken, at, what in rules
        if is_broken
    ]
    if broken:
        raise ValidationError.from_exception_data(type(spec).__name__, broken)


def must_be_set(key: str) -> AfterValidator:
    """Refuse an empty text for `key`; the field needs `validate_default` to catch absence."""

    def check(value: str) -> str:
        if not value:
            raise ValueError(f"{key} must be set")
        return value

    return AfterValidator(check)
