# SPDX-License-Identifier: Apache-2.0
"""Rules over the fields of one type, all broken ones told at once."""

from typing import TypeAlias

from pydantic import AfterValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipecd.config.spec import Spec

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
