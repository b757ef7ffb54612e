# SPDX-License-Identifier: Apache-2.0
"""What a piped reports about its deployments, from their creation to their end.

Late, repeated and reordered reports change nothing, see `transitions`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.documents import Insertion
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_own_deployment, or_not_found
from pipecd.controlplane.usecases.application_reports import ApplicationReports
from pipecd.controlplane.usecases.enums import enum_by_number
from pipecd.controlplane.usecases.transitions import (
    apply_completion,
    apply_plan,
    apply_stage_status,
    apply_status,
    stage_of,
)
from pipecd.model.deployment import DeploymentStatus, StageStatus, SyncStrategy
from pipecd.model.document import to_json
from pipecd.model.errors import NotFound, UserMistake
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges

# In bytes; pipeds truncate what is longer.
MAX_CHANGES_SIZE = 2 * 1024 * 1024


class DeploymentReports:
    """Stores the reports of pipeds about their deployments."""

    def __init__(
        self, stores: Stores, bus: Bus, access: Access, applications: ApplicationReports
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._applications = applications

    async def list_not_completed(self, *, by: PipedCaller) -> tuple[Deployment, ...]:
        """The piped's deployments that are not completed, oldest first."""
        return await self._stores.deployments.list_not_completed(by.piped)

    async def list_in_order(self, *, by: PipedCaller) -> list[Deployment]:
        """The piped's deployments that are not completed, in the order of their triggers."""
        deployments = await self._stores.deployments.list_not_completed(by.piped)
        sequences = await self._stores.deployments.sequences([d.id for d in deployments])
        # Deployments without a number are older than those with one; they stay in their order.
        return sorted(deployments, key=lambda deployment: sequences.get(deployment.id, 0))

    async def newer_than(self, deployment: Deployment, follows: str, *, by: PipedCaller) -> str:
        """Returns the last deployment of the application, if a new one cannot follow `follows`."""
        await self._access.own_application(deployment.application_id, by=by)
        last = await self._stores.deployments.last_id(deployment.application_id)
        return "" if last in ("", follows, deployment.id) else last

    async def create(
        self,
        deployment: Deployment,
        *,
        by: PipedCaller,
        follows: str | None = None,
        beside: Sequence[Insertion] = (),
    ) -> None:
        """Stores a deployment as the last one that was triggered for its application.

        With `follows` it raises Conflict if the application has a newer deployment than this one.
        What is `beside` is stored together with it, or not at all.
        """
        await self._access.own_application(deployment.application_id, by=by)
        self.check_new(deployment, by=by)
        await self._stores.deployments.add(deployment, follows=follows, beside=beside)
        # The piped that creates it needs no wake-up: it would list all its deployments each time.
        await self._bus.publish(Signal(Topic.DEPLOYMENT, deployment.id, by.project))

    def check_new(self, deployment: Deployment, *, by: PipedCaller) -> None:
        """Raises if the piped may not create this deployment."""
        check_own_deployment(by, deployment)
        enum_by_number(SyncStrategy, deployment.trigger.sync_strategy)

    async def report_planned(
        self, report: rpc.ReportDeploymentPlannedRequest, *, by: PipedCaller
    ) -> None:
        enum_by_number(SyncStrategy, report.sync_strategy)

        await self._report(report.deployment_id, lambda d: apply_plan(d, report), by)

    async def report_status(
        self, report: rpc.ReportDeploymentStatusChangedRequest, *, by: PipedCaller
    ) -> None:
        status = DeploymentStatus(report.status)
        await self._report(
            report.deployment_id, lambda d: apply_status(d, status, report.status_reason), by
        )

    async def report_completed(
        self, report: rpc.ReportDeploymentCompletedRequest, *, by: PipedCaller
    ) -> None:
        """Completes a deployment; its application is not deploying any more, unless for another."""
        status = DeploymentStatus(report.status)
        if not status.is_completed:
            raise UserMistake(f"{status.name} is not a status of a completed deployment")
        for stage_status in report.stage_statuses.values():
            enum_by_number(StageStatus, stage_status)
        deployment = await self._report(
            report.deployment_id, lambda d: apply_completion(d, report), by
        )
        # The application may have been deleted meanwhile.
        with suppress(NotFound, UserMistake):
            await self._applications.report_deploying(deployment.application_id, False, by=by)

    async def report_stage_status(
        self, report: rpc.ReportStageStatusChangedRequest, *, by: PipedCaller
    ) -> None:
        await self._report(report.deployment_id, lambda d: apply_stage_status(d, report), by)

    async def report_changes(
        self, deployment_id: str, changes: DeploymentChanges, *, by: PipedCaller
    ) -> None:
        """Stores what a deployment changes, also if that is known only after its end."""
        if (size := changes.ByteSize()) > MAX_CHANGES_SIZE:
            raise UserMistake(
                f"the changes have {size / 2**20:.1f} MiB",
                hint=f"truncate them to {MAX_CHANGES_SIZE // 2**20} MiB",
            )
        await self._access.own_deployment(deployment_id, by=by)
        await self._stores.files.put(changes_path(deployment_id), to_json(changes).encode())
        await self._bus.publish(Signal(Topic.DEPLOYMENT, deployment_id, by.project))

    async def save_metadata(
        self, deployment_id: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._save(deployment_id, lambda d: d.metadata.update(metadata), by)

    async def save_shared_metadata(
        self, deployment_id: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._save(
            deployment_id, lambda d: d.metadata_v2.shared.keyValues.update(metadata), by
        )

    async def save_plugin_metadata(
        self, deployment_id: str, plugin: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._save(
            deployment_id, lambda d: d.metadata_v2.plugins[plugin].keyValues.update(metadata), by
        )

    async def save_stage_metadata(
        self, deployment_id: str, stage_id: str, metadata: Mapping[str, str], *, by: PipedCaller
    ) -> None:
        await self._save(
            deployment_id, lambda d: stage_of(d, stage_id).metadata.update(metadata), by
        )

    async def _save(self, id: str, add: Callable[[Deployment], None], by: PipedCaller) -> None:
        """Adds metadata to a deployment; that of a completed one does not change any more."""

        def change(deployment: Deployment) -> None:
            if not DeploymentStatus(deployment.status).is_completed:
                add(deployment)

        await self._report(id, change, by)

    async def _report(
        self, id: str, change: Callable[[Deployment], None], by: PipedCaller
    ) -> Deployment:
        def guarded(deployment: Deployment) -> None:
            check_own_deployment(by, deployment)
            change(deployment)

        deployment = await or_not_found(
            self._stores.deployments.update(id, guarded),
            f"Entity was not found to get deployment {id}",
        )
        # The piped needs no wake-up for its own report.
        await self._bus.publish(Signal(Topic.DEPLOYMENT, id, by.project))
        return deployment


def changes_path(deployment_id: str) -> str:
    """The path of what a deployment changes in the filestore."""
    return f"deployment-changes/{deployment_id}.json"
