# SPDX-License-Identifier: Apache-2.0
"""PipedService: the RPCs of pipeds."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from pipecd.controlplane.api.handlers import RpcHandlers
from pipecd.controlplane.api.wakeups import Wakeups
from pipecd.controlplane.auth.credentials import AuthenticatedPiped
from pipecd.controlplane.auth.request_origin import call_source
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.chains import Matcher
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.controlplane.usecases.events import EventReport
from pipecd.controlplane.usecases.shared_objects import SharedObjectKey
from pipecd.model.address import Networks
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Conflict, PipecdError, UserMistake
from pipecd.proto.model import event_pb2 as model
from pipecd.proto.service import batch_pb2 as batch
from pipecd.proto.service import deployment_changes_pb2 as changes
from pipecd.proto.service import lease_pb2 as lease
from pipecd.proto.service import ordering_pb2 as ordering
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service import pluginfailures_pb2 as plugins
from pipecd.proto.service.wakeups_pb2 import WatchWakeupsRequest
from pipecd.wire.credentials import Metadata, parse_piped_token
from pipecd.wire.lease import parse_epoch
from pipecd.wire.status import to_status
from pipecd.wire.table import RpcObserver, RpcTable

_MAX_BATCHED_CALLS = 1000


class PipedSelfRpcs(RpcHandlers):
    """RPCs about the calling piped."""

    async def ReportStat(
        self, request: pb.ReportStatRequest, caller: PipedCaller
    ) -> pb.ReportStatResponse:
        await self._cases.pipeds.report_stat(request.piped_stats, by=caller)
        return pb.ReportStatResponse()

    async def ReportPipedMeta(
        self, request: pb.ReportPipedMetaRequest, caller: PipedCaller
    ) -> pb.ReportPipedMetaResponse:
        piped = await self._cases.pipeds.report_meta(request, by=caller)
        return pb.ReportPipedMetaResponse(name=piped.name, web_base_url=self._cases.address)

    async def ReportPluginFailures(
        self, request: plugins.ReportPluginFailuresRequest, caller: PipedCaller
    ) -> plugins.ReportPluginFailuresResponse:
        await self._cases.pipeds.report_plugin_failures(request.failures, by=caller)
        return plugins.ReportPluginFailuresResponse()

    async def GetDesiredVersion(
        self, _request: pb.GetDesiredVersionRequest, caller: PipedCaller
    ) -> pb.GetDesiredVersionResponse:
        return pb.GetDesiredVersionResponse(
            version=await self._cases.pipeds.desired_version(by=caller)
        )


class PipedBatchRpcs:
    """The RPC of ours that makes several calls in one request.

    `respond` makes a call of the table for the caller of the batch.
    """

    def __init__(
        self, respond: Callable[[str, bytes, AuthenticatedPiped], Awaitable[bytes]]
    ) -> None:
        self._respond = respond

    async def CallBatch(
        self, request: batch.CallBatchRequest, caller: AuthenticatedPiped
    ) -> batch.CallBatchResponse:
        if len(request.calls) > _MAX_BATCHED_CALLS:
            raise UserMistake(f"a batch has at most {_MAX_BATCHED_CALLS} calls")
        if any(call.rpc == "CallBatch" for call in request.calls):
            raise UserMistake("a batch contains no other batch")
        results = await asyncio.gather(*(self._result(call, caller) for call in request.calls))
        return batch.CallBatchResponse(results=results)

    async def _result(
        self, call: batch.BatchedCall, caller: AuthenticatedPiped
    ) -> batch.BatchedResult:
        try:
            response = await self._respond(call.rpc, call.request, caller)
        except PipecdError as e:
            code, message = to_status(e)
            return batch.BatchedResult(code=code.value[0], message=message)
        return batch.BatchedResult(response=response)


class PipedLeaseRpcs(RpcHandlers):
    """RPCs of ours, about which process runs as the calling piped."""

    def __init__(self, cases: UseCases, on_takeover: Callable[[str], None] | None = None) -> None:
        super().__init__(cases)
        self._on_takeover = on_takeover

    async def AcquirePipedLease(
        self, request: lease.AcquirePipedLeaseRequest, caller: PipedCaller
    ) -> lease.AcquirePipedLeaseResponse:
        response, is_takeover = await self._cases.piped_leases.acquire(request, by=caller)
        if is_takeover and self._on_takeover is not None:
            self._on_takeover(caller.project)
        return response

    async def ReleasePipedLease(
        self, request: lease.ReleasePipedLeaseRequest, caller: PipedCaller
    ) -> lease.ReleasePipedLeaseResponse:
        return await self._cases.piped_leases.release(
            request.epoch, draining=request.draining, by=caller
        )


class PipedApplicationRpcs(RpcHandlers):
    """RPCs about applications."""

    async def ListApplications(
        self, _request: pb.ListApplicationsRequest, caller: PipedCaller
    ) -> pb.ListApplicationsResponse:
        applications = await self._cases.applications.list_enabled(by=caller)
        return pb.ListApplicationsResponse(applications=applications)

    async def ReportApplicationSyncState(
        self, request: pb.ReportApplicationSyncStateRequest, caller: PipedCaller
    ) -> pb.ReportApplicationSyncStateResponse:
        await self._cases.application_reports.report_sync_state(
            request.application_id, request.state, by=caller
        )
        return pb.ReportApplicationSyncStateResponse()

    async def ReportApplicationDeployingStatus(
        self, request: pb.ReportApplicationDeployingStatusRequest, caller: PipedCaller
    ) -> pb.ReportApplicationDeployingStatusResponse:
        await self._cases.application_reports.report_deploying(
            request.application_id, request.deploying, by=caller
        )
        return pb.ReportApplicationDeployingStatusResponse()

    async def ReportApplicationMostRecentDeployment(
        self, request: pb.ReportApplicationMostRecentDeploymentRequest, caller: PipedCaller
    ) -> pb.ReportApplicationMostRecentDeploymentResponse:
        await self._cases.application_reports.report_most_recent_deployment(
            request.application_id,
            DeploymentStatus(request.status),
            request.deployment,
            by=caller,
        )
        return pb.ReportApplicationMostRecentDeploymentResponse()

    async def GetApplicationMostRecentDeployment(
        self, request: pb.GetApplicationMostRecentDeploymentRequest, caller: PipedCaller
    ) -> pb.GetApplicationMostRecentDeploymentResponse:
        deployment = await self._cases.application_reports.most_recent_deployment(
            request.application_id, DeploymentStatus(request.status), by=caller
        )
        return pb.GetApplicationMostRecentDeploymentResponse(deployment=deployment)

    async def UpdateApplicationConfigurations(
        self, request: pb.UpdateApplicationConfigurationsRequest, caller: PipedCaller
    ) -> pb.UpdateApplicationConfigurationsResponse:
        await self._cases.application_reports.update_configurations(request.applications, by=caller)
        return pb.UpdateApplicationConfigurationsResponse()

    async def ReportUnregisteredApplicationConfigurations(
        self, request: pb.ReportUnregisteredApplicationConfigurationsRequest, caller: PipedCaller
    ) -> pb.ReportUnregisteredApplicationConfigurationsResponse:
        await self._cases.application_reports.report_unregistered(request.applications, by=caller)
        return pb.ReportUnregisteredApplicationConfigurationsResponse()


# Called with the project of each new deployment.
OnDeploymentCreated = Callable[[str], None]


class PipedDeploymentRpcs(RpcHandlers):
    """RPCs about deployments and their stages."""

    def __init__(self, cases: UseCases, on_created: OnDeploymentCreated | None = None) -> None:
        super().__init__(cases)
        self._on_created = on_created

    async def GetDeployment(
        self, request: pb.GetDeploymentRequest, caller: PipedCaller
    ) -> pb.GetDeploymentResponse:
        deployment = await self._cases.deployments.get(request.id, by=caller)
        return pb.GetDeploymentResponse(deployment=deployment)

    async def ListNotCompletedDeployments(
        self, _request: pb.ListNotCompletedDeploymentsRequest, caller: PipedCaller
    ) -> pb.ListNotCompletedDeploymentsResponse:
        # All of them are in one page; an empty cursor tells clients that it is the last one.
        deployments = await self._cases.deployment_reports.list_not_completed(by=caller)
        return pb.ListNotCompletedDeploymentsResponse(deployments=deployments)

    async def CreateDeployment(
        self, request: pb.CreateDeploymentRequest, caller: PipedCaller
    ) -> pb.CreateDeploymentResponse:
        await self._cases.deployment_reports.create(request.deployment, by=caller)
        if self._on_created is not None:
            self._on_created(caller.project)
        return pb.CreateDeploymentResponse()

    async def ReportDeploymentPlanned(
        self, request: pb.ReportDeploymentPlannedRequest, caller: PipedCaller
    ) -> pb.ReportDeploymentPlannedResponse:
        await self._cases.deployment_reports.report_planned(request, by=caller)
        return pb.ReportDeploymentPlannedResponse()

    async def ReportDeploymentStatusChanged(
        self, request: pb.ReportDeploymentStatusChangedRequest, caller: PipedCaller
    ) -> pb.ReportDeploymentStatusChangedResponse:
        await self._cases.deployment_reports.report_status(request, by=caller)
        return pb.ReportDeploymentStatusChangedResponse()

    async def ReportDeploymentCompleted(
        self, request: pb.ReportDeploymentCompletedRequest, caller: PipedCaller
    ) -> pb.ReportDeploymentCompletedResponse:
        await self._cases.deployment_reports.report_completed(request, by=caller)
        return pb.ReportDeploymentCompletedResponse()

    async def ReportStageStatusChanged(
        self, request: pb.ReportStageStatusChangedRequest, caller: PipedCaller
    ) -> pb.ReportStageStatusChangedResponse:
        await self._cases.deployment_reports.report_stage_status(request, by=caller)
        return pb.ReportStageStatusChangedResponse()

    async def ReportDeploymentChanges(
        self, request: changes.ReportDeploymentChangesRequest, caller: PipedCaller
    ) -> changes.ReportDeploymentChangesResponse:
        await self._cases.deployment_reports.report_changes(
            request.deployment_id, request.changes, by=caller
        )
        return changes.ReportDeploymentChangesResponse()


class PipedOrderingRpcs(RpcHandlers):
    """RPCs of ours, about the order of deployments and events."""

    def __init__(self, cases: UseCases, on_created: OnDeploymentCreated | None = None) -> None:
        super().__init__(cases)
        self._on_created = on_created

    async def ListDeploymentsInOrder(
        self, _request: ordering.ListDeploymentsInOrderRequest, caller: PipedCaller
    ) -> ordering.ListDeploymentsInOrderResponse:
        await self._cases.piped_leases.deployments_polled(caller)
        deployments = await self._cases.deployment_reports.list_in_order(by=caller)
        return ordering.ListDeploymentsInOrderResponse(deployments=deployments)

    async def CreateDeploymentInOrder(
        self, request: ordering.CreateDeploymentInOrderRequest, caller: PipedCaller
    ) -> ordering.CreateDeploymentInOrderResponse:
        reports, chain, follows = self._cases.deployment_reports, request.chain, request.follows
        is_chain = request.HasField("chain")
        deployment = chain.first_deployment if is_chain else request.deployment.deployment
        if newer := await reports.newer_than(deployment, follows, by=caller):
            return ordering.CreateDeploymentInOrderResponse(newer=newer)
        try:
            if is_chain:
                matchers = [Matcher(m.name, m.kind, m.labels) for m in chain.matchers]
                await self._cases.chains.create(deployment, matchers, by=caller, follows=follows)
            else:
                await reports.create(deployment, by=caller, follows=follows)
        except Conflict:
            # Another one may have been stored since the check above.
            if newer := await reports.newer_than(deployment, follows, by=caller):
                return ordering.CreateDeploymentInOrderResponse(newer=newer)
            raise
        if not is_chain and self._on_created is not None:
            self._on_created(caller.project)
        return ordering.CreateDeploymentInOrderResponse()

    async def ListEventsInOrder(
        self, request: ordering.ListEventsInOrderRequest, caller: PipedCaller
    ) -> ordering.ListEventsInOrderResponse:
        return await self._cases.events.list_in_order(request, by=caller)


class PipedMetadataRpcs(RpcHandlers):
    """RPCs that merge metadata."""

    async def SaveDeploymentMetadata(
        self, request: pb.SaveDeploymentMetadataRequest, caller: PipedCaller
    ) -> pb.SaveDeploymentMetadataResponse:
        await self._cases.deployment_reports.save_metadata(
            request.deployment_id, request.metadata, by=caller
        )
        return pb.SaveDeploymentMetadataResponse()

    async def SaveDeploymentSharedMetadata(
        self, request: pb.SaveDeploymentSharedMetadataRequest, caller: PipedCaller
    ) -> pb.SaveDeploymentSharedMetadataResponse:
        await self._cases.deployment_reports.save_shared_metadata(
            request.deployment_id, request.metadata, by=caller
        )
        return pb.SaveDeploymentSharedMetadataResponse()

    async def SaveDeploymentPluginMetadata(
        self, request: pb.SaveDeploymentPluginMetadataRequest, caller: PipedCaller
    ) -> pb.SaveDeploymentPluginMetadataResponse:
        await self._cases.deployment_reports.save_plugin_metadata(
            request.deployment_id, request.plugin_name, request.metadata, by=caller
        )
        return pb.SaveDeploymentPluginMetadataResponse()

    async def SaveStageMetadata(
        self, request: pb.SaveStageMetadataRequest, caller: PipedCaller
    ) -> pb.SaveStageMetadataResponse:
        await self._cases.deployment_reports.save_stage_metadata(
            request.deployment_id, request.stage_id, request.metadata, by=caller
        )
        return pb.SaveStageMetadataResponse()


class PipedLogRpcs(RpcHandlers):
    """RPCs that append to stage logs."""

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest, caller: PipedCaller
    ) -> pb.ReportStageLogsResponse:
        await self._cases.logs.append(_run(request), request.blocks, by=caller)
        return pb.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest, caller: PipedCaller
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        await self._cases.logs.checkpoint(
            _run(request), request.blocks, completed=request.completed, by=caller
        )
        return pb.ReportStageLogsFromLastCheckpointResponse()


def _run(
    request: pb.ReportStageLogsRequest | pb.ReportStageLogsFromLastCheckpointRequest,
) -> StageRun:
    return StageRun(request.deployment_id, request.stage_id, request.retried_count)


class PipedCommandRpcs(RpcHandlers):
    """RPCs about commands."""

    async def ListUnhandledCommands(
        self, _request: pb.ListUnhandledCommandsRequest, caller: PipedCaller
    ) -> pb.ListUnhandledCommandsResponse:
        commands = await self._cases.commands.list_unhandled(by=caller)
        return pb.ListUnhandledCommandsResponse(commands=commands)

    async def ReportCommandHandled(
        self, request: pb.ReportCommandHandledRequest, caller: PipedCaller
    ) -> pb.ReportCommandHandledResponse:
        result = CommandResult(
            command_id=request.command_id,
            status=CommandStatus(request.status),
            handled_at=request.handled_at,
            metadata=request.metadata,
            output=request.output,
        )
        await self._cases.commands.report_handled(result, by=caller)
        return pb.ReportCommandHandledResponse()


class PipedLiveStateRpcs(RpcHandlers):
    """RPCs about live state."""

    async def ReportApplicationLiveState(
        self, request: pb.ReportApplicationLiveStateRequest, caller: PipedCaller
    ) -> pb.ReportApplicationLiveStateResponse:
        await self._cases.livestate.report(request.snapshot, by=caller)
        return pb.ReportApplicationLiveStateResponse()

    async def ReportApplicationLiveStateEvents(
        self, request: pb.ReportApplicationLiveStateEventsRequest, caller: PipedCaller
    ) -> pb.ReportApplicationLiveStateEventsResponse:
        await self._cases.livestate.report_events(request.kubernetes_events, by=caller)
        return pb.ReportApplicationLiveStateEventsResponse()


_STATUSES = {
    pb.ListEventsRequest.ALL: (),
    pb.ListEventsRequest.NOT_HANDLED: (model.EVENT_NOT_HANDLED,),
    pb.ListEventsRequest.SUCCESS: (model.EVENT_SUCCESS,),
    pb.ListEventsRequest.FAILURE: (model.EVENT_FAILURE,),
    pb.ListEventsRequest.OUTDATED: (model.EVENT_OUTDATED,),
}


class PipedEventRpcs(RpcHandlers):
    """RPCs about events."""

    async def GetLatestEvent(
        self, request: pb.GetLatestEventRequest, caller: PipedCaller
    ) -> pb.GetLatestEventResponse:
        event = await self._cases.events.latest(request.name, request.labels, by=caller)
        return pb.GetLatestEventResponse(event=event)

    async def ListEvents(
        self, request: pb.ListEventsRequest, caller: PipedCaller
    ) -> pb.ListEventsResponse:
        filter_ = EventFilter(
            project=caller.project,
            statuses=_STATUSES[request.status],
            # `from` is a keyword of Python, so the field is read by name.
            created_from=max(0, getattr(request, "from")),
            created_to=max(0, request.to),
        )
        events = await self._cases.events.list_by_creation(
            filter_, descending=request.order == pb.DESC, by=caller
        )
        return pb.ListEventsResponse(events=events)

    async def ReportEventStatuses(
        self, request: pb.ReportEventStatusesRequest, caller: PipedCaller
    ) -> pb.ReportEventStatusesResponse:
        reports = [
            EventReport(event.id, event.status, event.status_description)
            for event in request.events
        ]
        await self._cases.events.report_statuses(reports, by=caller)
        return pb.ReportEventStatusesResponse()


class PipedObjectRpcs(RpcHandlers):
    """RPCs about analysis results and shared objects."""

    async def GetLatestAnalysisResult(
        self, request: pb.GetLatestAnalysisResultRequest, caller: PipedCaller
    ) -> pb.GetLatestAnalysisResultResponse:
        result = await self._cases.objects.analysis_result(request.application_id, by=caller)
        return pb.GetLatestAnalysisResultResponse(analysis_result=result)

    async def PutLatestAnalysisResult(
        self, request: pb.PutLatestAnalysisResultRequest, caller: PipedCaller
    ) -> pb.PutLatestAnalysisResultResponse:
        await self._cases.objects.put_analysis_result(
            request.application_id, request.analysis_result, by=caller
        )
        return pb.PutLatestAnalysisResultResponse()

    async def GetApplicationSharedObject(
        self, request: pb.GetApplicationSharedObjectRequest, caller: PipedCaller
    ) -> pb.GetApplicationSharedObjectResponse:
        key = SharedObjectKey(request.application_id, request.plugin_name, request.key)
        content = await self._cases.objects.get(key, by=caller)
        return pb.GetApplicationSharedObjectResponse(object=content)

    async def PutApplicationSharedObject(
        self, request: pb.PutApplicationSharedObjectRequest, caller: PipedCaller
    ) -> pb.PutApplicationSharedObjectResponse:
        key = SharedObjectKey(request.application_id, request.plugin_name, request.key)
        await self._cases.objects.put(key, request.object, by=caller)
        return pb.PutApplicationSharedObjectResponse()


class PipedChainRpcs(RpcHandlers):
    """RPCs about deployment chains."""

    async def CreateDeploymentChain(
        self, request: pb.CreateDeploymentChainRequest, caller: PipedCaller
    ) -> pb.CreateDeploymentChainResponse:
        matchers = [Matcher(m.name, m.kind, m.labels) for m in request.matchers]
        await self._cases.chains.create(request.first_deployment, matchers, by=caller)
        return pb.CreateDeploymentChainResponse()

    async def InChainDeploymentPlannable(
        self, request: pb.InChainDeploymentPlannableRequest, caller: PipedCaller
    ) -> pb.InChainDeploymentPlannableResponse:
        decision = await self._cases.chains.plannable(
            request.deployment_id,
            request.deployment_chain_id,
            request.deployment_chain_block_index,
            by=caller,
        )
        return pb.InChainDeploymentPlannableResponse(
            plannable=decision.plannable,
            cancel=bool(decision.cancel_reason),
            cancel_reason=decision.cancel_reason,
        )


SERVICE = pb.DESCRIPTOR.services_by_name["PipedService"]
ORDERING = ordering.DESCRIPTOR.services_by_name["Ordering"]
LEASES = lease.DESCRIPTOR.services_by_name["Leases"]
CHANGES = changes.DESCRIPTOR.services_by_name["DeploymentChangeReports"]
PLUGIN_FAILURES = plugins.DESCRIPTOR.services_by_name["PluginFailures"]
BATCH = batch.DESCRIPTOR.services_by_name["Batch"]


def piped_table(
    cases: UseCases,
    *,
    observer: RpcObserver | None = None,
    on_created: OnDeploymentCreated | None = None,
    on_takeover: Callable[[str], None] | None = None,
    proxies: Networks = (),
) -> RpcTable[AuthenticatedPiped]:
    """The table of all RPCs of PipedService, and of ours under the same prefix.

    `on_created` is called with the project of each new deployment, `on_takeover` with that of each
    piped whose lease a newer process takes from a running one. The `X-Forwarded-For` header is
    trusted from `proxies` only.
    """

    async def authenticate(metadata: Metadata) -> AuthenticatedPiped:
        caller = await cases.credentials.piped(
            parse_piped_token(metadata), lambda: call_source(metadata, proxies)
        )
        if epoch := parse_epoch(metadata):
            caller = replace(caller, epoch=epoch)
            await cases.piped_leases.check(caller)
        return caller

    async def respond(rpc: str, request: bytes, caller: AuthenticatedPiped) -> bytes:
        return await table.respond(rpc, request, caller)

    wakeups = Wakeups(cases.bus, cases.credentials, cases.commands, cases.piped_leases)
    handlers = (
        PipedSelfRpcs(cases),
        PipedBatchRpcs(respond),
        PipedLeaseRpcs(cases, on_takeover),
        PipedApplicationRpcs(cases),
        PipedDeploymentRpcs(cases, on_created),
        PipedOrderingRpcs(cases, on_created),
        PipedMetadataRpcs(cases),
        PipedLogRpcs(cases),
        PipedCommandRpcs(cases),
        PipedLiveStateRpcs(cases),
        PipedEventRpcs(cases),
        PipedObjectRpcs(cases),
        PipedChainRpcs(cases),
    )
    table = RpcTable(
        SERVICE,
        handlers,
        authenticate,
        extensions=(ORDERING, LEASES, CHANGES, PLUGIN_FAILURES, BATCH),
        streams={"WatchWakeups": (WatchWakeupsRequest, wakeups.watch)},
        observer=observer,
    )
    return table
