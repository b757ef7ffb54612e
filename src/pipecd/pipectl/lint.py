# SPDX-License-Identifier: Apache-2.0
"""`pipectl lint`: tells every mistake in configuration files, without a control plane."""

from pathlib import Path

import click

from pipecd.commandline import flags
from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.read import Config, read_file
from pipecd.config.report import ConfigMistake, Mistake
from pipecd.config.shared_config import SHARED_CONFIG, unresolved
from pipecd.model.errors import PipecdError, UserMistake


@click.command()
@flags.every_command
@click.argument("files", nargs=-1, required=True)
def lint(files: tuple[str, ...], **_: object) -> None:
    """Check FILES of any kind; exits with 1 when one of them is wrong."""
    catalog = load_catalog()
    wrong = sum(not _is_right(file, catalog) for file in files)
    if wrong:
        raise PipecdError(f"{wrong} of {len(files)} files cannot be used")
    click.echo(f"{len(files)} {'file is' if len(files) == 1 else 'files are'} right")


def _is_right(file: str, catalog: Catalog) -> bool:
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
    dangling = _dangling(config, Path(file), catalog)
    for mistake in dangling:
        click.echo(str(mistake))
    return not dangling


def _dangling(config: Config, file: Path, catalog: Catalog) -> list[Mistake]:
    """Names of things that other files of the repository should have, and do not."""
    root = _repository_of(file)
    if root is None:
        return []
    reasons = [
        (r, unresolved(r.reference, root / SHARED_CONFIG, catalog)) for r in config.references
    ]
    return [reference.mistake(reason) for reference, reason in reasons if reason]


def _repository_of(file: Path) -> Path | None:
    """The root of the repository that a file lies in, also of one without its history."""
    above = file.absolute().parents
    return next((d for mark in (".git", SHARED_CONFIG) for d in above if (d / mark).exists()), None)
