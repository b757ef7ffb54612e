# SPDX-License-Identifier: Apache-2.0
"""`pipectl lint`: reports every mistake in configuration files, without a control plane."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from pipecd.commandline import flags
from pipecd.commandline.github_actions import workflow_commands_stopped
from pipecd.config.application import is_application_file
from pipecd.config.catalog import Catalog, load_catalog
from pipecd.config.read import read_file
from pipecd.config.report import ConfigMistake, Mistake
from pipecd.config.shared_config import SHARED_CONFIG, unresolved
from pipecd.model.count import counted
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe.version import build_version

_YAML_SUFFIXES = (".yaml", ".yml")
# The name that GitHub gives to the root of a repository.
_BASE_ID = "%SRCROOT%"
_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True)
class Finding:
    """Something that is wrong in a file; with an error the file cannot be used."""

    mistake: Mistake
    is_error: bool

    @property
    def level(self) -> str:
        return "error" if self.is_error else "warning"


@click.command()
@flags.every_command
@flags.switch("strict", "Take warnings for mistakes, such as keys that are unknown.")
@click.option(
    "--output",
    type=click.Choice(("text", "json", "sarif")),
    default="text",
    show_default=True,
    help="The form of the findings.",
)
@click.argument("paths", nargs=-1, required=True, shell_complete=flags.files)
def lint(paths: tuple[str, ...], strict: bool, output: str, **_: object) -> None:
    """Check files of any kind at PATHS; exits with 1 when one of them is invalid.

    In a directory the files of applications and of .pipe/ are checked.
    """
    catalog = load_catalog()
    files = [file for path in paths for file in _files_at(path)]
    findings = {
        file: [
            Finding(finding.mistake, finding.is_error or strict) for finding in _lint(file, catalog)
        ]
        for file in files
    }
    every = [finding for found in findings.values() for finding in found]
    invalid = sum(any(finding.is_error for finding in found) for found in findings.values())
    match output:
        case "json":
            click.echo(json.dumps([_as_json(finding) for finding in every], indent=2))
        case "sarif":
            click.echo(json.dumps(_as_sarif(every), indent=2))
        case _:
            with workflow_commands_stopped():
                for finding in every:
                    suffix = "" if finding.is_error else " (warning)"
                    click.echo(f"{finding.mistake}{suffix}")
            if not invalid:
                click.echo(_summary(len(files), len(every)))
    if invalid:
        raise PipecdError(f"{invalid} of {counted(len(files), 'file')} cannot be used")


def _summary(files: int, warnings: int) -> str:
    counted = f"{files} {'file' if files == 1 else 'files'}"
    if warnings:
        noun = "warning" if warnings == 1 else "warnings"
        return f"{counted} can be used, with {warnings} {noun}"
    return f"{counted} {'is' if files == 1 else 'are'} right"


def _files_at(path: str) -> Sequence[str]:
    """The file itself, or the configuration files in a directory."""
    directory = Path(path)
    if not directory.is_dir():
        return [path]
    found = [
        str(file)
        for file in sorted(directory.rglob("*"))
        if file.is_file()
        and ".git" not in file.parts
        and (
            is_application_file(file.name)
            or (file.parent.name == SHARED_CONFIG and file.suffix in _YAML_SUFFIXES)
        )
    ]
    if not found:
        raise UserMistake(
            f"there is no configuration file in {path}",
            hint="name a file, or a directory with files like app.pipecd.yaml",
        )
    return found


def _lint(file: str, catalog: Catalog) -> Iterator[Finding]:
    """Yields the findings of a file."""
    try:
        text = Path(file).read_bytes()
    except OSError as e:
        raise UserMistake(f"cannot read {file}: {e.strerror}") from e
    try:
        config = read_file(text, file=file, catalog=catalog)
    except ConfigMistake as e:
        yield from (Finding(mistake, is_error=True) for mistake in e.report.mistakes)
        yield from _warnings(e.report.warnings, e.report.unplannable)
        return
    yield from _warnings(config.warnings, config.unplannable)
    # The repository of the file; an exported one has no .git.
    parents = Path(file).absolute().parents
    markers = (".git", SHARED_CONFIG)
    root = next((d for marker in markers for d in parents if (d / marker).exists()), None)
    if root is None:
        return
    for reference in config.references:
        if reason := unresolved(reference.reference, root / SHARED_CONFIG, catalog):
            yield Finding(reference.mistake(reason), is_error=True)


def _warnings(warnings: Iterable[Mistake], unplannable: frozenset[Mistake]) -> Iterator[Finding]:
    """What a piped reads; that with which nothing can be planned is an error all the same."""
    return (Finding(warning, is_error=warning in unplannable) for warning in warnings)


def _as_json(finding: Finding) -> dict[str, Any]:
    mistake = finding.mistake
    return {
        "level": finding.level,
        "file": mistake.file,
        "line": mistake.line,
        "column": mistake.column,
        "path": mistake.path,
        "message": mistake.what,
    }


def _as_sarif(findings: Iterable[Finding]) -> dict[str, Any]:
    """The findings as code hosts show them beside the lines of a change."""
    results = [
        {
            "ruleId": "configuration",
            "level": finding.level,
            "message": {
                "text": ": ".join(p for p in (finding.mistake.path, finding.mistake.what) if p)
            },
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": _artifact(finding.mistake.file),
                        "region": {
                            "startLine": max(1, finding.mistake.line),
                            "startColumn": max(1, finding.mistake.column),
                        },
                    }
                }
            ],
        }
        for finding in findings
    ]
    driver = {
        "name": "pipectl lint",
        "version": build_version(),
        "rules": [{"id": "configuration", "shortDescription": {"text": "A configuration file"}}],
    }
    return {
        "$schema": _SARIF_SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "originalUriBaseIds": {
                    _BASE_ID: {"description": {"text": "The directory in which pipectl ran."}}
                },
                "columnKind": "unicodeCodePoints",
                "results": results,
            }
        ],
    }


def _artifact(file: str) -> dict[str, str]:
    """The file relative to the current directory, from which code hosts find it."""
    absolute, base = Path(file).resolve(), Path.cwd().resolve()
    if not absolute.is_relative_to(base):
        return {"uri": absolute.as_uri()}
    return {"uri": quote(absolute.relative_to(base).as_posix()), "uriBaseId": _BASE_ID}
