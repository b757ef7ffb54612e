# SPDX-License-Identifier: Apache-2.0
"""`pipectl migrate`: database, application-config."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import yaml

from pipecd.commandline import flags
from pipecd.config.application import is_application_file
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe import log
from pipecd.pipectl.client import Api, client_flags, logger, told, with_api
from pipecd.pipectl.migrate.document import second_generation
from pipecd.program.atomic_write import write_atomic
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service import api_pb2 as pb

_PLUGINS: Mapping[ApplicationKind, str] = {
    ApplicationKind.KUBERNETES: "kubernetes",
    ApplicationKind.TERRAFORM: "terraform",
    ApplicationKind.ECS: "ecs",
    ApplicationKind.LAMBDA: "lambda",
    ApplicationKind.CLOUDRUN: "cloudrun",
}


@click.group()
def migrate() -> None:
    """Move from kinds and platform providers to plugins and deploy targets."""


@migrate.command("database")
@with_api
@flags.strings("applications", "The applications, by id.", required=True)
async def database(api: Api, applications: tuple[str, ...]) -> None:
    """Give applications the deploy targets that their platform providers are."""
    for id_ in applications:
        await _give_targets(api, id_)


async def _give_targets(api: Api, id_: str) -> None:
    asked = pb.GetApplicationRequest(application_id=id_)
    found = (await told("get application", api.GetApplication(asked))).application
    if found.deploy_targets_by_plugin:
        logger.info("application has deploy targets already", application=id_)
        return
    if not found.platform_provider:
        logger.info("application has no platform provider", application=id_)
        return
    plugin = _PLUGINS[ApplicationKind(found.kind)]
    targets = {plugin: DeployTargets(deploy_targets=[found.platform_provider])}
    request = pb.UpdateApplicationDeployTargetsRequest(
        application_id=id_, deploy_targets_by_plugin=targets
    )
    await told("update application", api.UpdateApplicationDeployTargets(request))
    logger.info("application has deploy targets now", application=id_, plugin=plugin)


@migrate.command("application-config")
@flags.every_command
@client_flags
@flags.strings("config-files", "The files to rewrite.")
@flags.strings("dirs", "Directories whose application files are rewritten, also further down.")
def application_config(
    config_files: tuple[str, ...],
    dirs: tuple[str, ...],
    log_level: str,
    log_encoding: str,
    **_: object,
) -> None:
    """Rewrite application files for plugins; the old ones stay beside them as FILE.old."""
    log.configure(log_level, log_encoding, program="pipectl")
    if bool(config_files) == bool(dirs):
        raise UserMistake("exactly one of --config-files and --dirs must be set")
    for name in config_files:
        rewrite(Path(name))
    for file in (file for name in dirs for file in _application_files(Path(name))):
        try:
            rewrite(file)
        except PipecdError as e:
            logger.error("file was left as it is", file=str(file), error=str(e))


def rewrite(file: Path) -> None:
    """Replaces a file; whatever goes wrong leaves it as it was."""
    try:
        text = yaml.safe_dump(second_generation(yaml.safe_load(file.read_bytes())))
        old = file.with_name(f"{file.name}.old")
        old.unlink(missing_ok=True)
        old.hardlink_to(file)
        write_atomic(file, text.encode(), mode=0o644)
    except OSError as e:
        raise UserMistake(f"cannot rewrite {file}: {e.strerror}") from e
    except yaml.YAMLError as e:
        raise UserMistake(f"{file} is not YAML: {e}", hint="see pipectl lint") from e
    except UserMistake as e:
        raise UserMistake(f"{file}: {e.message}", hint=e.hint) from e
    logger.info("file was rewritten", file=str(file))


def _application_files(directory: Path) -> Iterator[Path]:
    if not directory.is_dir():
        raise UserMistake(f"there is no directory {directory}")
    return (f for f in sorted(directory.rglob("*")) if f.is_file() and is_application_file(f.name))
