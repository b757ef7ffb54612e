# SPDX-License-Identifier: Apache-2.0
"""What is moved, as the file that upstream's pipectl reads and writes too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from google.protobuf.message import Message

from pipecd.model.document import from_json, to_json
from pipecd.model.errors import UserMistake
from pipecd.program.atomic_write import write_private
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.piped_pb2 import Piped

M = TypeVar("M", bound=Message)

_VERSION = "1"


@dataclass(frozen=True)
class Backup:
    """The pipeds and applications of a project."""

    created_at: datetime
    pipeds: tuple[Piped, ...]
    applications: tuple[Application, ...]

    def to_text(self) -> str:
        """The text of the file."""
        document = {
            "version": _VERSION,
            "created_at": self.created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "pipeds": [json.loads(to_json(piped)) for piped in self.pipeds],
            "applications": [json.loads(to_json(application)) for application in self.applications],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)


@dataclass(frozen=True)
class PipedMapping:
    """Which piped of the new control plane took the place of which of the old one."""

    old_piped_id: str
    new_piped_id: str
    new_key: str
    new_base64_key: str
    piped_name: str


def mappings_text(mappings: tuple[PipedMapping, ...]) -> str:
    """The text of the file that tells which piped became which."""
    document = {
        "piped_mappings": [vars(mapping) for mapping in mappings],
        "restored_application_count": 0,
        "failed_application_count": 0,
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def read_backup(file: Path) -> Backup:
    """Reads what `backup` wrote."""
    document = _read(file)
    if (version := document.get("version")) != _VERSION:
        raise UserMistake(f"{file} has the version {version!r}, only {_VERSION!r} is understood")
    return Backup(
        created_at=datetime.fromisoformat(str(document.get("created_at", ""))),
        pipeds=_messages(document, "pipeds", Piped),
        applications=_messages(document, "applications", Application),
    )


def read_mappings(file: Path) -> dict[str, str]:
    """The id of the new piped for each old one."""
    listed: Any = _read(file).get("piped_mappings") or []
    try:
        return {str(one["old_piped_id"]): str(one["new_piped_id"]) for one in listed}
    except (TypeError, KeyError) as e:
        raise UserMistake(f"{file} has no piped_mappings", hint="see `restore piped`") from e


def write(file: Path, text: str) -> None:
    """Writes a file of this kind, which only its owner may read."""
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


def _messages(document: Mapping[str, Any], key: str, type_: type[M]) -> tuple[M, ...]:
    return tuple(from_json(json.dumps(one), type_) for one in document.get(key) or ())
