# SPDX-License-Identifier: Apache-2.0
"""The forms in which pipectl prints results: tables for people, upstream's JSON for programs."""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import yaml
from google.protobuf.message import Message

from pipecd.commandline.github_actions import workflow_commands_stopped
from pipecd.model.clock import from_unix
from pipecd.model.document import to_json

F = TypeVar("F", bound=Callable[..., Any])

FORMS = ("table", "json", "yaml", "name")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
# Colours and movements of the cursor, which tools write into logs.
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]")
_ESCAPES = dict.fromkeys((*range(32), 127, *range(128, 160)))
_ESCAPES_IN_LINES = {code: None for code in _ESCAPES if code not in (ord("\n"), ord("\t"))}


def output_flag(command: F) -> F:
    """Adds --output; without it a terminal gets a table, and everything else JSON as before."""
    return click.option(
        "--output",
        type=click.Choice(FORMS),
        default=default_form,
        help="The form of the result; a table on a terminal, else json.",
    )(command)


def default_form() -> str:
    return "table" if sys.stdout.isatty() else "json"


def deployment_output_flag(command: F) -> F:
    """Adds --output to a command that waits; without it only its log is printed."""
    return click.option(
        "--output", type=click.Choice(FORMS), help="Print the deployment at the end in this form."
    )(command)


def id_output_flag(command: F) -> F:
    """Adds --output to a command that changes something; without it only its log is printed."""
    return click.option(
        "--output", type=click.Choice(FORMS), help="Print the id of what was changed in this form."
    )(command)


def print_id(output: str | None, name: str, id: str) -> None:
    """Prints the id of what a command created or changed, such as `application_id`."""
    match output:
        case None:
            return
        case "json":
            click.echo(json.dumps({name: id}))
        case "yaml":
            click.echo(f"{name}: {json.dumps(id)}")
        case "name":
            click.echo(id)
        case _:
            print_table([name.upper().replace("_", " ")], [[id]])


@dataclass(frozen=True)
class View:
    """How objects of one type are shown: the columns of a table, and the name of each."""

    columns: Mapping[str, Callable[[Any], str]]
    name: Callable[[Any], str]


def print_result(output: str, result: Message, items: Sequence[Message], view: View) -> None:
    """Prints the result of a call; `items` are the objects in it."""
    print_document(output, to_json(result), items, view)


def print_document(output: str, document: str, items: Sequence[Any], view: View) -> None:
    """Prints a result that is JSON; `items` are the objects in it."""
    match output:
        case "json":
            click.echo(document)
        case "yaml":
            content = json.loads(document)
            click.echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), nl=False)
        case "name":
            for item in items:
                click.echo(view.name(item))
        case _:
            print_table(list(view.columns), [[c(i) for c in view.columns.values()] for i in items])


def report_more(output: str, cursor: str) -> None:
    """Tells the reader of a table that the list is longer; JSON and YAML contain the cursor."""
    if output == "table" and cursor:
        click.echo(f"There are more; continue with --cursor {cursor}", err=True)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints aligned columns; control characters of values do not reach the terminal."""
    lines = [titles, *([printable(value) or "-" for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    with workflow_commands_stopped():
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            click.echo("  ".join(cells).rstrip())


def printable(text: str) -> str:
    """The text without colours and control characters, which could change what a terminal shows."""
    return _SEQUENCE.sub("", text).translate(_ESCAPES)


def printable_lines(text: str) -> str:
    """Like `printable`, for a text of several lines."""
    return _SEQUENCE.sub("", text).translate(_ESCAPES_IN_LINES)


def age(seconds: int, *, now: datetime | None = None) -> str:
    """How long ago a time was, such as `5m`; empty if it is not known."""
    if not seconds:
        return ""
    elapsed = max(0, int(((now or datetime.now(UTC)) - from_unix(seconds)).total_seconds()))
    for unit, length in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if elapsed >= length:
            return f"{elapsed // length}{unit}"
    return f"{elapsed}s"
