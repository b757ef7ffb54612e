# SPDX-License-Identifier: Apache-2.0
"""Decodes the JSON options that piped sends into the types of a plugin."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pipecd.config.decode import decode_plain
from pipecd.config.spec import Spec
from pipecd.model.errors import UserMistake

OptionsT = TypeVar("OptionsT", bound=Spec)


def decode(options: type[OptionsT], given: bytes, *, what: str) -> OptionsT:
    """Decodes options; absent options and null mean the defaults."""
    try:
        value: Any = json.loads(given or b"null")
    except ValueError as e:
        raise UserMistake(f"{what}: not JSON: {e}") from e
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise UserMistake(f"{what}: must be a mapping of options")
    return decode_value(options, cast("dict[str, Any]", value), what=what)


def decode_value(options: type[OptionsT], given: Mapping[str, Any], *, what: str) -> OptionsT:
    """Decodes options from plain values; the error lists every mistake.

    The rules are those of configuration files: keys in any case, null and zero mean the default.
    """
    return decode_plain(given, options, what=what)
