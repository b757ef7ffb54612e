# SPDX-License-Identifier: Apache-2.0
"""One value in one file that an event replaces, by whichever way its place is named."""

import asyncio
from dataclasses import dataclass
from enum import Enum

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.eventwatcher.replace.hclfield import replace_hcl
from pipecd.piped.eventwatcher.replace.jsonfield import replace_json
from pipecd.piped.eventwatcher.replace.regex import replace_regex
from pipecd.piped.eventwatcher.replace.yamlfield import replace_yaml


class Way(Enum):
    """How the place of a value is named; values are the keys in the configuration."""

    YAML = "yamlField"
    JSON = "jsonField"
    HCL = "HCLField"
    REGEX = "regex"


_REPLACE = {Way.YAML: replace_yaml, Way.JSON: replace_json, Way.HCL: replace_hcl}


@dataclass(frozen=True)
class Replacement:
    """A place in a file; the path of the file begins at the root of the repository."""

    file: str
    way: Way
    place: str


async def replaced(content: bytes, replacement: Replacement, value: str) -> bytes:
    """The content of the file with another value; a mistake names the file."""
    try:
        text = content.decode()
    except UnicodeDecodeError as e:
        raise UserMistake(f"{replacement.file}: it is not text in UTF-8") from e
    try:
        if replacement.way is Way.REGEX:
            return (await replace_regex(text, replacement.place, value)).encode()
        # A large file takes a while, in which the rest of piped goes on.
        replace = _REPLACE[replacement.way]
        return (await asyncio.to_thread(replace, text, replacement.place, value)).encode()
    except PipecdError as e:
        raise type(e)(f"{replacement.file}: {e.message}", hint=e.hint) from e
