# SPDX-License-Identifier: Apache-2.0
"""APIService: the RPCs of pipectl and other programs with an API key."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import wraps
from types import SimpleNamespace

from google.protobuf.message import Message

from pipecd.controlplane.api.handlers import RpcHandlers, application_draft, page_size
from pipecd.controlplane.auth.request_origin import call_source
from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.controlplane.usecases.enums import enum_by_name
from pipecd.model.address import Networks
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import STATUS_PREFIX, DeploymentStatus
from pipecd.model.errors import UserMistake
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import application_targets_pb2 as application_targets
from pipecd.proto.service import deployment_control_pb2 as control
from pipecd.proto.service import piped_list_pb2 as piped_list
from pipecd.proto.service import plan_preview_pages_pb2 as preview_pages
from pipecd.proto.service import session_control_pb2 as session
from pipecd.wire.credentials import Metadata, parse_api_key
from pipecd.wire.table import RpcObserver, RpcTable

SERVICE = pb.DESCRIPTOR.services_by_name["APIService"]
CONTROL = control.DESCRIPTOR.services_by_name["DeploymentControl"]
SESSIONS = session.DESCRIPTOR.services_by_name["SessionControl"]
PREVIEW_PAGES = preview_pages.DESCRIPTOR.services_by_name["PlanPreviewPages"]
APPLICATION_TARGETS = application_targets.DESCRIPTOR.services_by_name["ApplicationTargets"]
PIPED_LIST = piped_list.DESCRIPTOR.services_by_name["PipedList"]

# Clients of gRPC receive 4 MiB by default.
_LOG_PART_BYTES = 1024 * 1024

Method = Callable[[Message, ApiKeyCaller], Awaitable[Message]]

# For an object of another project upstream answers PERMISSION_DENIED in these RPCs and
# INVALID_ARGUMENT in all others.
PERMISSION_DENIED_RPCS = frozenset(
    {
        "RenameApplicationConfigFile",
        "UpdateApplicationDeployTargets",
        "UpdatePiped",
        "EnablePiped",
        "DisablePiped",
        "GetPlanPreviewResults",
    }
)


class ApiApplicationRpcs(RpcHandlers):
    """RPCs about applications."""

    async def AddApplication(
        self, request: pb.AddApplicationRequest, caller: ApiKeyCaller
    ) -> pb.AddApplicationResponse:
        id = await self._cases.applications.add(application_draft(request), by=caller)
        return pb.AddApplicationResponse(application_id=id)

    async def SyncApplication(
        self, request: pb.SyncApplicationRequest, caller: ApiKeyCaller
    ) -> pb.SyncApplicationResponse:
        command = await self._cases.applications.sync(request.application_id, by=caller)
        return pb.SyncApplicationResponse(command_id=command)

    async def GetApplication(
        self, request: pb.GetApplicationRequest, caller: ApiKeyCaller
    ) -> pb.GetApplicationResponse:
        application = await self._cases.applications.get(request.application_id, by=caller)
        return pb.GetApplicationResponse(application=application)

    async def ListApplications(
        self, request: pb.ListApplicationsRequest, caller: ApiKeyCaller
    ) -> pb.ListApplicationsResponse:
        filter_ = ApplicationFilter(
            project=caller.project,
            enabled=not request.disabled,
            kinds=tuple(
                enum_by_name(ApplicationKind, name, "Invalid application kind")
                for name in _first([request.kind])
            ),
            name=request.name,
            piped_id=request.piped_id,
            labels=request.labels,
        )
        # Upstream's clients read all applications at once, without a limit.
        size = page_size(request.limit) if request.limit > 0 else 0
        page = PageRequest(size=size, cursor=request.cursor)
        listed = await self._cases.applications.list(filter_, page, by=caller)
        return pb.ListApplicationsResponse(applications=listed.items, cursor=listed.cursor)

    async def UpdateApplication(
        self, request: pb.UpdateApplicationRequest, caller: ApiKeyCaller
    ) -> pb.UpdateApplicationResponse:
        to = ApplicationUpdate(
            piped_id=request.piped_id,
            platform_provider=request.platform_provider,
            config_filename=request.git_path.config_filename,
        )
        await self._cases.applications.update(request.application_id, to, by=caller)
        return pb.UpdateApplicationResponse(application_id=request.application_id)

    async def DeleteApplication(
        self, request: pb.DeleteApplicationRequest, caller: ApiKeyCaller
    ) -> pb.DeleteApplicationResponse:
        await self._cases.applications.delete(request.application_id, by=caller)
        return pb.DeleteApplicationResponse(application_id=request.application_id)

    async def EnableApplication(
        self, request: pb.EnableApplicationRequest, caller: ApiKeyCaller
    ) -> pb.EnableApplicationResponse:
        await self._cases.applications.enable(request.application_id, by=caller)
        return pb.EnableApplicationResponse(application_id=request.application_id)

    async def DisableApplication(
        self, request: pb.DisableApplicationRequest, caller: ApiKeyCaller
    ) -> pb.DisableApplicationResponse:
        await self._cases.applications.disable(request.application_id, by=caller)
        return pb.DisableApplicationResponse(application_id=request.application_id)

    async def RenameApplicationConfigFile(
        self, request: pb.RenameApplicationConfigFileRequest, caller: ApiKeyCaller
    ) -> pb.RenameApplicationConfigFileResponse:
        await self._cases.applications.rename_config_file(
            request.application_ids, request.new_filename, by=caller
        )
        return pb.RenameApplicationConfigFileResponse()

    async def UpdateApplicationDeployTargets(
        self, request: pb.UpdateApplicationDeployTargetsRequest, caller: ApiKeyCaller
    ) -> pb.UpdateApplicationDeployTargetsResponse:
        await self._cases.applications.set_deploy_targets(
            request.application_id, request.deploy_targets_by_plugin, by=caller
        )
        return pb.UpdateApplicationDeployTargetsResponse()


class ApiDeploymentRpcs(RpcHandlers):
    """RPCs about deployments."""

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: ApiKeyCaller
    ) -> pb.GetDeploymentResponse:
        deployment = await self._cases.deployments.get(request.deployment_id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def ListDeployments(
        self, request: pb.ListDeploymentsRequest, caller: ApiKeyCaller
    ) -> pb.ListDeploymentsResponse:
        filter_ = DeploymentFilter(
            project=caller.project,
            statuses=tuple(
                enum_by_name(
                    DeploymentStatus,
                    name.removeprefix(STATUS_PREFIX),
                    f"{name} is invalid deployment status",
                )
                for name in _first(request.statuses)
            ),
            kinds=tuple(
                enum_by_name(ApplicationKind, name, f"{name} is invalid application kind")
                for name in _first(request.kinds)
            ),
            application_ids=_first(request.application_ids),
            application_name=request.application_name,
            labels=request.labels,
        )
        page = PageRequest(size=page_size(request.limit), cursor=request.cursor)
        listed = await self._cases.deployments.list(filter_, page, by=caller)
        return pb.ListDeploymentsResponse(deployments=listed.items, cursor=listed.cursor)

    async def ListStageLogs(
        self, request: pb.ListStageLogsRequest, caller: ApiKeyCaller
    ) -> pb.ListStageLogsResponse:
        logs = await self._cases.logs.of_deployment(request.deployment_id, by=caller)
        return pb.ListStageLogsResponse(
            stage_logs={
                stage: pb.StageLog(blocks=log.blocks, completed=log.completed)
                for stage, log in logs.items()
            }
        )

    async def GetCommand(
        self, request: pb.GetCommandRequest, caller: ApiKeyCaller
    ) -> pb.GetCommandResponse:
        command = await self._cases.commands.get(request.command_id, by=caller)
        return pb.GetCommandResponse(command=command)


class ApiControlRpcs(RpcHandlers):
    """RPCs of ours for running deployments, which upstream offers to users only."""

    async def CancelDeployment(
        self, request: control.CancelDeploymentRequest, caller: ApiKeyCaller
    ) -> control.DeploymentCommandResponse:
        command = await self._cases.deployments.cancel(
            request.deployment_id, request.force_rollback, request.force_no_rollback, by=caller
        )
        return control.DeploymentCommandResponse(command_id=command)

    async def ApproveStage(
        self, request: control.ApproveStageRequest, caller: ApiKeyCaller
    ) -> control.DeploymentCommandResponse:
        command = await self._cases.deployments.approve(
            request.deployment_id, request.stage_id, by=caller
        )
        return control.DeploymentCommandResponse(command_id=command)

    async def RejectStage(
        self, request: control.RejectStageRequest, caller: ApiKeyCaller
    ) -> control.DeploymentCommandResponse:
        command = await self._cases.deployments.reject(
            request.deployment_id, request.stage_id, request.reason, by=caller
        )
        return control.DeploymentCommandResponse(command_id=command)

    async def SkipStage(
        self, request: control.SkipStageRequest, caller: ApiKeyCaller
    ) -> control.DeploymentCommandResponse:
        command = await self._cases.deployments.skip(
            request.deployment_id, request.stage_id, by=caller
        )
        return control.DeploymentCommandResponse(command_id=command)

    async def GetStageLog(
        self, request: control.GetStageLogRequest, caller: ApiKeyCaller
    ) -> control.GetStageLogResponse:
        run = StageRun(request.deployment_id, request.stage_id, request.retried_count)
        log = await self._cases.logs.stage_log(run, request.offset_index, by=caller)
        blocks = tuple(_first_bytes(log.blocks, _LOG_PART_BYTES))
        has_more = len(blocks) < len(log.blocks)
        return control.GetStageLogResponse(
            blocks=blocks, completed=log.completed and not has_more, has_more=has_more
        )


class ApiPreviewPageRpcs(RpcHandlers):
    """An RPC of ours for the pages of plan previews, which upstream's console does not have."""

    async def GetPlanPreviewPages(
        self, request: preview_pages.GetPlanPreviewPagesRequest, caller: ApiKeyCaller
    ) -> preview_pages.GetPlanPreviewPagesResponse:
        urls = await self._cases.plan_previews.page_urls(request.commands, by=caller)
        return preview_pages.GetPlanPreviewPagesResponse(
            pages=[
                preview_pages.PlanPreviewPage(command=command, url=url)
                for command, url in urls.items()
            ]
        )


class ApiPipedListRpcs(RpcHandlers):
    """An RPC of ours for the pipeds of the project; upstream lists them in its console only."""

    async def ListPipeds(
        self, request: piped_list.ListPipedsRequest, caller: ApiKeyCaller
    ) -> piped_list.ListPipedsResponse:
        pipeds = [
            piped
            for piped in await self._cases.pipeds.list(by=caller)
            if request.piped_id in ("", piped.id)
        ]
        unusable = await self._cases.pipeds.unusable(pipeds, by=caller)
        return piped_list.ListPipedsResponse(
            pipeds=pipeds,
            unusable=[
                piped_list.UnusablePlugins(piped_id=id, failures=failures)
                for id, failures in unusable.items()
            ],
        )


class ApiApplicationTargetRpcs(RpcHandlers):
    """An RPC of ours that adds an application with its deploy targets; upstream needs several."""

    async def AddApplicationToTargets(
        self, request: application_targets.AddApplicationToTargetsRequest, caller: ApiKeyCaller
    ) -> application_targets.AddApplicationToTargetsResponse:
        draft = application_draft(request.application)
        draft.disabled = request.disabled
        for plugin, targets in request.deploy_targets_by_plugin.items():
            draft.deploy_targets_by_plugin[plugin].CopyFrom(targets)
        id = await self._cases.applications.add(draft, by=caller)
        return application_targets.AddApplicationToTargetsResponse(application_id=id)


class ApiSessionRpcs(RpcHandlers):
    """RPCs of ours for the sessions of users, which upstream cannot end."""

    async def ListSessions(
        self, request: session.ListSessionsRequest, caller: ApiKeyCaller
    ) -> session.ListSessionsResponse:
        listed = await self._cases.sessions.list(user=request.username, by=caller)
        return session.ListSessionsResponse(
            sessions=[
                session.Session(
                    id=each.id,
                    username=each.user,
                    roles=each.roles,
                    sso=each.is_sso,
                    signed_in_at=each.signed_in_at,
                    expires_at=each.expires_at,
                )
                for each in listed.sessions
            ],
            has_more=listed.has_more,
        )

    async def EndSession(
        self, request: session.EndSessionRequest, caller: ApiKeyCaller
    ) -> session.EndSessionsResponse:
        await self._cases.sessions.end_one(request.session_id, by=caller)
        return session.EndSessionsResponse()

    async def EndUserSessions(
        self, request: session.EndUserSessionsRequest, caller: ApiKeyCaller
    ) -> session.EndSessionsResponse:
        await self._cases.sessions.end_of_user(request.username, by=caller)
        return session.EndSessionsResponse()

    async def EndAllSessions(
        self, _request: session.EndAllSessionsRequest, caller: ApiKeyCaller
    ) -> session.EndSessionsResponse:
        await self._cases.sessions.end_all(by=caller)
        return session.EndSessionsResponse()


def _first_bytes(blocks: Sequence[LogBlock], limit: int) -> Iterator[LogBlock]:
    """The first blocks up to a size; one block at least."""
    size = 0
    for block in blocks:
        size += block.ByteSize()
        if size > limit and block is not blocks[0]:
            return
        yield block


def _first(values: Sequence[str]) -> tuple[str, ...]:
    # As upstream: only the first value counts, and empty values are ignored.
    return tuple(value for value in values if value)[:1]


class ApiPipedRpcs(RpcHandlers):
    """RPCs about pipeds."""

    async def GetPiped(
        self, request: pb.GetPipedRequest, caller: ApiKeyCaller
    ) -> pb.GetPipedResponse:
        return pb.GetPipedResponse(piped=await self._cases.pipeds.get(request.piped_id, by=caller))

    async def RegisterPiped(
        self, request: pb.RegisterPipedRequest, caller: ApiKeyCaller
    ) -> pb.RegisterPipedResponse:
        registered = await self._cases.pipeds.register(request.name, request.desc, by=caller)
        return pb.RegisterPipedResponse(id=registered.id, key=registered.key)

    async def UpdatePiped(
        self, request: pb.UpdatePipedRequest, caller: ApiKeyCaller
    ) -> pb.UpdatePipedResponse:
        await self._cases.pipeds.update(request.piped_id, request.name, request.desc, by=caller)
        return pb.UpdatePipedResponse()

    async def EnablePiped(
        self, request: pb.EnablePipedRequest, caller: ApiKeyCaller
    ) -> pb.EnablePipedResponse:
        await self._cases.pipeds.enable(request.piped_id, by=caller)
        return pb.EnablePipedResponse()

    async def DisablePiped(
        self, request: pb.DisablePipedRequest, caller: ApiKeyCaller
    ) -> pb.DisablePipedResponse:
        await self._cases.pipeds.disable(request.piped_id, by=caller)
        return pb.DisablePipedResponse()

    async def Encrypt(self, request: pb.EncryptRequest, caller: ApiKeyCaller) -> pb.EncryptResponse:
        sealed = await self._cases.encryption.encrypt(
            request.piped_id,
            request.plaintext,
            base64_encoding=request.base64_encoding,
            by=caller,
        )
        return pb.EncryptResponse(ciphertext=sealed)


class ApiPipelineRpcs(RpcHandlers):
    """The RPCs of CI pipelines: events and plan previews."""

    async def RegisterEvent(
        self, request: pb.RegisterEventRequest, caller: ApiKeyCaller
    ) -> pb.RegisterEventResponse:
        return pb.RegisterEventResponse(
            event_id=await self._cases.events.register(request, by=caller)
        )

    async def RequestPlanPreview(
        self, request: pb.RequestPlanPreviewRequest, caller: ApiKeyCaller
    ) -> pb.RequestPlanPreviewResponse:
        commands = await self._cases.plan_previews.request(request, by=caller)
        return pb.RequestPlanPreviewResponse(commands=commands)

    async def GetPlanPreviewResults(
        self, request: pb.GetPlanPreviewResultsRequest, caller: ApiKeyCaller
    ) -> pb.GetPlanPreviewResultsResponse:
        results = await self._cases.plan_previews.results(
            request.commands, request.command_handle_timeout, by=caller
        )
        return pb.GetPlanPreviewResultsResponse(results=results)


def api_table(
    cases: UseCases, *, observer: RpcObserver | None = None, proxies: Networks = ()
) -> RpcTable[ApiKeyCaller]:
    """The table of all RPCs of APIService, and of ours under the same prefix.

    The `X-Forwarded-For` header is trusted from `proxies` only.
    """

    async def authenticate(metadata: Metadata) -> ApiKeyCaller:
        return await cases.api_keys.verify(
            parse_api_key(metadata), lambda: call_source(metadata, proxies)
        )

    handlers = (
        ApiApplicationRpcs(cases),
        ApiDeploymentRpcs(cases),
        ApiPipedRpcs(cases),
        ApiPipelineRpcs(cases),
    )
    return RpcTable(
        SERVICE,
        [
            *(with_error_codes(group) for group in handlers),
            ApiControlRpcs(cases),
            ApiSessionRpcs(cases),
            ApiPreviewPageRpcs(cases),
            ApiPipedListRpcs(cases),
            ApiApplicationTargetRpcs(cases),
        ],
        authenticate,
        extensions=[CONTROL, SESSIONS, PREVIEW_PAGES, PIPED_LIST, APPLICATION_TARGETS],
        observer=observer,
    )


def with_error_codes(handlers: RpcHandlers) -> object:
    """The handlers with upstream's error code for objects of another project."""
    methods = {
        rpc.name: _as_invalid_argument(method) if rpc.name not in PERMISSION_DENIED_RPCS else method
        for rpc in SERVICE.methods
        if (method := getattr(handlers, rpc.name, None)) is not None
    }
    return SimpleNamespace(**methods)


def _as_invalid_argument(method: Method) -> Method:
    @wraps(method)
    async def call(request: Message, caller: ApiKeyCaller) -> Message:
        try:
            return await method(request, caller)
        except ForeignProject as e:
            raise UserMistake(e.message) from e

    return call
