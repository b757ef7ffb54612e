# SPDX-License-Identifier: Apache-2.0
"""Typed client of PipedService: the calls of a piped, errors as ours, retries where they help.

Reports of what happened are repeated for as long as their caller lives while the control plane is
away, or does not let in a piped that it has let in before. Questions are repeated a few times.
Lists are asked once, as whoever mirrors them asks again.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError, Unauthenticated, Unavailable
from pipecd.observe.spans import EXPORT
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.admission import Admission
from pipecd.wire.channel import open_channel, watch_wakeups
from pipecd.wire.credentials import bearer, piped_token
from pipecd.wire.status import from_rpc_error

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


_CALL_AT_MOST = 30.0
_QUESTION_TRIES = 3
_REPORT_TRIES = 10
_BACKOFF = Backoff(first=2.0, longest=60.0)

# The other side is away, which says nothing against the request itself.
_AWAY = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


def _refused() -> Unauthenticated:
    return Unauthenticated(
        "the control plane does not accept the key of this piped",
        hint="the piped was disabled there or its key replaced: enable it, or put the new key into "
        "pipedKeyFile; with pipedKeyData, change the configuration and restart piped",
    )


class PipedApi:
    """The control plane, as one piped sees it."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        admission: Admission,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._admission = admission
        self._stub = PipedServiceStub(channel)
        self._watch = watch_wakeups(channel)
        self._export: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(EXPORT)
        self._chance = chance
        self._answered = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        address: str,
        *,
        project: str,
        piped: str,
        key: Callable[[], str],
        insecure: bool = False,
        cert_file: str = "",
    ) -> AsyncGenerator["PipedApi", None]:
        """Connects with the key of a piped, waiting for a control plane that is away."""
        admission = Admission(lambda: piped_token(project, piped, key()), _refused)
        async with open_channel(
            address,
            authorization=admission.authorization,
            insecure=insecure,
            cert_file=cert_file,
            connect_within=None,
        ) as channel:
            yield cls(channel, admission)

    async def watch_wakeups(self) -> AsyncGenerator[Wakeup, None]:
        """Hints where to look, until the stream ends or fails."""
        self._admission.check()
        authorization = self._admission.authorization()
        call = self._watch(WatchWakeupsRequest())
        try:
            async for wakeup in call:
                self._was_answered()
                yield wakeup
        except grpc.aio.AioRpcError as e:
            raise await self._error(e, authorization) from e
        finally:
            call.cancel()

    async def export_traces(self, request: bytes) -> bytes:
        """Hands spans to the collector behind the control plane, once."""
        authorization = self._admission.authorization()
        metadata = (("authorization", bearer(authorization)),)
        try:
            return await self._export(request, metadata=metadata, timeout=_CALL_AT_MOST)
        except grpc.aio.AioRpcError as e:
            raise from_rpc_error(e) from e

    async def report_stat(self, request: pb.ReportStatRequest) -> pb.ReportStatResponse:
        return await self._once(self._stub.ReportStat, request)

    async def report_piped_meta(
        self, request: pb.ReportPipedMetaRequest
    ) -> pb.ReportPipedMetaResponse:
        return await self._report(self._stub.ReportPipedMeta, request)

    async def list_applications(
        self, request: pb.ListApplicationsRequest
    ) -> pb.ListApplicationsResponse:
        return await self._once(self._stub.ListApplications, request)

    async def report_application_sync_state(
        self, request: pb.ReportApplicationSyncStateRequest
    ) -> pb.ReportApplicationSyncStateResponse:
        return await self._report(self._stub.ReportApplicationSyncState, request)

    async def report_application_deploying_status(
        self, request: pb.ReportApplicationDeployingStatusRequest
    ) -> pb.ReportApplicationDeployingStatusResponse:
        return await self._report(self._stub.ReportApplicationDeployingStatus, request)

    async def report_application_most_recent_deployment(
        self, request: pb.ReportApplicationMostRecentDeploymentRequest
    ) -> pb.ReportApplicationMostRecentDeploymentResponse:
        return await self._report(self._stub.ReportApplicationMostRecentDeployment, request)

    async def get_application_most_recent_deployment(
        self, request: pb.GetApplicationMostRecentDeploymentRequest
    ) -> pb.GetApplicationMostRecentDeploymentResponse:
        return await self._ask(self._stub.GetApplicationMostRecentDeployment, request)

    async def get_deployment(self, request: pb.GetDeploymentRequest) -> pb.GetDeploymentResponse:
        return await self._ask(self._stub.GetDeployment, request)

    async def list_not_completed_deployments(
        self, request: pb.ListNotCompletedDeploymentsRequest
    ) -> pb.ListNotCompletedDeploymentsResponse:
        return await self._once(self._stub.ListNotCompletedDeployments, request)

    async def create_deployment(
        self, request: pb.CreateDeploymentRequest
    ) -> pb.CreateDeploymentResponse:
        return await self._report(self._stub.CreateDeployment, request)

    async def report_deployment_planned(
        self, request: pb.ReportDeploymentPlannedRequest
    ) -> pb.ReportDeploymentPlannedResponse:
        return await self._report(self._stub.ReportDeploymentPlanned, request)

    async def report_deployment_status_changed(
        self, request: pb.ReportDeploymentStatusChangedRequest
    ) -> pb.ReportDeploymentStatusChangedResponse:
        return await self._report(self._stub.ReportDeploymentStatusChanged, request)

    async def report_deployment_completed(
        self, request: pb.ReportDeploymentCompletedRequest
    ) -> pb.ReportDeploymentCompletedResponse:
        return await self._report(self._stub.ReportDeploymentCompleted, request)

    async def save_deployment_shared_metadata(
        self, request: pb.SaveDeploymentSharedMetadataRequest
    ) -> pb.SaveDeploymentSharedMetadataResponse:
        return await self._report(self._stub.SaveDeploymentSharedMetadata, request)

    async def save_deployment_plugin_metadata(
        self, request: pb.SaveDeploymentPluginMetadataRequest
    ) -> pb.SaveDeploymentPluginMetadataResponse:
        return await self._report(self._stub.SaveDeploymentPluginMetadata, request)

    async def save_stage_metadata(
        self, request: pb.SaveStageMetadataRequest
    ) -> pb.SaveStageMetadataResponse:
        return await self._report(self._stub.SaveStageMetadata, request)

    async def report_stage_logs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        return await self._ask(self._stub.ReportStageLogs, request)

    async def report_stage_logs_from_last_checkpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        return await self._ask(self._stub.ReportStageLogsFromLastCheckpoint, request)

    async def report_stage_status_changed(
        self, request: pb.ReportStageStatusChangedRequest
    ) -> pb.ReportStageStatusChangedResponse:
        return await self._report(self._stub.ReportStageStatusChanged, request)

    async def list_unhandled_commands(
        self, request: pb.ListUnhandledCommandsRequest
    ) -> pb.ListUnhandledCommandsResponse:
        return await self._once(self._stub.ListUnhandledCommands, request)

    async def report_command_handled(
        self, request: pb.ReportCommandHandledRequest
    ) -> pb.ReportCommandHandledResponse:
        return await self._report(self._stub.ReportCommandHandled, request)

    async def report_application_live_state(
        self, request: pb.ReportApplicationLiveStateRequest
    ) -> pb.ReportApplicationLiveStateResponse:
        return await self._ask(self._stub.ReportApplicationLiveState, request)

    async def list_events(self, request: pb.ListEventsRequest) -> pb.ListEventsResponse:
        return await self._once(self._stub.ListEvents, request)

    async def report_event_statuses(
        self, request: pb.ReportEventStatusesRequest
    ) -> pb.ReportEventStatusesResponse:
        return await self._report(self._stub.ReportEventStatuses, request)

    async def get_latest_analysis_result(
        self, request: pb.GetLatestAnalysisResultRequest
    ) -> pb.GetLatestAnalysisResultResponse:
        return await self._ask(self._stub.GetLatestAnalysisResult, request)

    async def update_application_configurations(
        self, request: pb.UpdateApplicationConfigurationsRequest
    ) -> pb.UpdateApplicationConfigurationsResponse:
        return await self._ask(self._stub.UpdateApplicationConfigurations, request)

    async def report_unregistered_application_configurations(
        self, request: pb.ReportUnregisteredApplicationConfigurationsRequest
    ) -> pb.ReportUnregisteredApplicationConfigurationsResponse:
        return await self._ask(self._stub.ReportUnregisteredApplicationConfigurations, request)

    async def create_deployment_chain(
        self, request: pb.CreateDeploymentChainRequest
    ) -> pb.CreateDeploymentChainResponse:
        return await self._report(self._stub.CreateDeploymentChain, request)

    async def in_chain_deployment_plannable(
        self, request: pb.InChainDeploymentPlannableRequest
    ) -> pb.InChainDeploymentPlannableResponse:
        return await self._ask(self._stub.InChainDeploymentPlannable, request)

    async def get_application_shared_object(
        self, request: pb.GetApplicationSharedObjectRequest
    ) -> pb.GetApplicationSharedObjectResponse:
        return await self._ask(self._stub.GetApplicationSharedObject, request)

    async def put_application_shared_object(
        self, request: pb.PutApplicationSharedObjectRequest
    ) -> pb.PutApplicationSharedObjectResponse:
        return await self._ask(self._stub.PutApplicationSharedObject, request)

    async def _once(
        self, call: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        return await self._call(call, request, away_tries=1, tries=1)

    async def _ask(
        self, call: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        return await self._call(call, request, away_tries=_QUESTION_TRIES, tries=_QUESTION_TRIES)

    async def _report(
        self, call: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        return await self._call(call, request, away_tries=None, tries=_REPORT_TRIES)

    async def _call(
        self,
        call: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT],
        request: RequestT,
        *,
        away_tries: int | None,
        tries: int,
    ) -> ResponseT:
        tried = 0
        while True:
            try:
                response = await self._try(call, request)
            except PipecdError as error:
                tried += 1
                limit = self._patience(error, away_tries=away_tries, tries=tries)
                if limit is not None and tried >= limit:
                    raise
                log.warning(
                    "call failed, trying again",
                    call=type(request).__name__.removesuffix("Request"),
                    tried=tried,
                    error=str(error),
                )
            else:
                self._was_answered()
                return response
            await self._pause(tried)

    async def _try(
        self, call: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        self._admission.check()
        authorization = self._admission.authorization()
        try:
            return await call(request, timeout=_CALL_AT_MOST)
        except grpc.aio.AioRpcError as e:
            raise await self._error(e, authorization) from e

    async def _error(self, error: grpc.aio.AioRpcError, authorization: str) -> PipecdError:
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return from_rpc_error(error)
        refusal = await self._admission.refused(authorization)
        return refusal or Unavailable("the key of this piped was just replaced")

    def _patience(self, error: PipecdError, *, away_tries: int | None, tries: int) -> int | None:
        """How often a call that fails like this is made in all; None means without end."""
        if isinstance(error, Unauthenticated):
            return None if away_tries is None and self._admission.was_granted else 1
        if not isinstance(error, Unavailable):
            return 1
        cause = error.__cause__
        is_away = isinstance(cause, grpc.aio.AioRpcError) and cause.code() in _AWAY
        return away_tries if is_away else tries

    async def _pause(self, tried: int) -> None:
        """Waits as upstream does, or until any other call shows that the server is back."""
        longest = _BACKOFF.after(tried)
        try:
            async with asyncio.timeout(self._chance() * longest):
                await self._answered.wait()
        except TimeoutError:
            return
        # Those that wait do not come back all in the same moment.
        await asyncio.sleep(self._chance() * min(0.2, longest))

    def _was_answered(self) -> None:
        self._admission.granted()
        self._answered.set()
        self._answered = asyncio.Event()
