# SPDX-License-Identifier: Apache-2.0
"""Runs a command line; expected errors end in one line of text, not in a traceback."""

import errno
import re
import sys
from collections.abc import Sequence
from datetime import datetime

import click

from pipecd.commandline.arguments import arrange, flags_of
from pipecd.commandline.builtin import add_common
from pipecd.commandline.flags import every_command
from pipecd.commandline.github_actions import without_workflow_commands
from pipecd.model.errors import PipecdError

# What could change the terminal, such as escape sequences in the reason of a failed deployment.
_CONTROL_CHARACTERS = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")})
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})
# How grpc-go prints an error, which scripts may read and people need not.
_GRPC_PREFIX = re.compile(r"rpc error: code = \w+ desc = ")


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if isinstance(command, click.Group):
            add_common(command)
            words = ["version"] if words == ["--version"] else words
        words = arrange(words, command, _SHARED_FLAGS)
        command.main(args=words, prog_name=command.name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
    except click.exceptions.Exit as e:
        return e.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        return 130
    except (click.ClickException, PipecdError) as e:
        return fail(error_text(e, words))
    except ExceptionGroup as group:
        if (expected := first_expected(group)) is None:
            raise
        return fail(error_text(expected, words))
    except OSError as e:
        if e.errno not in _FULL_DISK:
            raise
        return fail(f"cannot write to the disk: {e.strerror}")
    return 0


def error_text(error: Exception, words: Sequence[str]) -> str:
    """Returns the text that is printed for an expected error."""
    match error:
        case click.MissingParameter(ctx=click.Context() as context, param=click.Option() as first):
            return f"required flag(s) {missing_flags(context.command, words, first)} not set"
        case click.NoSuchOption(ctx=click.Context() as context):
            return f"{_unknown_option(error)}\nSee `{context.command_path} --help`."
        case click.UsageError(ctx=click.Context() as context):
            # The help of a command has dozens of lines, in front of which a message is not seen.
            return f"{error.format_message()}\nSee `{context.command_path} --help`."
        case click.ClickException():
            return error.format_message()
        case _:
            return str(error)


def _unknown_option(error: click.NoSuchOption) -> str:
    """Returns the text for a flag that the command lacks, with the flag that is most like it."""
    similar = list(error.possibilities or ())
    if error.ctx and error.option_name.startswith("--"):
        # People type `--id` for `--deployment-id`.
        end = error.option_name.removeprefix("-")
        options = (name for p in error.ctx.command.params for name in p.opts)
        similar = [*(name for name in options if name.endswith(end)), *similar]
    suggestion = f" Did you mean {similar[0]!r}?" if similar else ""
    return f"{error.message}{suggestion}"


def missing_flags(command: click.Command, words: Sequence[str], first: click.Option) -> str:
    """Returns the missing required flags, sorted, as `"app-id", "name"`.

    `first` is one that is missing for sure: a word such as `--data` may be the value of the flag
    before it, whose own value somebody left out.
    """
    given = {word.partition("=")[0] for word in words}
    missing = (
        option.opts[0].lstrip("-")
        for option in command.params
        if option is first or (option.required and not given & set(option.opts))
    )
    return ", ".join(f'"{name}"' for name in sorted(missing))


def first_expected(group: ExceptionGroup[Exception]) -> PipecdError | None:
    """Returns the first expected error, or None if the group has an unexpected one."""
    first: PipecdError | None = None
    for error in group.exceptions:
        expected = first_expected(error) if isinstance(error, ExceptionGroup) else error  # pyright: ignore[reportUnknownArgumentType]
        if not isinstance(expected, PipecdError):
            return None
        first = first or expected
    return first


def fail(message: str) -> int:
    """Prints the message and returns exit code 1.

    Programs get it with a timestamp and the codes of gRPC, as the Go tools print it; people at a
    terminal get the words alone.
    """
    text = message.translate(_CONTROL_CHARACTERS)
    if sys.stderr.isatty():
        text = _GRPC_PREFIX.sub("", text)
    else:
        text = f"{datetime.now().astimezone():%Y/%m/%d %H:%M:%S} {text}"
    click.echo(without_workflow_commands(text), err=True)
    return 1


@click.command()
@every_command
def _no_command(**_: object) -> None:
    """Declares the flags that all our programs share."""


_SHARED_FLAGS = flags_of(_no_command, click.Context(_no_command))
