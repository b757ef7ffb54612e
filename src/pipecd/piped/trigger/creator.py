# SPDX-License-Identifier: Apache-2.0
"""Creates deployments in the control plane, once per cause, however often it is tried."""

from collections.abc import Iterable

import structlog

from pipecd.config.application import ApplicationSpec
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.clock import Now, utc_now
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import AlreadyExists, PipecdError, Unavailable, Unsupported
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
from pipecd.proto.service.ordering_pb2 import CreateDeploymentInOrderRequest
from pipecd.proto.service.piped_pb2 import (
    CreateDeploymentRequest,
    GetDeploymentRequest,
    ReportApplicationMostRecentDeploymentRequest,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()


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
        by_application: dict[str, list[Deployment]] = {}
        for deployment in open_deployments:
            by_application.setdefault(deployment.application_id, []).append(deployment)
        for application in applications:
            if not (own := by_application.get(application.id)):
                continue
            known = self._baselines.of(application).deployment_id
            # They are in the order of their triggers.
            after = known if any(deployment.id == known for deployment in own) else None
            if self._baselines.adopt(application, own[-1], after=after):
                self._notify(own[-1])
                await self._report(own[-1])

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
        deployment = new_deployment(
            application, spec, cause, commit=commit, repository=repository, now=self._now()
        )
        try:
            await self._create(application, deployment, spec)
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

    async def _create(
        self, application: Application, deployment: Deployment, spec: ApplicationSpec
    ) -> None:
        """Stores a deployment; raises Unavailable if a newer one has to be taken into account."""
        last = self._baselines.of(application)
        request = CreateDeploymentInOrderRequest(follows=last.deployment_id)
        if (chain := chain_request(deployment, spec)) is None:
            request.deployment.deployment.CopyFrom(deployment)
        else:
            request.chain.CopyFrom(chain)
        try:
            newer = (await self._api.create_deployment_in_order(request)).newer
        except Unsupported:
            # Upstream's control plane has no sequence numbers: there the times of the triggers tell
            # their order, so that no trigger may be earlier than the one before it.
            deployment.trigger.timestamp = max(deployment.trigger.timestamp, last.triggered_at + 1)
            if chain is None:
                await self._api.create_deployment(CreateDeploymentRequest(deployment=deployment))
            else:
                chain.first_deployment.CopyFrom(deployment)
                await self._api.create_deployment_chain(chain)
        else:
            if newer:
                response = await self._api.get_deployment(GetDeploymentRequest(id=newer))
                self._baselines.record(application, response.deployment)
                await self._report(response.deployment)
                raise Unavailable(f"deployment {newer} was triggered meanwhile")
        if chain is None:
            self._deployments.add(deployment)
        else:
            # The control plane adds the id of the chain to the deployment.
            self._deployments.refresh_soon()

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
