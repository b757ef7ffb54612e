# SPDX-License-Identifier: Apache-2.0
"""`pipectl schema`: prints the JSON Schema of a kind, for editors."""

import json
from typing import Any

import click

from pipecd.commandline import flags
from pipecd.config.catalog import load_catalog
from pipecd.config.schema import kinds_of, schema_of


def _complete_kind(context: click.Context, flag: click.Parameter, incomplete: str) -> list[Any]:
    return flags.among(kinds_of(load_catalog()))(context, flag, incomplete)


@click.command()
@flags.every_command
@click.argument("kind", shell_complete=_complete_kind)
def schema(kind: str, **_: object) -> None:
    """Print the JSON Schema of KIND, such as Application, KubernetesApp or Piped."""
    click.echo(json.dumps(schema_of(kind, load_catalog()), indent=2))
