# SPDX-License-Identifier: Apache-2.0
"""The base of every configuration type."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError


@dataclass(frozen=True, slots=True)
class Advice:
    """A warning about a value that loads but is probably not intended.

    With one that is `unplannable` nothing can be deployed.
    """

    at: tuple[str | int, ...]
    what: str
    unplannable: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to an entry of a section in a file under `.pipe/`.

    `at` is the path of the name within the part.
    """

    at: tuple[str | int, ...]
    kind: str
    section: str
    name: str


class Spec(BaseModel):
    """A frozen part of a configuration file.

    Attributes are the snake_case of the camelCase keys. Whether unknown keys are refused is decided
    by the reader of the file (`pipecd.config.decode`), not by the type. A validator raises
    `ValueError` for a broken rule, or calls `refuse`, which reports several at once.
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
    """Whether unknown keys are only warnings even if the file is read strictly."""

    def advice(self) -> Iterator[Advice]:
        """Yield warnings for `pipectl lint` about values that upstream loads silently."""
        yield from ()

    def references(self) -> Iterator[Reference]:
        """Yield the references that `pipectl lint` resolves in the repository of the file."""
        yield from ()


def plain(spec: Spec) -> dict[str, Any]:
    """Return a part as plain values with the keys of the file, without None."""
    return spec.model_dump(mode="json", by_alias=True, exclude_none=True)


Rule: TypeAlias = tuple[object, str | tuple[str | int, ...], str]
"""Whether it is broken, the key (or the path, or "" for the whole object) and the message."""


def refuse(spec: Spec, *rules: Rule) -> None:
    """Raise a validation error with every broken rule."""
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


def no_duplicates(section: str, key: str, values: Iterable[str], what: str) -> Iterator[Rule]:
    """Yield a rule for every item of a list: its `key` must differ from those before it.

    `what` is the message, with `{}` for the repeated value; empty values may repeat.
    """
    seen: set[str] = set()
    for i, value in enumerate(values):
        yield value in seen, (section, i, key), what.format(value)
        seen |= {value} if value else set()


def one_of(choices: Sequence[str], what: str) -> AfterValidator:
    """Refuse a value that is not one of `choices`; `what` is the message, `{}` for the value.

    The field needs `validate_default` to refuse absence.
    """

    def check(value: str) -> str:
        if value not in choices:
            raise ValueError(f"{what.format(value)}, write one of {', '.join(choices)}")
        return value

    return AfterValidator(check)


def must_be_set(key: str) -> AfterValidator:
    """Refuse an empty string for `key`; the field needs `validate_default` to refuse absence."""

    def check(value: str) -> str:
        if not value:
            raise ValueError(f"{key} must be set")
        return value

    return AfterValidator(check)
