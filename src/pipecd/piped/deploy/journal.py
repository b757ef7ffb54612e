# SPDX-License-Identifier: Apache-2.0
"""Results of a deployment, on disk before they are reported to the control plane.

Without it, a piped that restarts while the control plane is unavailable would run a completed stage
again.
"""

import asyncio
import base64
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from google.protobuf.message import DecodeError
from pydantic import BaseModel, ConfigDict, Field

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.ids import new_id
from pipecd.piped.plan.rollback import DeploymentOutcome
from pipecd.piped.state_file import StateFile
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)


@dataclass(frozen=True)
class StageEntry:
    """The result of a stage, and the part of its log that was not sent yet."""

    status: StageStatus
    reason: str
    log: tuple[Checkpoint, ...] = ()


@dataclass
class Journal:
    """The results of the stages and, once it is decided, the outcome of the deployment."""

    file: StateFile
    stages: dict[str, StageEntry] = field(default_factory=dict[str, StageEntry])
    outcome: DeploymentOutcome | None = None
    started_at: int = 0
    """When the first stage started, in unix seconds."""
    _is_saved: bool = field(default=False, repr=False, compare=False)

    @classmethod
    def create(cls, path: Path) -> "Journal":
        """Returns the journal of a deployment that has just been planned."""
        return cls(_state_file(path))

    @classmethod
    async def open(cls, path: Path) -> "Journal":
        """Reads the journal of an earlier process, if there is one."""
        file = _state_file(path)
        journal = await asyncio.to_thread(file.read, lambda content: _parse(file, content))
        # Without a journal the statuses in the control plane count.
        return journal or cls(file)

    async def record_stage(
        self, stage_id: str, entry: StageEntry, outcome: DeploymentOutcome | None = None
    ) -> None:
        """Records the result of a stage, and how the deployment ends if that decides it."""
        self.stages[stage_id] = entry
        if outcome is not None:
            self.outcome = outcome
        await self._save()

    async def record_outcome(self, outcome: DeploymentOutcome) -> None:
        """Records how the deployment ends."""
        if not self._is_saved or self.outcome != outcome:
            self.outcome = outcome
            await self._save()

    def unreported(self, deployment: Deployment) -> list[tuple[PipelineStage, StageEntry]]:
        """Returns the completed stages that the control plane has as not completed."""
        return [
            (stage, self.stages[stage.id])
            for stage in deployment.stages
            if stage.id in self.stages and not StageStatus(stage.status).is_completed
        ]

    async def _save(self) -> None:
        try:
            await asyncio.to_thread(self._write)
        except asyncio.CancelledError:
            # Piped shuts down: a stage that is not on disk now would run again.
            self._write()
            raise

    def _write(self) -> None:
        document = {
            "began": self.started_at,
            "stages": {
                id: {
                    "status": entry.status.name,
                    "reason": entry.reason,
                    "log": [base64.b64encode(c.SerializeToString()).decode() for c in entry.log],
                }
                for id, entry in self.stages.items()
            },
            "outcome": None
            if self.outcome is None
            else {**asdict(self.outcome), "status": self.outcome.status.name},
        }
        # After a cancellation two threads may write at the same time, each to a file of its own.
        scratch = self.file.path.with_suffix(f".{new_id()}")
        self._is_saved = self.file.write(json.dumps(document).encode(), scratch=scratch)


class _StrictModel(BaseModel):
    model_config = ConfigDict(strict=True)


class _StageRecord(_StrictModel):
    status: str
    reason: str
    log: list[str]


class _OutcomeRecord(_StrictModel):
    status: str
    reason: str
    last_stage: str
    rolls_back: bool
    by: str = ""


class _JournalDocument(_StrictModel):
    """The content of the file."""

    stages: dict[str, _StageRecord]
    outcome: _OutcomeRecord | None
    # Earlier versions did not write when the first stage started.
    began: int = Field(default=0, ge=0)


def _state_file(path: Path) -> StateFile:
    return StateFile(path, "a restart may repeat stages")


def _parse(file: StateFile, content: bytes) -> Journal:
    document = _JournalDocument.model_validate_json(content)
    try:
        stages = {
            id: StageEntry(
                StageStatus[record.status],
                record.reason,
                tuple(Checkpoint.FromString(base64.b64decode(text)) for text in record.log),
            )
            for id, record in document.stages.items()
        }
        outcome = None
        if (recorded := document.outcome) is not None:
            outcome = DeploymentOutcome(
                DeploymentStatus[recorded.status],
                recorded.reason,
                recorded.last_stage,
                recorded.rolls_back,
                recorded.by,
            )
    except (KeyError, DecodeError) as e:
        raise ValueError(f"unknown status or log: {e}") from e
    if not all(entry.status.is_completed for entry in stages.values()):
        raise ValueError("a stage is not completed")
    if outcome is not None and not outcome.status.is_completed:
        raise ValueError("the outcome is not a completed deployment")
    return Journal(file, stages, outcome, document.began)
