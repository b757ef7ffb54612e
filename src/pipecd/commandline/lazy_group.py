# SPDX-License-Identifier: Apache-2.0
"""A click group whose subcommands are imported only when they are run."""

import importlib
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches

import click

_SIMILARITY = 0.75


@contextmanager
def _not_installed(module: str) -> Generator[None]:
    """Makes imports of an optional module fail, which saves their memory and time."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[module]


class LazyGroup(click.Group):
    """A group whose sub-commands are named as `module:attribute` and a one-line help."""

    def __init__(self, name: str, commands: Mapping[str, tuple[str, str]], help: str) -> None:
        super().__init__(
            name=name, help=help, context_settings={"help_option_names": ["-h", "--help"]}
        )
        self._commands_by_name = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._commands_by_name]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._commands_by_name:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._commands_by_name[cmd_name][0].partition(":")
        # structlog imports Rich where somebody installed it, for tracebacks that nobody prints.
        with _not_installed("rich"):
            command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as e:
            # Click knows only commands that are imported already, and suggests distant ones.
            commands, typed = self.list_commands(ctx), e.command_name
            close = get_close_matches(typed, commands, cutoff=_SIMILARITY)
            begun = [name for name in commands if typed and name.startswith(typed)]
            if close or len(begun) != 1:
                raise click.NoSuchCommand(typed, possibilities=close, ctx=ctx) from e
            # An abbreviation is too distant for click, which filters what it is given.
            message = f"No such command {typed!r}. Did you mean {begun[0]!r}?"
            raise click.NoSuchCommand(typed, message, ctx=ctx) from e

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, text) for name, (_, text) in self._commands_by_name.items()]
        rows += [(n, c.get_short_help_str()) for n, c in self.commands.items() if not c.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows))
