# SPDX-License-Identifier: Apache-2.0
"""Reports the progress of a deployment to the control plane, and notifies about it.

Every report changes the local copy of the deployment first, then queues the notification, then
calls the control plane; the client retries. A piped that is killed in between makes the same report
again after its restart; the key of the notification prevents a second one.

The piped that created a deployment may not have got the response yet, or was killed before it could
notify. So whoever takes a deployment out of PENDING first notifies that it was triggered.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import structlog

from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import (
    WAITING_FOR,
    DeploymentStatus,
    StageStatus,
    can_transition,
    running_since,
)
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.journal import StageEntry
from pipecd.piped.notify.deployment_events import (
    deployment_event,
    stage_events,
    triggered_event,
)
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.planning.planner import Plan, RunningCommit
from pipecd.proto.model import application_pb2, common_pb2, deployment_pb2
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import piped_pb2
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)

log = structlog.get_logger()

PLANNED = "The deployment has been planned"
STARTED = "The piped started handling this deployment"


def error_text(error: PipecdError | OSError) -> str:
    """Returns the text of an error for users; that of the system without its errno."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)


class DeploymentReports:
    """Reports about one deployment."""

    def __init__(
        self,
        api: ControlPlaneClient,
        deployment: Deployment,
        notifier: Notifier,
        *,
        on_status: Callable[[Deployment], None],
        now: Now = utc_now,
    ) -> None:
        self._api, self._deployment, self._notifier, self._now = api, deployment, notifier, now
        self._on_status = on_status

    async def planned(self, plan: Plan, running: RunningCommit | None) -> None:
        """Reports that the deployment is planned, with its stages."""
        own = self._deployment
        self._set_status(DeploymentStatus.PLANNED, PLANNED)
        own.summary = plan.summary
        own.running_commit_hash = running.commit if running else ""
        own.running_config_filename = running.config_filename if running else ""
        own.trigger.sync_strategy = common_pb2.SyncStrategy.ValueType(plan.strategy)
        del own.versions[:], own.stages[:]
        own.versions.extend(plan.versions)
        own.stages.extend(plan.stages)
        self._notifier.notify(deployment_event(own))
        request = piped_pb2.ReportDeploymentPlannedRequest(
            deployment_id=own.id,
            summary=own.summary,
            status_reason=PLANNED,
            running_commit_hash=own.running_commit_hash,
            running_config_filename=own.running_config_filename,
            sync_strategy=own.trigger.sync_strategy,
            version=", ".join(v.version for v in plan.versions),
            versions=own.versions,
            stages=own.stages,
            deployment_chain_id=own.deployment_chain_id,
            deployment_chain_block_index=own.deployment_chain_block_index,
        )
        await self._api.report_deployment_planned(request)

    async def waiting(self, reason: str = "") -> None:
        """Reports why the deployment waits; an empty reason means that it continues."""
        own, shared = self._deployment, self._deployment.metadata_v2.shared.keyValues
        if shared.get(WAITING_FOR, "") == reason or DeploymentStatus(own.status).is_completed:
            return
        shared[WAITING_FOR] = reason
        request = piped_pb2.SaveDeploymentSharedMetadataRequest(
            deployment_id=own.id, metadata=shared
        )
        save = partial(self._api.save_deployment_shared_metadata, request)
        await self._best_effort(save, report="reason for waiting")

    async def started(self) -> None:
        """Reports that the deployment runs; a restarted piped reports it again."""
        if can_transition(DeploymentStatus(self._deployment.status), DeploymentStatus.RUNNING):
            await self._status(DeploymentStatus.RUNNING, STARTED)

    async def rolling_back(self, reason: str) -> None:
        """Reports that the deployment is rolling back."""
        if can_transition(DeploymentStatus(self._deployment.status), DeploymentStatus.ROLLING_BACK):
            await self._status(DeploymentStatus.ROLLING_BACK, reason)

    async def stage(
        self,
        stage: PipelineStage,
        status: StageStatus,
        reason: str = "",
        *,
        requires: Sequence[str] = (),
    ) -> None:
        """Reports that a stage started or completed; a resumed stage keeps its start time."""
        now, before = to_unix(self._now()), StageStatus(stage.status)
        started_at = running_since(stage) if status is StageStatus.RUNNING else 0
        stage.status = deployment_pb2.StageStatus.ValueType(status)
        stage.status_reason = reason
        stage.updated_at = now
        stage.completed_at = now if status.is_completed else 0
        if requires:
            del stage.requires[:]
            stage.requires.extend(requires)
        for event in stage_events(self._deployment, stage, before):
            self._notifier.notify(event)
        request = piped_pb2.ReportStageStatusChangedRequest(
            deployment_id=self._deployment.id,
            stage_id=stage.id,
            status=stage.status,
            status_reason=reason,
            requires=stage.requires,
            visible=True,
            completed_at=started_at or now,
        )
        await self._api.report_stage_status_changed(request)

    async def stage_completed(self, stage: PipelineStage, entry: StageEntry) -> None:
        """Sends the rest of the log of a completed stage, then reports its status."""
        await self.log_completed(entry.log)
        await self.stage(stage, entry.status, entry.reason)

    async def log_completed(self, rest: Sequence[Checkpoint]) -> None:
        """Sends the last lines of a stage log, which closes it."""
        for checkpoint in rest:
            send = partial(self._api.report_final_stage_logs, checkpoint)
            await self._best_effort(send, report="end of a stage log")

    async def completed(self, status: DeploymentStatus, reason: str, *, by: str = "") -> None:
        """Reports that the deployment completed; `by` is the user who cancelled it.

        The completion comes last: a piped that is killed before that report has the deployment
        open after its restart, and reports the rest again.
        """
        own = self._deployment
        if status is DeploymentStatus.SUCCESS:
            request = piped_pb2.ReportApplicationMostRecentDeploymentRequest(
                application_id=own.application_id,
                status=deployment_pb2.DEPLOYMENT_SUCCESS,
                deployment=application_pb2.ApplicationDeploymentReference(
                    deployment_id=own.id,
                    trigger=own.trigger,
                    summary=own.summary,
                    version=", ".join(v.version for v in own.versions),
                    versions=own.versions,
                    config_filename=own.git_path.config_filename,
                    started_at=own.created_at,
                    completed_at=to_unix(self._now()),
                ),
            )
            send = partial(self._api.report_application_most_recent_deployment, request)
            await self._best_effort(send, report="most recent successful deployment")
        if not self._api.lease.epoch:
            # A control plane with leases ends it with the deployment.
            await self._best_effort(lambda: self.deploying(False), report="deploying flag")
        await self.deployment_completed(status, reason, by=by)

    async def deployment_completed(
        self, status: DeploymentStatus, reason: str, *, by: str = ""
    ) -> None:
        """Reports the deployment as completed, without a report about its application."""
        own = self._deployment
        self._set_status(status, reason)
        own.completed_at = to_unix(self._now())
        self._notifier.notify(deployment_event(own, by=by))
        request = piped_pb2.ReportDeploymentCompletedRequest(
            deployment_id=own.id,
            status=own.status,
            status_reason=reason,
            stage_statuses={stage.id: stage.status for stage in own.stages},
            deployment_chain_id=own.deployment_chain_id,
            deployment_chain_block_index=own.deployment_chain_block_index,
            completed_at=own.completed_at,
        )
        await self._api.report_deployment_completed(request)
        log.info("deployment completed", status=status.name, reason=reason)

    async def deploying(self, deploying: bool) -> None:
        """Reports whether the application is being deployed."""
        request = piped_pb2.ReportApplicationDeployingStatusRequest(
            application_id=self._deployment.application_id, deploying=deploying
        )
        await self._api.report_application_deploying_status(request)

    async def _status(self, status: DeploymentStatus, reason: str) -> None:
        own, before = self._deployment, DeploymentStatus(self._deployment.status)
        self._set_status(status, reason)
        if before is not status:
            self._notifier.notify(deployment_event(own))
        request = piped_pb2.ReportDeploymentStatusChangedRequest(
            deployment_id=own.id,
            status=own.status,
            status_reason=reason,
            deployment_chain_id=own.deployment_chain_id,
            deployment_chain_block_index=own.deployment_chain_block_index,
        )
        await self._api.report_deployment_status_changed(request)

    async def _best_effort(self, send: Callable[[], Awaitable[object]], *, report: str) -> None:
        """Makes a report without which the deployment continues."""
        try:
            await send()
        except Unavailable as e:
            log.warning(
                "report given up, the control plane cannot handle it", report=report, error=str(e)
            )
        except PipecdError as e:
            log.warning("control plane rejected a report", report=report, error=str(e))

    def _set_status(self, status: DeploymentStatus, reason: str) -> None:
        own = self._deployment
        current = DeploymentStatus(own.status)
        if not can_transition(current, status):
            raise ValueError(f"a deployment that is {current.name} cannot become {status.name}")
        if current is DeploymentStatus.PENDING:
            self._notifier.notify(triggered_event(own))
        own.status = deployment_pb2.DeploymentStatus.ValueType(status)
        own.status_reason = reason
        self._on_status(own)
