# SPDX-License-Identifier: Apache-2.0
"""`pipectl transfer`: backup, restore piped, restore application."""

import asyncio
import base64
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from pipecd.commandline import flags
from pipecd.model.clock import utc_now
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.pipectl.application import label_pairs
from pipecd.pipectl.client import Api, asked, logger, print_json, told, with_api
from pipecd.pipectl.transfer.backup import (
    Backup,
    PipedMapping,
    mappings_text,
    read_backup,
    read_mappings,
    write,
)
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import api_pb2 as pb

_PAGE = 500


@click.group()
def transfer() -> None:
    """Move a project to another control plane."""


@transfer.command("backup")
@with_api
@flags.text("output-file", "Where to write.", required=True)
@flags.strings("labels", "Only applications with these labels, as KEY:VALUE.")
async def backup(api: Api, output_file: str, labels: tuple[str, ...]) -> None:
    """Write the applications, and the pipeds they have, into a file."""
    wanted = label_pairs(labels)
    applications = [
        application
        for disabled in (False, True)
        for application in await _applications(api, wanted, disabled=disabled)
    ]
    pipeds = await _pipeds(api, dict.fromkeys(a.piped_id for a in applications))
    kept = Backup(utc_now(), tuple(pipeds), tuple(applications))
    await asyncio.to_thread(write, Path(output_file), kept.to_text())
    logger.info("backup written", pipeds=len(pipeds), applications=len(applications))


async def _applications(
    api: Api, labels: Mapping[str, str], *, disabled: bool
) -> list[Application]:
    found: list[Application] = []
    cursor = ""
    while True:
        request = pb.ListApplicationsRequest(
            disabled=disabled, labels=labels, limit=_PAGE, cursor=cursor
        )
        page = await told("list applications", api.ListApplications(request))
        found += page.applications
        cursor = page.cursor
        if not cursor or not page.applications:
            return found


async def _pipeds(api: Api, ids: Iterable[str]) -> list[Piped]:
    found: list[Piped] = []
    for id_ in ids:
        try:
            found.append((await asked(api.GetPiped(pb.GetPipedRequest(piped_id=id_)))).piped)
        except PipecdError as e:
            logger.warning("piped left out", piped=id_, error=str(e))
    if not found:
        raise UserMistake("no piped for backup")
    return found


@transfer.group("restore")
def restore() -> None:
    """Bring a backup into a control plane, the pipeds first."""


@restore.command("piped")
@with_api
@flags.text("input-file", "The file that backup wrote.", required=True)
@flags.text("output-file", "Where to write the new ids and keys; standard output if not set.")
async def restore_piped(api: Api, input_file: str, output_file: str) -> None:
    """Register the pipeds of a backup."""
    kept = await asyncio.to_thread(read_backup, Path(input_file))
    mappings: list[PipedMapping] = []
    try:
        for piped in kept.pipeds:
            mappings.append(await _register(api, piped))
    finally:
        # Keys are told only once, so those of an attempt that broke off are not lost either.
        text = mappings_text(tuple(mappings))
        if not output_file:
            print_json(text)
        elif mappings:
            await asyncio.to_thread(write, Path(output_file), text)
    logger.info("pipeds registered", pipeds=len(mappings))


async def _register(api: Api, piped: Piped) -> PipedMapping:
    request = pb.RegisterPipedRequest(name=piped.name, desc=piped.desc)
    answer = await told(f"register piped {piped.name}", api.RegisterPiped(request))
    return PipedMapping(
        old_piped_id=piped.id,
        new_piped_id=answer.id,
        new_key=answer.key,
        new_base64_key=base64.b64encode(answer.key.encode()).decode(),
        piped_name=piped.name,
    )


@restore.command("application")
@with_api
@flags.text("input-file", "The file that backup wrote.", required=True)
@flags.text("piped-id-mapping-file", "The file that restore piped wrote.", required=True)
@flags.strings("labels", "Only applications with these labels, as KEY:VALUE.")
async def restore_application(
    api: Api, input_file: str, piped_id_mapping_file: str, labels: tuple[str, ...]
) -> None:
    """Add the applications of a backup to their new pipeds."""
    kept = await asyncio.to_thread(read_backup, Path(input_file))
    pipeds = await asyncio.to_thread(read_mappings, Path(piped_id_mapping_file))
    wanted = label_pairs(labels).items()
    failed = 0
    for application in (a for a in kept.applications if wanted <= dict(a.labels).items()):
        try:
            await _restore(api, application, pipeds)
        except PipecdError as e:
            failed += 1
            logger.error("application not restored", application=application.name, error=str(e))
    if failed:
        raise PipecdError(f"{failed} application(s) failed to restore")


async def _restore(api: Api, old: Application, pipeds: Mapping[str, str]) -> None:
    if (piped := pipeds.get(old.piped_id)) is None:
        raise UserMistake(
            f"piped {old.piped_id} is not in the mapping", hint="restore the pipeds first"
        )
    request = pb.AddApplicationRequest(
        name=old.name,
        piped_id=piped,
        git_path=ApplicationGitPath(
            repo=ApplicationGitRepository(id=old.git_path.repo.id),
            path=old.git_path.path,
            config_filename=old.git_path.config_filename,
        ),
        kind=old.kind,
        platform_provider=old.platform_provider,
        description=old.description,
        labels=old.labels,
    )
    new = (await asked(api.AddApplication(request))).application_id
    if old.deploy_targets_by_plugin:
        targets = pb.UpdateApplicationDeployTargetsRequest(
            application_id=new, deploy_targets_by_plugin=old.deploy_targets_by_plugin
        )
        await asked(api.UpdateApplicationDeployTargets(targets))
    if old.disabled:
        await asked(api.DisableApplication(pb.DisableApplicationRequest(application_id=new)))
    logger.info("application restored", application=old.name, id=new)
