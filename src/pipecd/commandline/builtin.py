# SPDX-License-Identifier: Apache-2.0
"""The commands that every program has: version, help and completion."""

import click
from click.shell_completion import get_completion_class

from pipecd.model.errors import UserMistake
from pipecd.observe.version import version_line

SHELLS = ("bash", "zsh", "fish")


def add_common(group: click.Group) -> None:
    """Adds these commands to the top-level group."""
    for command in (_version(), _help(group), _completion(group)):
        group.add_command(command)


def _version() -> click.Command:
    @click.command("version", help="Print the version.")
    def version() -> None:
        click.echo(version_line())

    return version


def _help(group: click.Group) -> click.Command:
    @click.command("help", help="Print the help of a command.")
    @click.argument("path", nargs=-1)
    def help_of(path: tuple[str, ...]) -> None:
        command: click.Command = group
        context = click.Context(group, info_name=group.name, **group.context_settings)
        for word in path:
            following = (
                command.get_command(context, word) if isinstance(command, click.Group) else None
            )
            if following is None:
                raise UserMistake(f'unknown command "{word}" for "{context.command_path}"')
            command = following
            context = click.Context(command, info_name=word, parent=context)
        click.echo(command.get_help(context))

    return help_of


def _completion(group: click.Group) -> click.Command:
    @click.command("completion", help="Print a script that completes commands in a shell.")
    @click.argument("shell")
    def completion(shell: str) -> None:
        found = get_completion_class(shell)
        if found is None:
            raise UserMistake(
                f"no completion for the shell {shell}", hint=f"use one of {', '.join(SHELLS)}"
            )
        name = group.name or "pipecd"
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        click.echo(found(group, {}, name, variable).source())

    return completion
