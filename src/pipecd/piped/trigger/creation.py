# SPDX-License-Identifier: Apache-2.0
"""Writes a deployment to the control plane, once, however often it is tried."""

from collections.abc import Iterable
from datetime import datetime, timedelta

import structlog

from pipecd.config.application.spec import ApplicationSpec
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import AlreadyExists, PipecdError
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.notify.notice import Notices
from pipecd.piped.notify.transition import triggered
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.planning.deployment import Cause, chain_request, new_deployment, reference
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import (
    CreateDeploymentRequest,
    GetDeploymentRequest,
    ReportApplicationMostRecentDeploymentRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BURST = 60


class Creation:
    """Makes deployments and remembers for each application which one was the last."""

    def __init__(
        self,
        api: ControlPlaneClient,
        deployments: DeploymentCache,
        baselines: Baselines,
        notices: Notices,
        *,
        now: Now = utc_now,
    ) -> None:
        self._api, self._deployments, self._now = api, deployments, now
        self._baselines, self._notices = baselines, notices
        # Deployments that the control plane does not know as the last of their applications.
        self._untold: dict[str, Deployment] = {}

    async def take_up(
        self, applications: Iterable[Application], made: Iterable[Deployment]
    ) -> None:
        """Learns of deployments that an earlier piped made and had no time to tell of."""
        by_id = {application.id: application for application in applications}
        found = {
            deployment.application_id: deployment
            for deployment in made
            if (application := by_id.get(deployment.application_id)) is not None
            and self._baselines.found(application, deployment)
        }
        for deployment in found.values():
            self._tell_people(deployment)
            await self._remember(deployment)

    async def create(
        self,
        application: Application,
        spec: ApplicationSpec,
        cause: Cause,
        *,
        commit: Commit,
        repository: Repository,
    ) -> Deployment:
        """Creates a deployment; one that the same cause has already made is taken over."""
        await self._remember_last(application)
        deployment = new_deployment(
            application,
            spec,
            cause,
            commit=commit,
            repository=repository,
            now=self._after_the_last(application),
        )
        try:
            if (chain := chain_request(deployment, spec)) is not None:
                await self._api.create_deployment_chain(chain)
            else:
                await self._api.create_deployment(CreateDeploymentRequest(deployment=deployment))
        except AlreadyExists:
            return await self._take_over(application, deployment.id, cause)
        self._tell_people(deployment)
        self._deployments.refresh_soon()
        self._baselines.triggered(application, deployment)
        await self._remember(deployment)
        return deployment

    def _after_the_last(self, application: Application) -> datetime:
        """Now, or the second after the last one: of two in one second nobody knows the later."""
        now = self._now()
        ahead = self._baselines.of(application).at.triggered - to_unix(now)
        # A clock that was set back by more than that is believed.
        return now + timedelta(seconds=ahead + 1) if 0 <= ahead < _BURST else now

    async def _take_over(
        self, application: Application, deployment_id: str, cause: Cause
    ) -> Deployment:
        """What was made then counts, which need not be what would be made now."""
        log.info("deployment had been created before", deployment=deployment_id)
        self._deployments.refresh_soon()
        request = GetDeploymentRequest(id=deployment_id)
        deployment = (await self._api.get_deployment(request)).deployment
        self._tell_people(deployment)
        if self._baselines.found(application, deployment, after=cause.after):
            await self._remember(deployment)
        return deployment

    def _tell_people(self, deployment: Deployment) -> None:
        """One that was made before may have been told or not; its notice is known by its key."""
        if not DeploymentStatus(deployment.status).is_completed:
            self._notices.tell(triggered(deployment))

    async def _remember_last(self, application: Application) -> None:
        """Tells of the last deployment first: a restart finds those after it by it."""
        last = self._untold.get(application.id)
        if last is not None:
            await self._tell(last)

    async def _remember(self, deployment: Deployment) -> None:
        self._untold[deployment.application_id] = deployment
        try:
            await self._tell(deployment)
        except PipecdError as e:
            log.warning(
                "last deployment not reported",
                application=deployment.application_id,
                deployment=deployment.id,
                error=str(e),
            )

    async def _tell(self, deployment: Deployment) -> None:
        request = ReportApplicationMostRecentDeploymentRequest(
            application_id=deployment.application_id,
            status=deployment_pb2.DeploymentStatus.ValueType(DeploymentStatus.PENDING),
            deployment=reference(deployment),
        )
        await self._api.report_application_most_recent_deployment(request)
        self._untold.pop(deployment.application_id, None)
