# SPDX-License-Identifier: Apache-2.0
"""What a piped reports about its deployments, from their creation to their end.

The order of the reports is not judged, except that a completed deployment is never opened again.
"""

from collections.abc import Callable, Mapping

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_own_deployment, or_not_found
from pipecd.controlplane.usecases.enums import enum_by_number
from pipecd.model.deployment import DeploymentStatus, StageStatus, SyncStrategy
from pipecd.model.errors import Conflict, UserMistake
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import piped_pb2 as rpc


class DeploymentReports:
    """Stores the reports of pipeds about their deployments."""

    def __init__(self, stores: Stores, bus: Bus, access: Access) -> None:
        self._stores, self._bus, self._access = stores, bus, access

    async def list_not_completed(self, *, by: PipedCaller) -> tuple[Deployment, ...]:
        """The piped's deployments that are not completed, oldest first."""
        return await self._stores.deployments.list_not_completed(by.piped)

    async def create(self, deployment: Deployment, *, by: PipedCaller) -> None:
        await self._access.own_application(deployment.application_id, by=by)
        self.check_new(deployment, by=by)
        await self._stores.deployments.add(deployment)
        await self._bus.publish(Signal(Topic.DEPLOYMENT, deployment.id, by.project, by.piped))

    def check_new(self, deployment: Deployment, *, by: PipedCaller) -> None:
        """Raises if the piped may not create this deployment."""
        check_own_deployment(by, deployment)
        enum_by_number(SyncStrategy, deployment.trigger.sync_strategy)

    async def report_planned(
        self, report: rpc.ReportDeploymentPlannedRequest, *, by: PipedCaller
    ) -> None:
        enum_by_number(SyncStrategy, report.sync_strategy)

        def change(deployment: Deployment) -> None:
            _set_status(deployment, DeploymentStatus.PLANNED)
            deployment.summary = report.summary
            deployment.status_reason = report.status_reason
            deployment.trigger.sync_strategy = report.sync_strategy
            deployment.running_commit_hash = report.running_commit_hash
            deployment.running_config_filename = report.running_config_filename
            del deployment.versions[:]
            deployment.versions.extend(report.versions)
            del deployment.stages[:]
            deployment.stages.extend(report.stages)

        await self._report(report.deployment_id, change, by)

    async def report_status(
        self, report: rpc.ReportDeploymentStatusChangedRequest, *, by: PipedCaller
    ) -> None:
        def change(deployment: Deployment) -> None:
            _set_status(deployment, DeploymentStatus(report.status))
            deployment.status_reason = report.status_reason

        await self._report(report.deployment_id, change, by)

    async def report_completed(
        self, report: rpc.ReportDeploymentCompletedRequest, *, by: PipedCaller
    ) -> None:
        status = DeploymentStatus(report.status)
        if not status.is_completed:
            raise UserMistake(f"{status.name} is not a status of a completed deployment")
        for stage_status in report.stage_statuses.values():
            enum_by_number(StageStatus, stage_status)

        def change(deployment: Deployment) -> None:
            _set_status(deployment, status)
            deployment.status_reason = report.status_reason
            deployment.completed_at = report.completed_at
            for stage in deployment.stages:
                if stage.id in report.stage_statuses:
                    stage.status = report.stage_statuses[stage.id]

        await self._report(report.deployment_id, change, by)

    async def report_stage_status(
        self, report: rpc.ReportStageStatusChangedRequest, *, by: PipedCaller
    ) -> None:
        def change(deployment: Deployment) -> None:
            stage = _stage(deployment, report.stage_id)
            stage.status = report.status
            stage.status_reason = report.status_reason
            stage.visible = report.visible
            stage.retried_count = report.retried_count
            stage.completed_at = report.completed_at
            if report.requires:
                del stage.requires[:]
                stage.requires.extend(report.requires)

        await self._report(report.deployment_id, change, by)

    async def save_metadata(
        self, deployment_id: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._report(deployment_id, lambda d: d.metadata.update(metadata), by)

    async def save_shared_metadata(
        self, deployment_id: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._report(
            deployment_id, lambda d: d.metadata_v2.shared.keyValues.update(metadata), by
        )

    async def save_plugin_metadata(
        self, deployment_id: str, plugin: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._report(
            deployment_id, lambda d: d.metadata_v2.plugins[plugin].keyValues.update(metadata), by
        )

    async def save_stage_metadata(
        self, deployment_id: str, stage_id: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._report(
            deployment_id, lambda d: _stage(d, stage_id).metadata.update(metadata), by
        )

    async def _report(self, id: str, change: Callable[[Deployment], None], by: PipedCaller) -> None:
        def guarded(deployment: Deployment) -> None:
            check_own_deployment(by, deployment)
            change(deployment)

        await or_not_found(
            self._stores.deployments.update(id, guarded),
            f"Entity was not found to get deployment {id}",
        )
        # The piped needs no wake-up for its own report.
        await self._bus.publish(Signal(Topic.DEPLOYMENT, id, by.project))


def _set_status(deployment: Deployment, to: DeploymentStatus) -> None:
    current = DeploymentStatus(deployment.status)
    # A repeated report of the same status is a retry, not a reopening.
    if current.is_completed and current is not to:
        raise Conflict(f"deployment {deployment.id} was already completed: {current.name}")
    deployment.status = pb.DeploymentStatus.ValueType(to)


def _stage(deployment: Deployment, stage_id: str) -> PipelineStage:
    for stage in deployment.stages:
        if stage.id == stage_id:
            return stage
    raise UserMistake(f"stage {stage_id} is not part of the deployment")
