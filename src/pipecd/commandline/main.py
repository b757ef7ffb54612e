# SPDX-License-Identifier: Apache-2.0
"""Runs a command line: what a person can mend ends in one sentence, never in a traceback."""

import sys
from collections.abc import Sequence
from datetime import datetime

import click

from pipecd.commandline.arguments import arrange, flags_of
from pipecd.commandline.builtin import add_common
from pipecd.commandline.flags import every_command
from pipecd.model.errors import PipecdError


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Carries out the command line and answers the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if isinstance(command, click.Group):
            add_common(command)
        words = arrange(words, command, _EVERYWHERE)
        command.main(args=words, prog_name=command.name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except (click.ClickException, PipecdError) as e:
        return fail(in_words(e, words))
    except ExceptionGroup as group:
        if (mistake := first_expected(group)) is None:
            raise
        return fail(in_words(mistake, words))
    return 0


def in_words(error: Exception, words: Sequence[str]) -> str:
    """What a person reads about an error that they can mend."""
    match error:
        case click.MissingParameter(ctx=click.Context() as context, param=click.Option()):
            return f"required flag(s) {missing_flags(context.command, words)} not set"
        case click.UsageError(ctx=click.Context() as context):
            return f"{error.format_message()}\n\n{context.get_help()}"
        case click.ClickException():
            return error.format_message()
        case _:
            return str(error)


def missing_flags(command: click.Command, words: Sequence[str]) -> str:
    """The required flags that were not given, as `"app-id", "name"`, sorted."""
    given = {word.partition("=")[0] for word in words}
    missing = (
        option.opts[0].lstrip("-")
        for option in command.params
        if option.required and not given & set(option.opts)
    )
    return ", ".join(f'"{name}"' for name in sorted(missing))


def first_expected(group: ExceptionGroup[Exception]) -> PipecdError | None:
    """The error that a person should read, when nothing unexpected is among the causes."""
    found: PipecdError | None = None
    for error in group.exceptions:
        mine = first_expected(error) if isinstance(error, ExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(mine, PipecdError):
            return None
        found = found or mine
    return found


def fail(message: str) -> int:
    """Prints the sentence as the Go tools do and answers exit code 1."""
    stamp = datetime.now().astimezone().strftime("%Y/%m/%d %H:%M:%S")
    click.echo(f"{stamp} {message}", err=True)
    return 1


@click.command()
@every_command
def _nothing(**_: object) -> None:
    """Carries the flags that all our programs share."""


_EVERYWHERE = flags_of(_nothing, click.Context(_nothing))
