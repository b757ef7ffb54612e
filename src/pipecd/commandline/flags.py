# SPDX-License-Identifier: Apache-2.0
"""Flag types with the spelling of Go's parser."""

import csv
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from pipecd.model.duration import SECOND, parse_duration

_MAX_PORT = 65535
F = TypeVar("F", bound=Callable[..., Any])
# What click calls for the values that a shell offers: with the context, the flag and the beginning.
Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


class DurationFlag(click.ParamType[float]):
    """A Go duration such as `90s` or `1h30m`, as seconds."""

    name = "duration"

    def convert(self, value: object, param: object, ctx: object) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(str(value)) / SECOND
        except ValueError as e:
            self.fail(str(e))


class PortFlag(click.ParamType[int]):
    """A port of TCP; a negative number is none where that is allowed."""

    name = "integer"

    def __init__(self, lowest: int) -> None:
        self._lowest = lowest

    def convert(self, value: object, param: object, ctx: object) -> int:
        try:
            port = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a port")
        if not self._lowest <= port <= _MAX_PORT:
            self.fail(f"there is no port {port}; ports end at {_MAX_PORT}")
        return port


class ListFlag(click.ParamType[tuple[str, ...]]):
    """Values separated by commas."""

    name = "strings"

    def convert(self, value: object, param: object, ctx: object) -> tuple[str, ...]:
        if isinstance(value, tuple | list):
            return tuple(str(v) for v in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return tuple(str(value).split(","))


class MapFlag(click.ParamType[tuple[tuple[str, str], ...]]):
    """Pairs `key=value` as a line of CSV: one in double quotes may contain a comma."""

    name = "stringToString"

    def convert(self, value: object, param: object, ctx: object) -> tuple[tuple[str, str], ...]:
        if isinstance(value, tuple):
            return value  # pyright: ignore[reportUnknownVariableType]
        pairs: list[tuple[str, str]] = []
        for item in _csv_items(str(value)):
            key, equals, rest = item.partition("=")
            if not equals:
                self.fail(f"{item!r} must be formatted as key=value")
            pairs.append((key, rest))
        return tuple(pairs)


def _csv_items(line: str) -> list[str]:
    try:
        return next(csv.reader([line])) or [""]
    except csv.Error:
        # A value of several lines.
        return line.split(",")


def among(values: Iterable[str]) -> Complete:
    """Completes one of these values; in a list, the last of it."""
    names = tuple(values)

    def complete(_context: click.Context, _flag: click.Parameter, incomplete: str) -> list[Any]:
        head, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{head}{comma}{name}") for name in names if name.startswith(last)]

    return complete


def _paths(kind: str) -> Complete:
    """Lets the shell complete files (`file`) or directories (`dir`)."""
    return lambda _context, _flag, incomplete: [CompletionItem(incomplete, type=kind)]


files, directories = _paths("file"), _paths("dir")


def _paths_of(name: str) -> Complete | None:
    """What completes a flag with this name, if that tells that its value is a path."""
    if name.endswith(("-file", "-out")) or name == "out":
        return files
    return directories if name.endswith("-dir") or name == "dir" else None


def text(
    name: str,
    help: str,
    *,
    default: str = "",
    required: bool = False,
    complete: Complete | None = None,
) -> Callable[[F], F]:
    """A flag that takes a text; `complete` completes it in the shell, which completes paths."""
    complete = complete or _paths_of(name)
    if required:
        return click.option(f"--{name}", required=True, help=help, shell_complete=complete)
    return click.option(
        f"--{name}",
        default=default,
        help=help,
        show_default=bool(default),
        shell_complete=complete,
    )


def number(name: str, help: str, *, default: int | None) -> Callable[[F], F]:
    """A flag that takes a whole number; without a default its absence is None."""
    return click.option(f"--{name}", type=int, default=default, help=help, show_default=True)


def port(name: str, help: str, *, default: int | None, lowest: int = 0) -> Callable[[F], F]:
    """A flag that takes a port to listen on."""
    return click.option(
        f"--{name}", type=PortFlag(lowest), default=default, help=help, show_default=True
    )


def switch(name: str, help: str, *, default: bool = False) -> Callable[[F], F]:
    """A flag that stands alone or as `--name=false`."""
    return click.option(
        f"--{name}",
        type=bool,
        default=default,
        # Shells complete command lines as they are typed, with the name alone.
        is_flag=False,
        flag_value="true",
        help=help,
        show_default=True,
        metavar="",
    )


def duration(name: str, help: str, *, default: str) -> Callable[[F], F]:
    """A flag that takes a Go duration."""
    return click.option(
        f"--{name}", type=DurationFlag(), default=default, help=help, show_default=True
    )


def strings(
    name: str, help: str, *, required: bool = False, complete: Complete | None = None
) -> Callable[[F], F]:
    """A flag that takes values separated by commas or by repetition."""

    def flatten(_: object, __: object, values: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
        return tuple(item for group in values for item in group)

    return click.option(
        f"--{name}",
        type=ListFlag(),
        multiple=True,
        callback=flatten,
        required=required,
        help=help,
        shell_complete=complete,
    )


def pairs(name: str, help: str) -> Callable[[F], F]:
    """A flag that takes `key=value` pairs separated by commas or by repetition."""

    def merge(
        _: object, __: object, values: tuple[tuple[tuple[str, str], ...], ...]
    ) -> dict[str, str]:
        return dict(pair for group in values for pair in group)

    return click.option(f"--{name}", type=MapFlag(), multiple=True, callback=merge, help=help)


def after_own(*additions: Callable[[F], F]) -> Callable[[F], F]:
    """Adds flags that the help lists after those of the command itself."""

    def add_all(command: F) -> F:
        # Click collects the flags of a function here, the last one first.
        own: list[click.Parameter] = vars(command).pop("__click_params__", [])
        for add in reversed(additions):
            command = add(command)
        vars(command)["__click_params__"] += own
        return command

    return add_all


def shared(*, log_level: str = "info") -> Callable[[F], F]:
    """The flags that all our programs share."""
    return after_own(
        text("log-level", "The least severe message that is logged.", default=log_level),
        text("log-encoding", "The encoding of logs: json, console, humanize.", default="humanize"),
        switch("metrics", "Expose metrics on the admin port.", default=True),
        switch("profile", "Accepted for compatibility; has no effect."),
        switch("profile-debug-logging", "Accepted for compatibility; has no effect."),
        text("profiler-credentials-file", "Accepted for compatibility; has no effect."),
    )


every_command = shared()
