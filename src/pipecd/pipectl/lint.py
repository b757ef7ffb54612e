# SPDX-License-Identifier: Apache-2.0
"""`pipectl lint`: reports every mistake in configuration files, without a control plane."""

from pathlib import Path

import click

from pipecd.commandline import flags
from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.read import read_file
from pipecd.config.report import ConfigMistake
from pipecd.config.shared_config import SHARED_CONFIG, unresolved
from pipecd.model.errors import PipecdError, UserMistake


@click.command()
@flags.every_command
@click.argument("files", nargs=-1, required=True)
def lint(files: tuple[str, ...], **_: object) -> None:
    """Check FILES of any kind; exits with 1 when one of them is invalid."""
    catalog = load_catalog()
    invalid = sum(not _is_valid(file, catalog) for file in files)
    if invalid:
        raise PipecdError(f"{invalid} of {len(files)} files cannot be used")
    click.echo(f"{len(files)} {'file is' if len(files) == 1 else 'files are'} right")


def _is_valid(file: str, catalog: Catalog) -> bool:
    try:
        text = Path(file).read_bytes()
    except OSError as e:
        raise UserMistake(f"cannot read {file}: {e.strerror}") from e
    try:
        config = read_file(text, file=file, catalog=catalog)
    except ConfigMistake as e:
        click.echo(str(e))
        return False
    for warning in config.warnings:
        click.echo(f"{warning} (warning)")
    # The repository of the file; an exported one has no .git.
    parents = Path(file).absolute().parents
    markers = (".git", SHARED_CONFIG)
    root = next((d for marker in markers for d in parents if (d / marker).exists()), None)
    if root is None:
        return True
    is_valid = True
    for reference in config.references:
        if reason := unresolved(reference.reference, root / SHARED_CONFIG, catalog):
            click.echo(str(reference.mistake(reason)))
            is_valid = False
    return is_valid
