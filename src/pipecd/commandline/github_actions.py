# SPDX-License-Identifier: Apache-2.0
"""Keeps GitHub's runner from obeying texts of others that a command prints.

The runner reads workflow commands, such as `::set-output name=x::y`, from everything that a job
writes to standard output or standard error.
"""

import os
import re
import secrets
from collections.abc import Generator
from contextlib import contextmanager

import click

_TOKEN_BYTES = 16
# A command in the newer form begins a line; one in the older form may stand anywhere in it.
_COMMAND = re.compile(r"^(\s*):(?=:)|##(?=\[)", re.MULTILINE)


@contextmanager
def workflow_commands_stopped() -> Generator[None]:
    """Standard output is shown by the runner within it, and workflow commands are not obeyed."""
    if not _in_actions():
        yield
        return
    # Whoever wrote the text cannot know the token that ends it.
    token = secrets.token_hex(_TOKEN_BYTES)
    click.echo(f"::stop-commands::{token}")
    try:
        yield
    finally:
        click.echo(f"::{token}::")


def without_workflow_commands(text: str) -> str:
    """The text with a space in each workflow command.

    This is for standard error: in which order the runner reads the two streams is not known, so
    that a command which stops or resumes on one of them may come too late for the other.
    """
    return _COMMAND.sub(lambda match: f"{match[0]} ", text) if _in_actions() else text


def _in_actions() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
