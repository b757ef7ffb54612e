# SPDX-License-Identifier: Apache-2.0
"""Writes a deployment to the control plane, once, however often it is tried."""

import structlog

from pipecd.config.application.spec import ApplicationSpec
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import AlreadyExists, PipecdError
from pipecd.model.moment import Now, utc_now
from pipecd.piped.api import PipedApi
from pipecd.piped.mirror.deployments import DeploymentMirror
from pipecd.piped.trigger.baseline import Baselines
from pipecd.piped.trigger.deployment import Cause, chain_request, new_deployment, reference
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import (
    CreateDeploymentRequest,
    ReportApplicationMostRecentDeploymentRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Creation:
    """Makes deployments and remembers for each application which one was the last."""

    def __init__(
        self,
        api: PipedApi,
        deployments: DeploymentMirror,
        baselines: Baselines,
        *,
        now: Now = utc_now,
    ) -> None:
        self._api, self._deployments, self._now = api, deployments, now
        self._baselines = baselines

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
        deployment = new_deployment(
            application, spec, cause, commit=commit, repository=repository, now=self._now()
        )
        try:
            if (chain := chain_request(deployment, spec)) is not None:
                await self._api.create_deployment_chain(chain)
            else:
                await self._api.create_deployment(CreateDeploymentRequest(deployment=deployment))
        except AlreadyExists:
            log.info("deployment had been created before", deployment=deployment.id)
        self._deployments.refresh_soon()
        self._baselines.triggered(deployment)
        await self._remember(deployment)
        return deployment

    async def _remember(self, deployment: Deployment) -> None:
        request = ReportApplicationMostRecentDeploymentRequest(
            application_id=deployment.application_id,
            status=deployment_pb2.DeploymentStatus.ValueType(DeploymentStatus.PENDING),
            deployment=reference(deployment),
        )
        try:
            await self._api.report_application_most_recent_deployment(request)
        except PipecdError as e:
            log.warning(
                "last deployment not reported",
                application=deployment.application_id,
                deployment=deployment.id,
                error=str(e),
            )
