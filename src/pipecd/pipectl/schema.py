# SPDX-License-Identifier: Apache-2.0
"""`pipectl schema`: prints the JSON Schema of a kind, for editors."""

import json

import click

from pipecd.commandline import flags
from pipecd.config.catalog import load_catalog
from pipecd.config.schema import schema_of


@click.command()
@flags.every_command
@click.argument("kind")
def schema(kind: str, **_: object) -> None:
    """Print the JSON Schema of KIND, such as Application, KubernetesApp or Piped."""
    click.echo(json.dumps(schema_of(kind, load_catalog()), indent=2))
