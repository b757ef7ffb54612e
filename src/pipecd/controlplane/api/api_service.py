# SPDX-License-Identifier: Apache-2.0
"""APIService: the RPCs of pipectl and other programs with an API key."""

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from types import SimpleNamespace

from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import ApiKeyCaller
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.applications import ApplicationUpdate
from pipecd.controlplane.usecases.enums import enum_by_name
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import STATUS_PREFIX, DeploymentStatus
from pipecd.model.errors import UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.service import api_pb2
from pipecd.proto.service import api_pb2 as pb
from pipecd.wire.credentials import Metadata, parse_api_key
from pipecd.wire.table import RpcObserver, RpcTable

SERVICE = api_pb2.DESCRIPTOR.services_by_name["APIService"]

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


class ApiApplicationRpcs:
    """RPCs about applications."""

    def __init__(self, cases: UseCases) -> None:
        self._applications = cases.applications

    async def AddApplication(
        self, request: pb.AddApplicationRequest, caller: ApiKeyCaller
    ) -> pb.AddApplicationResponse:
        draft = Application(
            name=request.name,
            piped_id=request.piped_id,
            git_path=request.git_path,
            kind=request.kind,
            platform_provider=request.platform_provider,
            description=request.description,
            labels=request.labels,
        )
        id = await self._applications.add(draft, by=caller)
        return pb.AddApplicationResponse(application_id=id)

    async def SyncApplication(
        self, request: pb.SyncApplicationRequest, caller: ApiKeyCaller
    ) -> pb.SyncApplicationResponse:
        command = await self._applications.sync(request.application_id, by=caller)
        return pb.SyncApplicationResponse(command_id=command)

    async def GetApplication(
        self, request: pb.GetApplicationRequest, caller: ApiKeyCaller
    ) -> pb.GetApplicationResponse:
        application = await self._applications.get(request.application_id, by=caller)
        return pb.GetApplicationResponse(application=application)

    async def ListApplications(
        self, request: pb.ListApplicationsRequest, caller: ApiKeyCaller
    ) -> pb.ListApplicationsResponse:
        error = "Invalid application kind"
        filter_ = ApplicationFilter(
            project=caller.project,
            enabled=not request.disabled,
            kinds=(enum_by_name(ApplicationKind, request.kind, error),) if request.kind else (),
            name=request.name,
            piped_id=request.piped_id,
            labels=request.labels,
        )
        page = PageRequest(size=max(0, request.limit), cursor=request.cursor)
        listed = await self._applications.list(filter_, page, by=caller)
        return pb.ListApplicationsResponse(applications=listed.items, cursor=listed.cursor)

    async def UpdateApplication(
        self, request: pb.UpdateApplicationRequest, caller: ApiKeyCaller
    ) -> pb.UpdateApplicationResponse:
        to = ApplicationUpdate(
            piped_id=request.piped_id,
            platform_provider=request.platform_provider,
            config_filename=request.git_path.config_filename,
        )
        await self._applications.update(request.application_id, to, by=caller)
        return pb.UpdateApplicationResponse(application_id=request.application_id)

    async def DeleteApplication(
        self, request: pb.DeleteApplicationRequest, caller: ApiKeyCaller
    ) -> pb.DeleteApplicationResponse:
        await self._applications.delete(request.application_id, by=caller)
        return pb.DeleteApplicationResponse(application_id=request.application_id)

    async def EnableApplication(
        self, request: pb.EnableApplicationRequest, caller: ApiKeyCaller
    ) -> pb.EnableApplicationResponse:
        await self._applications.enable(request.application_id, by=caller)
        return pb.EnableApplicationResponse(application_id=request.application_id)

    async def DisableApplication(
        self, request: pb.DisableApplicationRequest, caller: ApiKeyCaller
    ) -> pb.DisableApplicationResponse:
        await self._applications.disable(request.application_id, by=caller)
        return pb.DisableApplicationResponse(application_id=request.application_id)

    async def RenameApplicationConfigFile(
        self, request: pb.RenameApplicationConfigFileRequest, caller: ApiKeyCaller
    ) -> pb.RenameApplicationConfigFileResponse:
        await self._applications.rename_config_file(
            request.application_ids, request.new_filename, by=caller
        )
        return pb.RenameApplicationConfigFileResponse()

    async def UpdateApplicationDeployTargets(
        self, request: pb.UpdateApplicationDeployTargetsRequest, caller: ApiKeyCaller
    ) -> pb.UpdateApplicationDeployTargetsResponse:
        await self._applications.set_deploy_targets(
            request.application_id, request.deploy_targets_by_plugin, by=caller
        )
        return pb.UpdateApplicationDeployTargetsResponse()


class ApiDeploymentRpcs:
    """RPCs about deployments."""

    def __init__(self, cases: UseCases) -> None:
        self._deployments, self._logs, self._commands = (
            cases.deployments,
            cases.logs,
            cases.commands,
        )

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: ApiKeyCaller
    ) -> pb.GetDeploymentResponse:
        deployment = await self._deployments.get(request.deployment_id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def ListDeployments(
        self, request: pb.ListDeploymentsRequest, caller: ApiKeyCaller
    ) -> pb.ListDeploymentsResponse:
        filter_ = DeploymentFilter(
            project=caller.project,
            statuses=tuple(_status(name) for name in _first(request.statuses)),
            kinds=tuple(_kind(name) for name in _first(request.kinds)),
            application_ids=_first(request.application_ids),
            application_name=request.application_name,
            labels=request.labels,
        )
        page = PageRequest(size=max(0, request.limit), cursor=request.cursor)
        listed = await self._deployments.list(filter_, page, by=caller)
        return pb.ListDeploymentsResponse(deployments=listed.items, cursor=listed.cursor)

    async def ListStageLogs(
        self, request: pb.ListStageLogsRequest, caller: ApiKeyCaller
    ) -> pb.ListStageLogsResponse:
        logs = await self._logs.of_deployment(request.deployment_id, by=caller)
        return pb.ListStageLogsResponse(
            stage_logs={
                stage: pb.StageLog(blocks=log.blocks, completed=log.completed)
                for stage, log in logs.items()
            }
        )

    async def GetCommand(
        self, request: pb.GetCommandRequest, caller: ApiKeyCaller
    ) -> pb.GetCommandResponse:
        command = await self._commands.get(request.command_id, by=caller)
        return pb.GetCommandResponse(command=command)


def _first(values: Sequence[str]) -> tuple[str, ...]:
    # As upstream: only the first value counts, and empty values are ignored.
    return tuple(value for value in values if value)[:1]


def _status(name: str) -> DeploymentStatus:
    error = f"{name} is invalid deployment status"
    return enum_by_name(DeploymentStatus, name.removeprefix(STATUS_PREFIX), error)


def _kind(name: str) -> ApplicationKind:
    return enum_by_name(ApplicationKind, name, f"{name} is invalid application kind")


class ApiPipedRpcs:
    """RPCs about pipeds."""

    def __init__(self, cases: UseCases) -> None:
        self._pipeds, self._encryption = cases.pipeds, cases.encryption

    async def GetPiped(
        self, request: pb.GetPipedRequest, caller: ApiKeyCaller
    ) -> pb.GetPipedResponse:
        return pb.GetPipedResponse(piped=await self._pipeds.get(request.piped_id, by=caller))

    async def RegisterPiped(
        self, request: pb.RegisterPipedRequest, caller: ApiKeyCaller
    ) -> pb.RegisterPipedResponse:
        registered = await self._pipeds.register(request.name, request.desc, by=caller)
        return pb.RegisterPipedResponse(id=registered.id, key=registered.key)

    async def UpdatePiped(
        self, request: pb.UpdatePipedRequest, caller: ApiKeyCaller
    ) -> pb.UpdatePipedResponse:
        await self._pipeds.update(request.piped_id, request.name, request.desc, by=caller)
        return pb.UpdatePipedResponse()

    async def EnablePiped(
        self, request: pb.EnablePipedRequest, caller: ApiKeyCaller
    ) -> pb.EnablePipedResponse:
        await self._pipeds.enable(request.piped_id, by=caller)
        return pb.EnablePipedResponse()

    async def DisablePiped(
        self, request: pb.DisablePipedRequest, caller: ApiKeyCaller
    ) -> pb.DisablePipedResponse:
        await self._pipeds.disable(request.piped_id, by=caller)
        return pb.DisablePipedResponse()

    async def Encrypt(self, request: pb.EncryptRequest, caller: ApiKeyCaller) -> pb.EncryptResponse:
        sealed = await self._encryption.encrypt(
            request.piped_id,
            request.plaintext,
            base64_encoding=request.base64_encoding,
            by=caller,
        )
        return pb.EncryptResponse(ciphertext=sealed)


class ApiPipelineRpcs:
    """The RPCs of CI pipelines: events and plan previews."""

    def __init__(self, cases: UseCases) -> None:
        self._events, self._previews = cases.events, cases.plan_previews

    async def RegisterEvent(
        self, request: pb.RegisterEventRequest, caller: ApiKeyCaller
    ) -> pb.RegisterEventResponse:
        return pb.RegisterEventResponse(event_id=await self._events.register(request, by=caller))

    async def RequestPlanPreview(
        self, request: pb.RequestPlanPreviewRequest, caller: ApiKeyCaller
    ) -> pb.RequestPlanPreviewResponse:
        commands = await self._previews.request(request, by=caller)
        return pb.RequestPlanPreviewResponse(commands=commands)

    async def GetPlanPreviewResults(
        self, request: pb.GetPlanPreviewResultsRequest, caller: ApiKeyCaller
    ) -> pb.GetPlanPreviewResultsResponse:
        results = await self._previews.results(
            request.commands, request.command_handle_timeout, by=caller
        )
        return pb.GetPlanPreviewResultsResponse(results=results)


def api_table(cases: UseCases, *, observer: RpcObserver | None = None) -> RpcTable[ApiKeyCaller]:
    """The table of all RPCs of APIService."""

    async def authenticate(metadata: Metadata) -> ApiKeyCaller:
        return await cases.api_keys.verify(parse_api_key(metadata))

    parts = (
        ApiApplicationRpcs(cases),
        ApiDeploymentRpcs(cases),
        ApiPipedRpcs(cases),
        ApiPipelineRpcs(cases),
    )
    return RpcTable(
        SERVICE, [with_error_codes(part) for part in parts], authenticate, observer=observer
    )


def with_error_codes(part: object) -> object:
    """The RPCs of a part with upstream's error code for objects of another project."""
    methods = {
        rpc.name: _as_invalid_argument(method) if rpc.name not in PERMISSION_DENIED_RPCS else method
        for rpc in SERVICE.methods
        if (method := getattr(part, rpc.name, None)) is not None
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
