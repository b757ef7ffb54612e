# SPDX-License-Identifier: Apache-2.0
"""Rewrites arguments that the Go tools accept into the order and form that click reads.

Go's parser takes flags before, between and after the subcommands, and a boolean as `--name` or
`--name=false` but never as `--name false`. Click takes flags after their command and in one form.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class KnownFlags:
    """The flags of a whole command tree: those that stand alone and those that take a value."""

    booleans: frozenset[str]
    valued: frozenset[str]

    def __or__(self, other: "KnownFlags") -> "KnownFlags":
        return KnownFlags(self.booleans | other.booleans, self.valued | other.valued)


def flags_of(command: click.Command, context: click.Context) -> KnownFlags:
    """Collects the flags of one command."""
    booleans: set[str] = set()
    valued: set[str] = set()
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            is_boolean = isinstance(parameter.type, click.types.BoolParamType)
            (booleans if is_boolean else valued).update(parameter.opts)
    return KnownFlags(frozenset(booleans), frozenset(valued))


def split(
    arguments: Sequence[str], known: KnownFlags, *, unknown_take_values: bool = False
) -> tuple[list[str], list[str]]:
    """Splits arguments into words and flags, with each boolean as `--name=true`."""
    words: list[str] = []
    flags: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--":
            words += rest
            break
        if not argument.startswith("-") or argument == "-":
            words.append(argument)
        elif argument in ("--help", "-h"):
            flags.append(argument)
        elif argument in known.booleans:
            flags.append(f"{argument}=true")
        elif rest and (argument in known.valued or (unknown_take_values and "=" not in argument)):
            flags += [argument, rest.pop(0)]
        else:
            flags.append(argument)
    return words, flags


def flags_below(group: click.Group, context: click.Context) -> KnownFlags:
    """Collects the flags of every command of a group; one that some take with a value has one."""
    below = KnownFlags(frozenset(), frozenset())
    for name in group.list_commands(context):
        if (command := group.get_command(context, name)) is None:
            continue
        inner = click.Context(command, parent=context, **command.context_settings)
        below = below | flags_of(command, inner)
        if isinstance(command, click.Group):
            below = below | flags_below(command, inner)
    return KnownFlags(below.booleans - below.valued, below.valued)


def arrange(arguments: Sequence[str], command: click.Command, known: KnownFlags) -> list[str]:
    """Puts the words first, then the flags, for the command that the words name.

    `known` are the flags that may stand before the first word.
    """
    context = click.Context(command, **command.context_settings)
    depth = 0
    while isinstance(command, click.Group):
        expected = known
        # Reading the flags of all commands imports them: only where a flag precedes the word.
        if any(argument.startswith("-") for argument in arguments[: depth + 1]):
            expected = known | flags_below(command, context)
        # A flag that no command has is taken to have a value, as Go's parser does.
        words, _ = split(arguments, expected, unknown_take_values=True)
        following = command.get_command(context, words[depth]) if depth < len(words) else None
        if following is None:
            known = expected
            break
        settings = following.context_settings
        command, context = following, click.Context(following, parent=context, **settings)
        known = known | flags_of(command, context)
        depth += 1
    words, flags = split(arguments, known)
    return words + flags
