# SPDX-License-Identifier: Apache-2.0
"""Creates deployments in the control plane, once per cause, however often it is tried."""

from collections.abc import Iterable
from datetime import timedelta

import structlog

from pipecd.config.application import ApplicationSpec
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import AlreadyExists, PipecdError
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.notify.deployment_events import triggered_event
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.planning.deployment import (
    Cause,
    chain_request,
    deployment_reference,
    new_deployment,
)
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import (
    CreateDeploymentRequest,
    GetDeploymentRequest,
    ReportApplicationMostRecentDeploymentRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# A clock ahead of the last trigger by less than this, in seconds, is not taken as set back.
_MAX_CLOCK_SKEW = 60


class DeploymentCreator:
    """Creates deployments and reports the most recently triggered one of each application."""

    def __init__(
        self,
        api: ControlPlaneClient,
        deployments: DeploymentCache,
        baselines: Baselines,
        notifier: Notifier,
        *,
        now: Now = utc_now,
    ) -> None:
        self._api, self._deployments, self._now = api, deployments, now
        self._baselines, self._notifier = baselines, notifier
        # The last deployments that are not reported as the most recently triggered ones yet.
        self._unreported: dict[str, Deployment] = {}

    async def adopt(
        self, applications: Iterable[Application], open_deployments: Iterable[Deployment]
    ) -> None:
        """Reports deployments that an earlier process created and did not report."""
        by_id = {application.id: application for application in applications}
        adopted = {
            deployment.application_id: deployment
            for deployment in open_deployments
            if (application := by_id.get(deployment.application_id)) is not None
            and self._baselines.adopt(application, deployment)
        }
        for deployment in adopted.values():
            self._notify(deployment)
            await self._report(deployment)

    async def create(
        self,
        application: Application,
        spec: ApplicationSpec,
        cause: Cause,
        *,
        commit: Commit,
        repository: Repository,
    ) -> Deployment:
        """Creates a deployment, or returns the one that already exists for the same cause."""
        if (last := self._unreported.get(application.id)) is not None:
            # In order: a restarted piped finds the later deployments by the last one reported.
            await self._report_most_recent(last)
        now = self._now()
        ahead = self._baselines.of(application).at.triggered - to_unix(now)
        # Two triggers never share a second, so that their order is known. A larger difference means
        # that the clock was set back.
        if 0 <= ahead < _MAX_CLOCK_SKEW:
            now += timedelta(seconds=ahead + 1)
        deployment = new_deployment(
            application,
            spec,
            cause,
            commit=commit,
            repository=repository,
            now=now,
        )
        try:
            if (chain := chain_request(deployment, spec)) is not None:
                await self._api.create_deployment_chain(chain)
                # The control plane adds the id of the chain to the deployment.
                self._deployments.refresh_soon()
            else:
                await self._api.create_deployment(CreateDeploymentRequest(deployment=deployment))
                self._deployments.add(deployment)
        except AlreadyExists:
            log.info(
                "deployment exists already",
                application=application.id,
                application_name=application.name,
                deployment=deployment.id,
            )
            self._deployments.refresh_soon()
            # As it was created, which may differ from the new one.
            existing = await self._api.get_deployment(GetDeploymentRequest(id=deployment.id))
            deployment = existing.deployment
            self._notify(deployment)
            if self._baselines.adopt(application, deployment, after=cause.after):
                await self._report(deployment)
            return deployment
        self._notify(deployment)
        self._baselines.record(application, deployment)
        await self._report(deployment)
        return deployment

    def _notify(self, deployment: Deployment) -> None:
        """Notifies about a deployment; the key of the notification prevents a second one."""
        if not DeploymentStatus(deployment.status).is_completed:
            self._notifier.notify(triggered_event(deployment))

    async def _report(self, deployment: Deployment) -> None:
        self._unreported[deployment.application_id] = deployment
        try:
            await self._report_most_recent(deployment)
        except PipecdError as e:
            log.warning(
                "most recently triggered deployment not reported",
                application=deployment.application_id,
                application_name=deployment.application_name,
                deployment=deployment.id,
                error=str(e),
            )

    async def _report_most_recent(self, deployment: Deployment) -> None:
        request = ReportApplicationMostRecentDeploymentRequest(
            application_id=deployment.application_id,
            status=deployment_pb2.DeploymentStatus.ValueType(DeploymentStatus.PENDING),
            deployment=deployment_reference(deployment),
        )
        await self._api.report_application_most_recent_deployment(request)
        self._unreported.pop(deployment.application_id, None)
