# SPDX-License-Identifier: Apache-2.0
"""One value in one file that an event replaces."""

from dataclasses import dataclass
from enum import Enum

from pipecd.config.field_tree import replace_field
from pipecd.config.hcl import parse_hcl
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.piped.eventwatcher.json_field import parse_json
from pipecd.piped.eventwatcher.regex import replace_regex
from pipecd.piped.eventwatcher.yaml_field import parse_yaml
from pipecd.program.workers import WorkerPool


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


async def apply_replacement(
    content: bytes, replacement: Replacement, value: str, *, workers: WorkerPool
) -> bytes:
    """The content of the file with the new value; errors name the file."""
    try:
        text = content.decode()
    except UnicodeDecodeError as e:
        raise UserMistake(f"{replacement.file}: it is not text in UTF-8") from e
    try:
        changed = await workers.run(
            replaced, text, replacement.format.value, replacement.path, value
        )
    except PipecdError as e:
        raise type(e)(f"{replacement.file}: {e.message}", hint=e.hint) from e
    return changed.encode()


def replaced(text: str, format_name: str, path: str, value: str) -> str:
    """Returns the text of a file with a new value; runs in a worker."""
    field_format = FieldFormat(format_name)
    if field_format is FieldFormat.REGEX:
        return replace_regex(text, path, value)
    return replace_field(text, _PARSERS[field_format], path, value)
