# SPDX-License-Identifier: Apache-2.0
"""One value in one file that an event replaces."""

import asyncio
from dataclasses import dataclass
from enum import Enum

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.eventwatcher.field_tree import replace_field
from pipecd.piped.eventwatcher.hcl_field import parse_hcl
from pipecd.piped.eventwatcher.json_field import parse_json
from pipecd.piped.eventwatcher.regex import replace_regex
from pipecd.piped.eventwatcher.yaml_field import parse_yaml


class FieldFormat(Enum):
    """How a value is addressed; the values are the keys in the configuration."""

    YAML = "yamlField"
    JSON = "jsonField"
    HCL = "HCLField"
    REGEX = "regex"


_PARSERS = {
    FieldFormat.YAML: parse_yaml,
    FieldFormat.JSON: parse_json,
    FieldFormat.HCL: parse_hcl,
}


@dataclass(frozen=True)
class Replacement:
    """A field path or expression in a file; `file` is relative to the root of the repository."""

    file: str
    format: FieldFormat
    path: str


async def apply_replacement(content: bytes, replacement: Replacement, value: str) -> bytes:
    """The content of the file with the new value; errors name the file."""
    try:
        text = content.decode()
    except UnicodeDecodeError as e:
        raise UserMistake(f"{replacement.file}: it is not text in UTF-8") from e
    try:
        if replacement.format is FieldFormat.REGEX:
            return (await replace_regex(text, replacement.path, value)).encode()
        # In a thread, because parsing a large file takes a while.
        parse, path = _PARSERS[replacement.format], replacement.path
        return (await asyncio.to_thread(replace_field, text, parse, path, value)).encode()
    except PipecdError as e:
        raise type(e)(f"{replacement.file}: {e.message}", hint=e.hint) from e
