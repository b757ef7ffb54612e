# SPDX-License-Identifier: Apache-2.0
"""What a piped reports about its applications: sync state, recent deployments, configuration."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_own_application, or_not_found
from pipecd.controlplane.usecases.applications import check_not_deleted
from pipecd.controlplane.usecases.transitions import is_deploying, is_newer
from pipecd.controlplane.usecases.unregistered import reported_unregistered, unregistered_key
from pipecd.model.application import name_problem
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.document import to_json
from pipecd.model.errors import NotFound
from pipecd.proto.model.application_pb2 import (
    Application,
    ApplicationDeploymentReference,
    ApplicationSyncState,
)
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment

_LIST = Permission(Resource.APPLICATION, Action.LIST)


# The fields of the most recent deployments, by the status with which they are reported.
_MOST_RECENT = {
    DeploymentStatus.SUCCESS: "most_recently_successful_deployment",
    DeploymentStatus.PENDING: "most_recently_triggered_deployment",
}


# The differences of an application are shown on its page, and read with every list of applications.
MAX_REASON = 256 * 1024
MAX_SHORT_REASON = 4 * 1024


class _UnknownSequence(Exception):
    """Another deployment was stored meanwhile, whose sequence number has to be read."""


class ApplicationReports:
    """Stores the reports of pipeds about their applications."""

    def __init__(self, stores: Stores, bus: Bus, access: Access) -> None:
        self._stores, self._bus, self._access = stores, bus, access

    async def report_sync_state(
        self, application_id: str, state: ApplicationSyncState, *, by: PipedCaller
    ) -> None:
        """Stores a sync state, unless a late report of one of our own pipeds brings it.

        Their timestamps only grow within an application, whatever their clocks do. The end of a
        reason beyond its limit is not stored.
        """
        state.reason = _shorten(state.reason, MAX_REASON)
        state.short_reason = _shorten(state.short_reason, MAX_SHORT_REASON)

        def change(application: Application) -> None:
            if not by.epoch or state.timestamp >= application.sync_state.timestamp:
                application.sync_state.CopyFrom(state)

        await self._report(application_id, change, by)

    async def report_deploying(
        self, application_id: str, deploying: bool, *, by: PipedCaller
    ) -> None:
        """Stores whether an application is deploying, as far as its deployments allow it."""
        application = await self._access.own_application(application_id, by=by)
        check_not_deleted(application)
        deployments = await self._stores.deployments.list_started(by.piped, application_id)
        if deploying and not deployments:
            # It begins with a deployment that is not planned yet.
            deployments = await self._not_completed(application_id, by)
        is_now = is_deploying(deployments, application_id, deploying)
        if application.deploying == is_now:
            return

        def change(application: Application) -> None:
            application.deploying = is_now

        await self._report(application_id, change, by)

    async def _not_completed(self, application_id: str, by: PipedCaller) -> tuple[Deployment, ...]:
        """The last deployment if it is not completed, else all of the piped that are not."""
        with suppress(NotFound):
            last_id = await self._stores.deployments.last_id(application_id)
            last = await self._stores.deployments.get(last_id)
            if last.piped_id == by.piped and not DeploymentStatus(last.status).is_completed:
                return (last,)
        return await self._stores.deployments.list_not_completed(by.piped)

    async def report_most_recent_deployment(
        self,
        application_id: str,
        status: DeploymentStatus,
        deployment: ApplicationDeploymentReference,
        *,
        by: PipedCaller,
    ) -> None:
        """Stores the most recent successful or triggered deployment; ignores other statuses.

        It only moves forward: a deployment that is older than the stored one is a late report.
        """
        if (field := _MOST_RECENT.get(status)) is None:
            return None
        application = await self._access.own_application(application_id, by=by)
        sequences: dict[str, int] = {}

        def change(application: Application) -> None:
            stored: ApplicationDeploymentReference = getattr(application, field)
            if stored.deployment_id not in sequences:
                raise _UnknownSequence(stored.deployment_id)
            if is_newer(deployment.deployment_id, stored.deployment_id, sequences):
                stored.CopyFrom(deployment)

        last: ApplicationDeploymentReference = getattr(application, field)
        unknown = last.deployment_id
        while True:
            ids = (unknown, deployment.deployment_id)
            numbers = await self._stores.deployments.sequences(ids)
            sequences |= {id: numbers.get(id, 0) for id in ids}
            try:
                return await self._report(application_id, change, by)
            except _UnknownSequence as e:
                unknown = str(e)

    async def most_recent_deployment(
        self, application_id: str, status: DeploymentStatus, *, by: PipedCaller
    ) -> ApplicationDeploymentReference:
        application = await self._access.own_application(application_id, by=by)
        if (field := _MOST_RECENT.get(status)) is None:
            raise NotFound("deployment is not found")
        reference: ApplicationDeploymentReference = getattr(application, field)
        if not reference.deployment_id:
            raise NotFound("deployment is not found")
        return reference

    async def update_configurations(
        self, infos: Sequence[ApplicationInfo], *, by: PipedCaller
    ) -> None:
        """Updates name, description and labels from Git; all must belong to the piped.

        An application keeps its name if the new one cannot be stored.
        """
        for info in infos:
            await self._access.own_application(info.id, by=by)
        for info in infos:

            def change(application: Application, info: ApplicationInfo = info) -> None:
                if not name_problem(info.name):
                    # A longer one would end the deployments of the application.
                    application.name = info.name
                application.description = info.description
                application.labels.clear()
                application.labels.update(info.labels)

            await self._report(info.id, change, by, wake=by.piped)

    async def report_unregistered(
        self, infos: Sequence[ApplicationInfo], *, by: PipedCaller
    ) -> None:
        """Replaces the piped's list of unregistered applications."""
        lines: list[str] = []
        for info in infos:
            own = ApplicationInfo()
            own.CopyFrom(info)
            own.piped_id = by.piped
            lines.append(to_json(own))
        await self._stores.cache.put_field(
            unregistered_key(by.project), by.piped, "\n".join(lines).encode()
        )
        await self._bus.publish(Signal(Topic.APPLICATION, "", by.project))

    async def list_unregistered(self, *, by: UserOrApiKey) -> tuple[ApplicationInfo, ...]:
        """The unregistered applications of all pipeds of the project, by path."""
        scope = await self._access.scope(by, _LIST)
        infos = await reported_unregistered(self._stores.cache, by.project)
        visible = (info for info in infos if scope.covers(info.labels))
        return tuple(sorted(visible, key=lambda info: (info.path, info.repo_id, info.piped_id)))

    async def _report(
        self, id: str, change: Callable[[Application], None], by: PipedCaller, *, wake: str = ""
    ) -> None:
        def guarded(application: Application) -> None:
            check_own_application(by, application)
            check_not_deleted(application)
            change(application)

        await or_not_found(
            self._stores.applications.update(id, guarded),
            f"Entity was not found to get application {id}",
        )
        # A piped needs no wake-up for its own report, unless `wake` names it.
        await self._bus.publish(Signal(Topic.APPLICATION, id, by.project, wake))


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n... (omitted {len(text) - limit:,} more characters)"
