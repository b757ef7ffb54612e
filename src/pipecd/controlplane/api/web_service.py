# SPDX-License-Identifier: Apache-2.0
"""WebService: the RPCs of gRPC-Web clients with a user session."""

from typing import Protocol

from pipecd.controlplane.api.handlers import RpcHandlers, application_draft, page_size
from pipecd.controlplane.api.web_authorization import WebRpcTable
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.insight.applications import count_applications
from pipecd.controlplane.insight.series import Metric, Resolution, TimeRange
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.controlplane.usecases.enums import enum_by_number
from pipecd.controlplane.usecases.insights import InsightQuery
from pipecd.model.deployment import SyncStrategy
from pipecd.observe.version import build_version
from pipecd.proto.model import insight_pb2 as model
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service import web_pb2 as pb
from pipecd.wire.table import RpcObserver, RpcTable

_KIND_LABEL = model.InsightApplicationCountLabelKey.Name(model.KIND)
_STATUS_LABEL = model.InsightApplicationCountLabelKey.Name(model.ACTIVE_STATUS)

EnabledOption = (
    pb.ListApplicationsRequest.Options
    | pb.ListPipedsRequest.Options
    | pb.ListAPIKeysRequest.Options
)


class Paged(Protocol):
    """A request for one page of a list."""

    page_size: int
    cursor: str
    page_min_updated_at: int


def page_of(request: Paged) -> PageRequest:
    """The requested page."""
    return PageRequest(
        size=page_size(request.page_size),
        cursor=request.cursor,
        min_updated_at=max(0, request.page_min_updated_at),
    )


def enabled_of(options: EnabledOption) -> bool | None:
    """Whether only enabled or only disabled objects are listed; None means both."""
    return options.enabled.value if options.HasField("enabled") else None


class WebApplicationRpcs(RpcHandlers):
    """RPCs about applications."""

    async def AddApplication(
        self, request: pb.AddApplicationRequest, caller: User
    ) -> pb.AddApplicationResponse:
        draft = application_draft(request)
        draft.MergeFrom(Application(deploy_targets_by_plugin=request.deploy_targets_by_plugin))
        id = await self._cases.applications.add(draft, by=caller)
        return pb.AddApplicationResponse(application_id=id)

    async def UpdateApplication(
        self, request: pb.UpdateApplicationRequest, caller: User
    ) -> pb.UpdateApplicationResponse:
        to = ApplicationUpdate(
            piped_id=request.piped_id,
            platform_provider=request.platform_provider,
            config_filename=request.config_filename,
            deploy_targets=request.deploy_targets_by_plugin,
        )
        await self._cases.applications.update(request.application_id, to, by=caller)
        return pb.UpdateApplicationResponse()

    async def EnableApplication(
        self, request: pb.EnableApplicationRequest, caller: User
    ) -> pb.EnableApplicationResponse:
        await self._cases.applications.enable(request.application_id, by=caller)
        return pb.EnableApplicationResponse()

    async def DisableApplication(
        self, request: pb.DisableApplicationRequest, caller: User
    ) -> pb.DisableApplicationResponse:
        await self._cases.applications.disable(request.application_id, by=caller)
        return pb.DisableApplicationResponse()

    async def DeleteApplication(
        self, request: pb.DeleteApplicationRequest, caller: User
    ) -> pb.DeleteApplicationResponse:
        await self._cases.applications.delete(request.application_id, by=caller)
        return pb.DeleteApplicationResponse()

    async def ListApplications(
        self, request: pb.ListApplicationsRequest, caller: User
    ) -> pb.ListApplicationsResponse:
        options = request.options
        filter_ = ApplicationFilter(
            project=caller.project,
            enabled=enabled_of(options),
            kinds=tuple(options.kinds[:1]),
            sync_statuses=tuple(options.sync_statuses[:1]),
            name=options.name,
            piped_id=options.piped_id,
            labels=options.labels,
        )
        page = await self._cases.applications.list(filter_, by=caller)
        return pb.ListApplicationsResponse(applications=page.items)

    async def SyncApplication(
        self, request: pb.SyncApplicationRequest, caller: User
    ) -> pb.SyncApplicationResponse:
        strategy = enum_by_number(SyncStrategy, request.sync_strategy)
        command = await self._cases.applications.sync(request.application_id, strategy, by=caller)
        return pb.SyncApplicationResponse(command_id=command)

    async def GetApplication(
        self, request: pb.GetApplicationRequest, caller: User
    ) -> pb.GetApplicationResponse:
        application = await self._cases.applications.get(request.application_id, by=caller)
        return pb.GetApplicationResponse(application=application)

    async def GenerateApplicationSealedSecret(
        self, request: pb.GenerateApplicationSealedSecretRequest, caller: User
    ) -> pb.GenerateApplicationSealedSecretResponse:
        sealed = await self._cases.encryption.encrypt(
            request.piped_id, request.data, base64_encoding=request.base64_encoding, by=caller
        )
        return pb.GenerateApplicationSealedSecretResponse(data=sealed)

    async def ListUnregisteredApplications(
        self, _request: pb.ListUnregisteredApplicationsRequest, caller: User
    ) -> pb.ListUnregisteredApplicationsResponse:
        infos = await self._cases.application_reports.list_unregistered(by=caller)
        return pb.ListUnregisteredApplicationsResponse(applications=infos)

    async def GetApplicationLiveState(
        self, request: pb.GetApplicationLiveStateRequest, caller: User
    ) -> pb.GetApplicationLiveStateResponse:
        snapshot = await self._cases.livestate.get(request.application_id, by=caller)
        return pb.GetApplicationLiveStateResponse(snapshot=snapshot)


class WebDeploymentRpcs(RpcHandlers):
    """RPCs about deployments."""

    async def ListDeployments(
        self, request: pb.ListDeploymentsRequest, caller: User
    ) -> pb.ListDeploymentsResponse:
        options = request.options
        filter_ = DeploymentFilter(
            project=caller.project,
            statuses=tuple(options.statuses[:1]),
            kinds=tuple(options.kinds[:1]),
            application_ids=tuple(options.application_ids[:1]),
            application_name=options.application_name,
            labels=options.labels,
        )
        page = await self._cases.deployments.list(filter_, page_of(request), by=caller)
        return pb.ListDeploymentsResponse(deployments=page.items, cursor=page.cursor)

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: User
    ) -> pb.GetDeploymentResponse:
        deployment = await self._cases.deployments.get(request.deployment_id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def GetStageLog(
        self, request: pb.GetStageLogRequest, caller: User
    ) -> pb.GetStageLogResponse:
        run = StageRun(request.deployment_id, request.stage_id, request.retried_count)
        part = await self._cases.logs.stage_log(run, request.offset_index, by=caller)
        return pb.GetStageLogResponse(blocks=part.blocks, completed=part.completed)

    async def CancelDeployment(
        self, request: pb.CancelDeploymentRequest, caller: User
    ) -> pb.CancelDeploymentResponse:
        command = await self._cases.deployments.cancel(
            request.deployment_id, request.force_rollback, request.force_no_rollback, by=caller
        )
        return pb.CancelDeploymentResponse(command_id=command)

    async def SkipStage(self, request: pb.SkipStageRequest, caller: User) -> pb.SkipStageResponse:
        command = await self._cases.deployments.skip(
            request.deployment_id, request.stage_id, by=caller
        )
        return pb.SkipStageResponse(command_id=command)

    async def ApproveStage(
        self, request: pb.ApproveStageRequest, caller: User
    ) -> pb.ApproveStageResponse:
        command = await self._cases.deployments.approve(
            request.deployment_id, request.stage_id, by=caller
        )
        return pb.ApproveStageResponse(command_id=command)

    async def ListDeploymentTraces(
        self, request: pb.ListDeploymentTracesRequest, caller: User
    ) -> pb.ListDeploymentTracesResponse:
        page = await self._cases.deployments.traces(
            request.options.commit_hash, page_of(request), by=caller
        )
        traces = [
            pb.ListDeploymentTracesResponse.DeploymentTraceRes(
                trace=item.trace, deployments=item.deployments
            )
            for item in page.items
        ]
        return pb.ListDeploymentTracesResponse(traces=traces, cursor=page.cursor)

    async def ListDeploymentChains(
        self, request: pb.ListDeploymentChainsRequest, caller: User
    ) -> pb.ListDeploymentChainsResponse:
        page = await self._cases.chains.list(page_of(request), by=caller)
        return pb.ListDeploymentChainsResponse(deployment_chains=page.items, cursor=page.cursor)

    async def GetDeploymentChain(
        self, request: pb.GetDeploymentChainRequest, caller: User
    ) -> pb.GetDeploymentChainResponse:
        chain = await self._cases.chains.get(request.deployment_chain_id, by=caller)
        return pb.GetDeploymentChainResponse(deployment_chain=chain)

    async def GetCommand(
        self, request: pb.GetCommandRequest, caller: User
    ) -> pb.GetCommandResponse:
        command = await self._cases.commands.get(request.command_id, by=caller)
        return pb.GetCommandResponse(command=command)


class WebPipedRpcs(RpcHandlers):
    """RPCs about pipeds."""

    async def RegisterPiped(
        self, request: pb.RegisterPipedRequest, caller: User
    ) -> pb.RegisterPipedResponse:
        registered = await self._cases.pipeds.register(request.name, request.desc, by=caller)
        return pb.RegisterPipedResponse(id=registered.id, key=registered.key)

    async def UpdatePiped(
        self, request: pb.UpdatePipedRequest, caller: User
    ) -> pb.UpdatePipedResponse:
        await self._cases.pipeds.update(request.piped_id, request.name, request.desc, by=caller)
        return pb.UpdatePipedResponse()

    async def RecreatePipedKey(
        self, request: pb.RecreatePipedKeyRequest, caller: User
    ) -> pb.RecreatePipedKeyResponse:
        return pb.RecreatePipedKeyResponse(
            key=await self._cases.pipeds.add_key(request.id, by=caller)
        )

    async def DeleteOldPipedKeys(
        self, request: pb.DeleteOldPipedKeysRequest, caller: User
    ) -> pb.DeleteOldPipedKeysResponse:
        await self._cases.pipeds.delete_old_keys(request.piped_id, by=caller)
        return pb.DeleteOldPipedKeysResponse()

    async def EnablePiped(
        self, request: pb.EnablePipedRequest, caller: User
    ) -> pb.EnablePipedResponse:
        await self._cases.pipeds.enable(request.piped_id, by=caller)
        return pb.EnablePipedResponse()

    async def DisablePiped(
        self, request: pb.DisablePipedRequest, caller: User
    ) -> pb.DisablePipedResponse:
        await self._cases.pipeds.disable(request.piped_id, by=caller)
        return pb.DisablePipedResponse()

    async def ListPipeds(
        self, request: pb.ListPipedsRequest, caller: User
    ) -> pb.ListPipedsResponse:
        pipeds = await self._cases.pipeds.list(by=caller, enabled=enabled_of(request.options))
        if not request.with_status:
            for piped in pipeds:
                piped.ClearField("status")
        return pb.ListPipedsResponse(pipeds=pipeds)

    async def GetPiped(self, request: pb.GetPipedRequest, caller: User) -> pb.GetPipedResponse:
        return pb.GetPipedResponse(piped=await self._cases.pipeds.get(request.piped_id, by=caller))

    async def UpdatePipedDesiredVersion(
        self, request: pb.UpdatePipedDesiredVersionRequest, caller: User
    ) -> pb.UpdatePipedDesiredVersionResponse:
        await self._cases.pipeds.set_desired_version(request.version, request.piped_ids, by=caller)
        return pb.UpdatePipedDesiredVersionResponse()

    async def RestartPiped(
        self, request: pb.RestartPipedRequest, caller: User
    ) -> pb.RestartPipedResponse:
        command = await self._cases.pipeds.restart(request.piped_id, by=caller)
        return pb.RestartPipedResponse(command_id=command)


class WebProjectRpcs(RpcHandlers):
    """RPCs about the project and the signed-in user."""

    async def GetMe(self, _request: pb.GetMeRequest, caller: User) -> pb.GetMeResponse:
        return pb.GetMeResponse(
            subject=caller.name, avatar_url=caller.avatar_url, project_id=caller.project
        )

    async def GetProject(
        self, _request: pb.GetProjectRequest, caller: User
    ) -> pb.GetProjectResponse:
        return pb.GetProjectResponse(project=await self._cases.projects.get(by=caller))

    async def UpdateProjectStaticAdmin(
        self, request: pb.UpdateProjectStaticAdminRequest, caller: User
    ) -> pb.UpdateProjectStaticAdminResponse:
        await self._cases.projects.set_static_admin(request.username, request.password, by=caller)
        return pb.UpdateProjectStaticAdminResponse()

    async def EnableStaticAdmin(
        self, _request: pb.EnableStaticAdminRequest, caller: User
    ) -> pb.EnableStaticAdminResponse:
        await self._cases.projects.enable_static_admin(by=caller)
        return pb.EnableStaticAdminResponse()

    async def DisableStaticAdmin(
        self, _request: pb.DisableStaticAdminRequest, caller: User
    ) -> pb.DisableStaticAdminResponse:
        await self._cases.projects.disable_static_admin(by=caller)
        return pb.DisableStaticAdminResponse()

    async def UpdateProjectSSOConfig(
        self, request: pb.UpdateProjectSSOConfigRequest, caller: User
    ) -> pb.UpdateProjectSSOConfigResponse:
        await self._cases.projects.set_sso(request.sso, by=caller)
        return pb.UpdateProjectSSOConfigResponse()

    async def UpdateProjectRBACConfig(
        self, request: pb.UpdateProjectRBACConfigRequest, caller: User
    ) -> pb.UpdateProjectRBACConfigResponse:
        await self._cases.projects.set_legacy_teams(request.rbac, by=caller)
        return pb.UpdateProjectRBACConfigResponse()


class WebRoleRpcs(RpcHandlers):
    """RPCs about roles and user groups."""

    async def AddProjectRBACRole(
        self, request: pb.AddProjectRBACRoleRequest, caller: User
    ) -> pb.AddProjectRBACRoleResponse:
        await self._cases.roles.add(request.name, request.policies, by=caller)
        return pb.AddProjectRBACRoleResponse()

    async def UpdateProjectRBACRole(
        self, request: pb.UpdateProjectRBACRoleRequest, caller: User
    ) -> pb.UpdateProjectRBACRoleResponse:
        await self._cases.roles.update(request.name, request.policies, by=caller)
        return pb.UpdateProjectRBACRoleResponse()

    async def DeleteProjectRBACRole(
        self, request: pb.DeleteProjectRBACRoleRequest, caller: User
    ) -> pb.DeleteProjectRBACRoleResponse:
        await self._cases.roles.delete(request.name, by=caller)
        return pb.DeleteProjectRBACRoleResponse()

    async def AddProjectUserGroup(
        self, request: pb.AddProjectUserGroupRequest, caller: User
    ) -> pb.AddProjectUserGroupResponse:
        await self._cases.roles.add_group(request.sso_group, request.role, by=caller)
        return pb.AddProjectUserGroupResponse()

    async def DeleteProjectUserGroup(
        self, request: pb.DeleteProjectUserGroupRequest, caller: User
    ) -> pb.DeleteProjectUserGroupResponse:
        await self._cases.roles.delete_group(request.sso_group, by=caller)
        return pb.DeleteProjectUserGroupResponse()


class WebApiKeyRpcs(RpcHandlers):
    """RPCs about API keys."""

    async def GenerateAPIKey(
        self, request: pb.GenerateAPIKeyRequest, caller: User
    ) -> pb.GenerateAPIKeyResponse:
        key = await self._cases.api_keys.generate(request.name, request.role, by=caller)
        return pb.GenerateAPIKeyResponse(key=key)

    async def DisableAPIKey(
        self, request: pb.DisableAPIKeyRequest, caller: User
    ) -> pb.DisableAPIKeyResponse:
        await self._cases.api_keys.disable(request.id, by=caller)
        return pb.DisableAPIKeyResponse()

    async def ListAPIKeys(
        self, request: pb.ListAPIKeysRequest, caller: User
    ) -> pb.ListAPIKeysResponse:
        keys = await self._cases.api_keys.list(by=caller, enabled=enabled_of(request.options))
        return pb.ListAPIKeysResponse(keys=keys)


class WebEventRpcs(RpcHandlers):
    """RPCs about events."""

    async def ListEvents(
        self, request: pb.ListEventsRequest, caller: User
    ) -> pb.ListEventsResponse:
        options = request.options
        filter_ = EventFilter(
            project=caller.project,
            name=options.name,
            statuses=tuple(options.statuses[:1]),
            labels=options.labels,
        )
        page = await self._cases.events.list(filter_, page_of(request), by=caller)
        return pb.ListEventsResponse(events=page.items, cursor=page.cursor)


class WebInsightRpcs(RpcHandlers):
    """RPCs about insights: DORA metrics and the number of applications."""

    async def GetInsightData(
        self, request: pb.GetInsightDataRequest, caller: User
    ) -> pb.GetInsightDataResponse:
        time_range = TimeRange(request.range_from, request.range_to, Resolution(request.resolution))
        query = InsightQuery(time_range, request.application_id, request.labels)
        metric = Metric(request.metrics_kind)
        points = await self._cases.insights.series(metric, query, by=caller)
        stream = model.InsightSampleStream(
            data_points=[model.InsightDataPoint(timestamp=at, value=value) for at, value in points]
        )
        return pb.GetInsightDataResponse(type=model.MATRIX, matrix=[stream])

    async def GetInsightApplicationCount(
        self, _request: pb.GetInsightApplicationCountRequest, caller: User
    ) -> pb.GetInsightApplicationCountResponse:
        counted = await self._cases.insights.applications(by=caller)
        return pb.GetInsightApplicationCountResponse(
            updated_at=counted.updated_at,
            counts=[
                model.InsightApplicationCount(
                    labels={_KIND_LABEL: kind, _STATUS_LABEL: status}, count=count
                )
                for (kind, status), count in count_applications(counted.applications).items()
            ],
        )


class WebReleaseRpcs(RpcHandlers):
    """RPCs about releases of piped; only the version of this control plane is known offline."""

    async def ListReleasedVersions(
        self, _request: pb.ListReleasedVersionsRequest, caller: User
    ) -> pb.ListReleasedVersionsResponse:
        version = build_version()
        # A program that was not installed from a package has no version. Upstream's releases have
        # other numbers: to its launchers the version of this control plane is an ancient one.
        is_offered = version[:1] == "v" and not await self._cases.pipeds.has_upstream(by=caller)
        return pb.ListReleasedVersionsResponse(versions=[version] if is_offered else [])

    async def ListDeprecatedNotes(
        self, _request: pb.ListDeprecatedNotesRequest, _caller: User
    ) -> pb.ListDeprecatedNotesResponse:
        return pb.ListDeprecatedNotesResponse()


def web_table(cases: UseCases, *, observer: RpcObserver | None = None) -> RpcTable[User]:
    """The table of all RPCs of WebService."""
    handlers = (
        WebApplicationRpcs(cases),
        WebDeploymentRpcs(cases),
        WebPipedRpcs(cases),
        WebProjectRpcs(cases),
        WebRoleRpcs(cases),
        WebApiKeyRpcs(cases),
        WebEventRpcs(cases),
        WebInsightRpcs(cases),
        WebReleaseRpcs(cases),
    )
    return WebRpcTable(cases, handlers, observer=observer)
