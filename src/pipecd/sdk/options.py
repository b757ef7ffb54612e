# SPDX-License-Identifier: Apache-2.0
"""Turns the JSON that reaches a plugin into the typed values its author declared."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipecd.config.decode import decode_plain
from pipecd.config.spec import Spec
from pipecd.model.errors import UserMistake

OptionsT = TypeVar("OptionsT", bound=BaseModel)


def decode(options: type[OptionsT], given: bytes, *, what: str) -> OptionsT:
    """Reads options; nothing given and an explicit null both mean the defaults."""
    try:
        value: Any = json.loads(given or b"null")
    except ValueError as e:
        raise UserMistake(f"{what}: not JSON: {e}") from e
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise UserMistake(f"{what}: must be a mapping of options")
    return decode_value(options, value, what=what)  # pyright: ignore[reportUnknownArgumentType]


def decode_value(options: type[OptionsT], given: Mapping[str, Any], *, what: str) -> OptionsT:
    """Reads options that are decoded already; every mistake is told at once."""
    if issubclass(options, Spec):
        # The rules of configuration files: keys in any case, null and zero give way to defaults.
        return decode_plain(given, options, what=what)
    try:
        # Through JSON, because strict types read `"a"` as a member of an enumeration only there.
        return options.model_validate_json(json.dumps(given))
    except ValidationError as e:
        told = "; ".join(_sentence(error) for error in e.errors(include_url=False))
        raise UserMistake(f"{what}: {told}") from e


def _sentence(error: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in error["loc"])
    # Pydantic puts its own words before the text of a validator.
    text = str(error["msg"]).removeprefix("Value error, ")
    return f"{path}: {text}" if path else text
