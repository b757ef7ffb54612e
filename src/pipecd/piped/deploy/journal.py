# SPDX-License-Identifier: Apache-2.0
"""What this piped did for a deployment, on disk before the control plane is told.

A piped that ends while the control plane is away would otherwise run a finished stage again.
"""

import asyncio
import base64
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.ids import new_id
from pipecd.piped.deploy.outcome import Outcome
from pipecd.program.atomic_write import write_atomic
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)

log = structlog.get_logger()


@dataclass(frozen=True)
class StageEntry:
    """How a stage ended, and what is left to be told about its log."""

    status: StageStatus
    reason: str
    log: tuple[Checkpoint, ...] = ()


@dataclass
class Journal:
    """The endings of stages and, once it is decided, of the deployment."""

    path: Path
    stages: dict[str, StageEntry] = field(default_factory=dict[str, StageEntry])
    outcome: Outcome | None = None
    began: int = 0
    """When the first stage began, in unix seconds; written with the rest."""

    @classmethod
    async def open(cls, path: Path) -> "Journal":
        """Reads what an earlier life of this piped wrote, if anything."""
        return await asyncio.to_thread(_read, path)

    async def stage_ended(self, stage_id: str, entry: StageEntry) -> None:
        """Remembers that a stage is over."""
        self.stages[stage_id] = entry
        await self._save()

    async def decided(self, outcome: Outcome) -> None:
        """Remembers how the deployment is going to end."""
        self.outcome = outcome
        await self._save()

    def untold(self, deployment: Deployment) -> list[tuple[PipelineStage, StageEntry]]:
        """The stages that are over and of which the control plane does not know that."""
        return [
            (stage, self.stages[stage.id])
            for stage in deployment.stages
            if stage.id in self.stages and not StageStatus(stage.status).is_completed
        ]

    async def _save(self) -> None:
        try:
            await asyncio.to_thread(self._write)
        except asyncio.CancelledError:
            # Piped ends, and what is not on disk now would be done again.
            self._write()
            raise

    def _write(self) -> None:
        try:
            self._replace()
        except OSError as e:
            # A deployment is worth more than the memory of it.
            log.warning("the journal was not written, a restart may repeat", error=str(e))

    def _replace(self) -> None:
        document = {
            "began": self.began,
            "stages": {id: _document(entry) for id, entry in self.stages.items()},
            "outcome": None
            if self.outcome is None
            else {**asdict(self.outcome), "status": self.outcome.status.name},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # One that was cancelled amid writing writes beside its own thread.
        scratch = self.path.with_suffix(f".{new_id()}")
        write_atomic(self.path, json.dumps(document).encode(), scratch=scratch)


def _read(path: Path) -> Journal:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        stages = {id: _entry(entry) for id, entry in document["stages"].items()}
        # A piped of an earlier version did not write when it began.
        began = int(document.get("began", 0))
        return Journal(path, stages, _outcome(document["outcome"]), began)
    except FileNotFoundError:
        return Journal(path)
    except (OSError, ValueError, KeyError, TypeError, DecodeError) as e:
        log.warning("a journal cannot be read, the control plane is asked instead", error=str(e))
        return Journal(path)


def _document(entry: StageEntry) -> dict[str, Any]:
    log = [base64.b64encode(checkpoint.SerializeToString()).decode() for checkpoint in entry.log]
    return {"status": entry.status.name, "reason": entry.reason, "log": log}


def _entry(document: dict[str, Any]) -> StageEntry:
    return StageEntry(
        StageStatus[document["status"]],
        str(document["reason"]),
        tuple(Checkpoint.FromString(base64.b64decode(text)) for text in document["log"]),
    )


def _outcome(document: dict[str, Any] | None) -> Outcome | None:
    if document is None:
        return None
    return Outcome(
        status=DeploymentStatus[document["status"]],
        reason=document["reason"],
        last_stage=document["last_stage"],
        rolls_back=document["rolls_back"],
        by=document.get("by", ""),
    )
