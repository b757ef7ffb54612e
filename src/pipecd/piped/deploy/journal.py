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
from typing import Any

import structlog
from google.protobuf.message import DecodeError

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.ids import new_id
from pipecd.piped.plan.rollback import DeploymentOutcome
from pipecd.program.atomic_write import write_atomic
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)

log = structlog.get_logger()


@dataclass(frozen=True)
class StageEntry:
    """The result of a stage, and the part of its log that was not sent yet."""

    status: StageStatus
    reason: str
    log: tuple[Checkpoint, ...] = ()


@dataclass
class Journal:
    """The results of the stages and, once it is decided, the outcome of the deployment."""

    path: Path
    stages: dict[str, StageEntry] = field(default_factory=dict[str, StageEntry])
    outcome: DeploymentOutcome | None = None
    started_at: int = 0
    """When the first stage started, in unix seconds."""

    @classmethod
    async def open(cls, path: Path) -> "Journal":
        """Reads the journal of an earlier process, if there is one."""
        return await asyncio.to_thread(_read, path)

    async def record_stage(self, stage_id: str, entry: StageEntry) -> None:
        """Records the result of a stage."""
        self.stages[stage_id] = entry
        await self._save()

    async def record_outcome(self, outcome: DeploymentOutcome) -> None:
        """Records how the deployment ends."""
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
        scratch = self.path.with_suffix(f".{new_id()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.path, json.dumps(document).encode(), scratch=scratch)
        except OSError as e:
            # The deployment continues; only a restart could repeat a stage.
            log.warning("journal not written, a restart may repeat stages", error=str(e))


def _read(path: Path) -> Journal:
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        stages = {
            id: StageEntry(
                StageStatus[entry["status"]],
                str(entry["reason"]),
                tuple(Checkpoint.FromString(base64.b64decode(text)) for text in entry["log"]),
            )
            for id, entry in document["stages"].items()
        }
        outcome = None
        if (recorded := document["outcome"]) is not None:
            outcome = DeploymentOutcome(
                status=DeploymentStatus[recorded["status"]],
                reason=recorded["reason"],
                last_stage=recorded["last_stage"],
                rolls_back=recorded["rolls_back"],
                by=recorded.get("by", ""),
            )
        # Earlier versions did not write when the first stage started.
        return Journal(path, stages, outcome, int(document.get("began", 0)))
    except FileNotFoundError:
        return Journal(path)
    except (OSError, ValueError, KeyError, TypeError, DecodeError) as e:
        log.warning("journal not readable, using the control plane's statuses", error=str(e))
        return Journal(path)
