# SPDX-License-Identifier: Apache-2.0
"""`pipectl transfer`: moves pipeds and applications to another control plane.

The backup file is the one that upstream's pipectl reads and writes.
"""

import asyncio
import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from google.protobuf.message import Message

from pipecd.commandline import flags
from pipecd.model.clock import utc_now
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.pipectl.application import parse_labels
from pipecd.pipectl.client import (
    Api,
    Connection,
    attempt,
    call,
    logger,
    print_json,
    with_api,
    with_connection,
)
from pipecd.pipectl.new_application import add_application
from pipecd.program.atomic_write import write_private
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import api_pb2 as pb

_PAGE = 500
M = TypeVar("M", bound=Message)

_FORMAT_VERSION = "1"


@dataclass(frozen=True)
class Backup:
    """The pipeds and applications of a project."""

    pipeds: tuple[Piped, ...]
    applications: tuple[Application, ...]

    def to_text(self, created_at: datetime) -> str:
        """Returns the content of the backup file."""
        document = {
            "version": _FORMAT_VERSION,
            "created_at": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "pipeds": [json.loads(to_json(piped)) for piped in self.pipeds],
            "applications": [json.loads(to_json(application)) for application in self.applications],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class PipedMapping:
    """The piped of the new control plane that replaces one of the old control plane."""

    old_piped_id: str
    new_piped_id: str
    new_key: str
    new_base64_key: str
    piped_name: str


@click.group()
def transfer() -> None:
    """Move a project to another control plane."""


@transfer.command("backup")
@with_api
@flags.text("output-file", "Where to write.", required=True)
@flags.strings("labels", "Only applications with these labels, as KEY:VALUE.")
async def backup(api: Api, output_file: str, labels: tuple[str, ...]) -> None:
    """Write the applications, and the pipeds they have, into a file."""
    selected = parse_labels(labels, ":")
    applications = [
        application
        for disabled in (False, True)
        for application in await _applications(api, selected, disabled=disabled)
    ]
    pipeds: list[Piped] = []
    for id_ in dict.fromkeys(a.piped_id for a in applications):
        try:
            pipeds.append((await call(api.GetPiped(pb.GetPipedRequest(piped_id=id_)))).piped)
        except PipecdError as e:
            logger.warning("piped not backed up", piped=id_, error=str(e))
    if not pipeds:
        raise UserMistake("no piped for backup")
    saved = Backup(tuple(pipeds), tuple(applications))
    await asyncio.to_thread(_write, Path(output_file), saved.to_text(utc_now()))
    logger.info("backup written", pipeds=len(pipeds), applications=len(applications))


async def _applications(
    api: Api, labels: Mapping[str, str], *, disabled: bool
) -> list[Application]:
    applications: list[Application] = []
    cursor = ""
    while True:
        request = pb.ListApplicationsRequest(
            disabled=disabled, labels=labels, limit=_PAGE, cursor=cursor
        )
        page = await attempt("list applications", api.ListApplications(request))
        applications += page.applications
        cursor = page.cursor
        if not cursor or not page.applications:
            return applications


@transfer.group("restore")
def restore() -> None:
    """Bring a backup into a control plane, the pipeds first."""


@restore.command("piped")
@with_api
@flags.text("input-file", "The file that backup wrote.", required=True)
@flags.text("output-file", "Where to write the new ids and keys; standard output if not set.")
async def restore_piped(api: Api, input_file: str, output_file: str) -> None:
    """Register the pipeds of a backup."""
    saved = await asyncio.to_thread(read_backup, Path(input_file))
    mappings: list[PipedMapping] = []
    try:
        for piped in saved.pipeds:
            request = pb.RegisterPipedRequest(name=piped.name, desc=piped.desc)
            new = await attempt(f"register piped {piped.name}", api.RegisterPiped(request))
            mappings.append(
                PipedMapping(
                    old_piped_id=piped.id,
                    new_piped_id=new.id,
                    new_key=new.key,
                    new_base64_key=base64.b64encode(new.key.encode()).decode(),
                    piped_name=piped.name,
                )
            )
    finally:
        # The control plane returns a key only once: those of a failed restore are saved as well.
        text = mappings_text(tuple(mappings))
        if not output_file:
            print_json(text)
        elif mappings:
            await asyncio.to_thread(_write, Path(output_file), text)
    logger.info("pipeds registered", pipeds=len(mappings))


@restore.command("application")
@with_connection
@flags.text("input-file", "The file that backup wrote.", required=True)
@flags.text("piped-id-mapping-file", "The file that restore piped wrote.", required=True)
@flags.strings("labels", "Only applications with these labels, as KEY:VALUE.")
async def restore_application(
    connection: Connection, input_file: str, piped_id_mapping_file: str, labels: tuple[str, ...]
) -> None:
    """Add the applications of a backup to their new pipeds."""
    saved = await asyncio.to_thread(read_backup, Path(input_file))
    pipeds = await asyncio.to_thread(read_mappings, Path(piped_id_mapping_file))
    selected = parse_labels(labels, ":").items()
    failed = 0
    for application in (a for a in saved.applications if selected <= dict(a.labels).items()):
        try:
            await _restore(connection, application, pipeds)
        except PipecdError as e:
            failed += 1
            logger.error("application not restored", application=application.name, error=str(e))
    if failed:
        raise PipecdError(f"{failed} application(s) failed to restore")


async def _restore(connection: Connection, old: Application, pipeds: Mapping[str, str]) -> None:
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
    targets = old.deploy_targets_by_plugin
    new = await add_application(connection, request, targets, disabled=old.disabled)
    logger.info("application restored", application=old.name, id=new)


def mappings_text(mappings: tuple[PipedMapping, ...]) -> str:
    """Returns the content of the mapping file."""
    document = {
        "piped_mappings": [vars(mapping) for mapping in mappings],
        "restored_application_count": 0,
        "failed_application_count": 0,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def read_backup(file: Path) -> Backup:
    """Reads the file that `backup` wrote."""
    document = _read(file)
    if "version" not in document:
        raise UserMistake(
            f"{file} is not a backup", hint="name a file that `pipectl transfer backup` wrote"
        )
    if (version := document.get("version")) != _FORMAT_VERSION:
        raise UserMistake(
            f"{file} has the version {version!r}, only {_FORMAT_VERSION!r} is supported"
        )
    return Backup(
        pipeds=_messages(file, document, "pipeds", Piped),
        applications=_messages(file, document, "applications", Application),
    )


def read_mappings(file: Path) -> dict[str, str]:
    """Returns the new piped id of each old one."""
    listed: Any = _read(file).get("piped_mappings") or []
    try:
        return {str(one["old_piped_id"]): str(one["new_piped_id"]) for one in listed}
    except (TypeError, KeyError) as e:
        raise UserMistake(f"{file} has no piped_mappings", hint="see `restore piped`") from e


def _write(file: Path, text: str) -> None:
    """Writes a file that only its owner can read, because it may hold keys."""
    try:
        write_private(file, text.encode())
    except OSError as e:
        raise UserMistake(f"cannot write {file}: {e.strerror}") from e


def _read(file: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except OSError as e:
        raise UserMistake(f"cannot read {file}: {e.strerror}") from e
    except ValueError as e:
        raise UserMistake(f"{file} is not JSON: {e}") from e
    if not isinstance(document, Mapping):
        raise UserMistake(f"{file} is not what pipectl transfer writes")
    return cast("Mapping[str, Any]", document)


def _messages(file: Path, document: Mapping[str, Any], key: str, type_: type[M]) -> tuple[M, ...]:
    listed: object = document.get(key) or []
    objects = cast("list[object]", listed) if isinstance(listed, list) else [listed]
    if not all(isinstance(one, dict) for one in objects):
        raise UserMistake(f"{file} is damaged: its {key} are not a list of objects")
    try:
        return tuple(from_json(json.dumps(one), type_) for one in objects)
    except (TypeError, ValueError) as e:
        raise UserMistake(f"{file} is damaged: its {key} cannot be read: {e}") from e
