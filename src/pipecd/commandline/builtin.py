# SPDX-License-Identifier: Apache-2.0
"""The commands that every program has: version, help and completion."""

import click
from click.shell_completion import CompletionItem, get_completion_class

from pipecd.commandline.flags import among
from pipecd.model.errors import UserMistake
from pipecd.observe.version import version_line

SHELLS = ("bash", "zsh", "fish")


def add_common(group: click.Group) -> None:
    """Adds these commands to the top-level group."""

    def complete_path(
        context: click.Context, flag: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        command: click.Command | None = group
        for word in context.params.get("path") or ():
            command = (
                command.get_command(context, word) if isinstance(command, click.Group) else None
            )
        names = command.list_commands(context) if isinstance(command, click.Group) else []
        return among(names)(context, flag, incomplete)

    @group.command("version", help="Print the version.")
    def version() -> None:  # pyright: ignore[reportUnusedFunction]
        click.echo(version_line())

    @group.command("help", help="Print the help of a command.")
    @click.argument("path", nargs=-1, shell_complete=complete_path)
    def help_of(path: tuple[str, ...]) -> None:  # pyright: ignore[reportUnusedFunction]
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

    @group.command("completion", help="Print a script for completion in a shell.")
    @click.argument("shell", shell_complete=among(SHELLS))
    def completion(shell: str) -> None:  # pyright: ignore[reportUnusedFunction]
        completion_class = get_completion_class(shell)
        if completion_class is None:
            raise UserMistake(
                f"no completion for the shell {shell}", hint=f"use one of {', '.join(SHELLS)}"
            )
        name = group.name or "pipecd"
        variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
        click.echo(completion_class(group, {}, name, variable).source())
