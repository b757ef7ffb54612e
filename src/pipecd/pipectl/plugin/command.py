# SPDX-License-Identifier: Apache-2.0
"""`pipectl plugin`: init, check, push."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from pipecd.commandline import flags
from pipecd.config.piped import PluginSpec
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.pipectl.plugin.project import Project
from pipecd.sdk.conformance import Trial, Verdict, try_plugin
from pipecd.sdk.options import decode_value
from pipecd.wire.oci.login import docker_login
from pipecd.wire.oci.manifest import PLUGIN_LAYER, Platform
from pipecd.wire.oci.reference import Reference, parse_reference
from pipecd.wire.oci.registry import Registry

ARTIFACT_TYPE = f"{PLUGIN_LAYER}+type"


@click.group()
def plugin() -> None:
    """Begin, check and publish plugins."""


@plugin.command("init")
@flags.every_command
@flags.text("dir", "Where to write it; a directory named like the plugin when it is not set.")
@click.argument("name")
def init(name: str, dir: str, **_: object) -> None:
    """Write a plugin NAME that works, with tests and everything to install it."""
    project = Project(name)
    place = Path(dir or name)
    project.write(place)
    click.echo(
        f"{place} is a plugin with the stage {project.stage}; next:\n"
        f"  cd {place} && pip install -e '.[test]' && pytest"
    )


@plugin.command("check")
@flags.every_command
@flags.text("entry-file", "The plugin's entry of the piped file, as YAML: config, deployTargets.")
@click.option("--run", multiple=True, help="A stage to run, as NAME or NAME=JSON of its options.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def check(command: tuple[str, ...], entry_file: str, run: tuple[str, ...], **_: object) -> None:
    """Check that COMMAND is a plugin that every piped can run."""
    trial = Trial(
        command=command,
        entry=_entry(Path(entry_file)) if entry_file else None,
        options=dict(_stage_options(one) for one in run),
    )
    failed = asyncio.run(_try(trial))
    if failed:
        raise PipecdError(f"{failed} of the checks failed")


async def _try(trial: Trial) -> int:
    failed = 0
    async for finding in try_plugin(trial):
        click.echo(str(finding))
        failed += finding.verdict is Verdict.FAILED
    return failed


def _entry(path: Path) -> PluginSpec:
    try:
        content: Any = yaml.safe_load(path.read_bytes())
    except OSError as e:
        raise UserMistake(f"cannot read {path}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise UserMistake(f"{path} is not YAML: {e}") from e
    if not isinstance(content, dict):
        raise UserMistake(f"{path} must be a mapping: config, deployTargets")
    return decode_value(PluginSpec, {"name": "checked", **content}, what=str(path))


def _stage_options(given: str) -> tuple[str, object]:
    name, _, options = given.partition("=")
    try:
        return name, json.loads(options or "{}")
    except ValueError as e:
        raise UserMistake(f"--run {given}: the options are not JSON: {e}") from e


@plugin.command("push")
@flags.every_command
@flags.strings("files", "Programs by platform, as OS/ARCH=path.", required=True)
@flags.text("tag", "The tag.", required=True)
@flags.text("registry", "The registry, as host or host:port.", required=True)
@flags.text("repository", "The repository in it.", required=True)
@flags.switch("insecure", "Talk to the registry without TLS.")
def push(
    files: tuple[str, ...], tag: str, registry: str, repository: str, insecure: bool, **_: object
) -> None:
    """Push a plugin to a registry, from where pipeds fetch it."""
    programs = [_program(one) for one in files]
    reference = parse_reference(f"oci://{registry}/{repository}:{tag}")
    digest = asyncio.run(_push(reference, programs, insecure=insecure))
    click.echo(f"oci://{registry}/{repository}:{tag}@{digest}")


def _program(given: str) -> tuple[Platform, Path]:
    platform, equals, path = given.partition("=")
    if not equals or not path:
        raise UserMistake(f"invalid file format: {given}", hint="write OS/ARCH=path")
    system, slash, architecture = platform.partition("/")
    if not system or not slash or not architecture or "/" in architecture:
        raise UserMistake(f"invalid platform format: {platform}", hint="write OS/ARCH=path")
    if not Path(path).is_file():
        raise UserMistake(f"there is no file {path}")
    return Platform(system, architecture), Path(path)


async def _push(
    reference: Reference, programs: Sequence[tuple[Platform, Path]], *, insecure: bool
) -> str:
    login = docker_login(reference.host)
    async with Registry.open(reference, login=login, insecure=insecure) as registry:
        return await registry.push(programs, layer_type=PLUGIN_LAYER, artifact_type=ARTIFACT_TYPE)
