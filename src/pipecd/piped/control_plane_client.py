# SPDX-License-Identifier: Apache-2.0
"""Typed client of PipedService: the calls of a piped, each with its retry policy.

Errors arrive as those of `model.errors`. While the control plane is unavailable, calls wait with
exponential backoff and jitter. One call probes it every few seconds; the first call that succeeds
again wakes all that wait.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.message import Message

from pipecd.model.backoff import Backoff
from pipecd.model.errors import LeaseLost, PipecdError, Unauthenticated, Unavailable
from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from pipecd.piped.call_batch import CallBatcher
from pipecd.piped.retry import (
    A_FEW_TIMES,
    ONCE,
    RELEASE,
    SHORT_ONCE,
    UNTIL_AVAILABLE,
    UNTIL_IT_WORKS,
    RpcRetryPolicy,
)
from pipecd.proto.service.batch_pb2 import CallBatchRequest, CallBatchResponse
from pipecd.proto.service.deployment_changes_pb2 import ReportDeploymentChangesResponse
from pipecd.proto.service.lease_pb2 import (
    AcquirePipedLeaseResponse,
    ReleasePipedLeaseResponse,
)
from pipecd.proto.service.ordering_pb2 import (
    CreateDeploymentInOrderResponse,
    ListDeploymentsInOrderResponse,
    ListEventsInOrderResponse,
)
from pipecd.proto.service.piped_pb2 import GetDesiredVersionRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.pluginfailures_pb2 import ReportPluginFailuresResponse
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.authorization import RenewableAuthorization
from pipecd.wire.channel import (
    HEARTBEAT_SECONDS,
    PIPED_SERVICE,
    extension_rpc,
    read_wakeups,
    watch_wakeups,
)
from pipecd.wire.credentials import bearer, piped_key_refused, piped_token
from pipecd.wire.lease import EPOCH
from pipecd.wire.reconnect import (
    ConnectionReplaced,
    ReconnectingChannel,
    open_reconnecting_channel,
)
from pipecd.wire.status import from_rpc_error

log: structlog.stdlib.BoundLogger = structlog.get_logger()

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

_BACKOFF = Backoff(first=2.0, longest=60.0)
# Calls that were woken by the success of another spread over this many seconds.
_SPREAD = 0.2
# Seconds between the probes of a control plane that is unavailable, and what one may take.
_PROBE_INTERVAL, _PROBE_DEADLINE = 2.0, 5.0

# A process that has lost its lease is about to end; its calls do not return before that, so that
# nothing takes the refusal for an answer and decides something.
_ENDS_WITHIN = 2.0

# The control plane cannot be reached, which says nothing against the request itself.
_UNAVAILABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
    }
)


@dataclass(frozen=True)
class Rpc(Generic[RequestT, ResponseT]):
    """An RPC of PipedService; calling it applies its retry policy."""

    method: "grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT]"
    policy: RpcRetryPolicy
    client: "ControlPlaneClient"
    is_log: bool = False
    """Whether the control plane writes to its filestore, which may take longer than a report."""

    @property
    def is_batched(self) -> bool:
        """Whether calls may share a request; these are small, and soon answered."""
        return self.is_log or self.policy in (UNTIL_AVAILABLE, UNTIL_IT_WORKS)

    async def __call__(self, request: RequestT) -> ResponseT:
        return await self.client.call(self, request)


class LeaseRpcs:
    """The RPCs about the lease of this piped, and its epoch, which every request carries."""

    def __init__(self, channel: grpc.aio.Channel, client: "ControlPlaneClient") -> None:
        self.acquire = Rpc(
            extension_rpc(channel, PIPED_SERVICE, "AcquirePipedLease", AcquirePipedLeaseResponse),
            UNTIL_AVAILABLE,
            client,
        )
        self.release = Rpc(
            extension_rpc(channel, PIPED_SERVICE, "ReleasePipedLease", ReleasePipedLeaseResponse),
            RELEASE,
            client,
        )
        # 0 without a lease.
        self.epoch = 0
        self.loss: LeaseLost | None = None
        self._lost = asyncio.Event()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return ((EPOCH, str(self.epoch)),) if self.epoch else ()

    def refused(self, error: LeaseLost) -> None:
        """Called when the control plane refused a request; the request for a lease has no epoch."""
        if self.epoch:
            self.loss = self.loss or error
            self._lost.set()

    async def wait_until_lost(self) -> LeaseLost:
        await self._lost.wait()
        if self.loss is None:
            raise RuntimeError("the lease is marked as lost without an error")
        return self.loss


class ControlPlaneClient:
    """The connection of one piped to its control plane."""

    def __init__(
        self,
        channel: ReconnectingChannel,
        authorization: RenewableAuthorization,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._channel, self._authorization_source = channel, authorization
        self.lease, self._watch = LeaseRpcs(channel, self), watch_wakeups(channel)
        self._export: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            OTLP_EXPORT_METHOD
        )
        self._chance, self._available = chance, asyncio.Event()
        # Whether a call failed because the control plane is unavailable, and none succeeded since.
        self._is_unavailable = asyncio.Event()

        def rpc(
            method: grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT], policy: RpcRetryPolicy
        ) -> Rpc[RequestT, ResponseT]:
            return Rpc(method, policy, self, is_log=method in logs)

        stub = PipedServiceStub(channel)
        logs = (stub.ReportStageLogs, stub.ReportStageLogsFromLastCheckpoint)
        # The caller polls anyway.
        self.report_stat = rpc(stub.ReportStat, ONCE)
        self.list_applications = rpc(stub.ListApplications, ONCE)
        self.list_not_completed_deployments = rpc(stub.ListNotCompletedDeployments, ONCE)
        self.list_unhandled_commands = rpc(stub.ListUnhandledCommands, SHORT_ONCE)
        self.list_events = rpc(stub.ListEvents, ONCE)
        # The smallest call there is, which probes a control plane that is unavailable.
        self.get_desired_version = rpc(stub.GetDesiredVersion, SHORT_ONCE)
        # The caller can do without the response, or calls again later.
        self.report_stage_logs = rpc(stub.ReportStageLogs, A_FEW_TIMES)
        self.report_stage_logs_from_last_checkpoint = rpc(
            stub.ReportStageLogsFromLastCheckpoint, A_FEW_TIMES
        )
        self.report_application_live_state = rpc(stub.ReportApplicationLiveState, A_FEW_TIMES)
        self.get_latest_analysis_result = rpc(stub.GetLatestAnalysisResult, A_FEW_TIMES)
        self.update_application_configurations = rpc(
            stub.UpdateApplicationConfigurations, A_FEW_TIMES
        )
        self.report_unregistered_application_configurations = rpc(
            stub.ReportUnregisteredApplicationConfigurations, A_FEW_TIMES
        )
        self.in_chain_deployment_plannable = rpc(stub.InChainDeploymentPlannable, A_FEW_TIMES)
        self.get_application_shared_object = rpc(stub.GetApplicationSharedObject, A_FEW_TIMES)
        self.put_application_shared_object = rpc(stub.PutApplicationSharedObject, A_FEW_TIMES)
        # Outlast an outage of the control plane, but not an error that it returns again and again.
        self.report_piped_meta = rpc(stub.ReportPipedMeta, UNTIL_AVAILABLE)
        self.report_application_sync_state = rpc(stub.ReportApplicationSyncState, UNTIL_AVAILABLE)
        self.get_application_most_recent_deployment = rpc(
            stub.GetApplicationMostRecentDeployment, UNTIL_AVAILABLE
        )
        self.get_deployment = rpc(stub.GetDeployment, UNTIL_AVAILABLE)
        self.create_deployment = rpc(stub.CreateDeployment, UNTIL_AVAILABLE)
        self.save_deployment_plugin_metadata = rpc(
            stub.SaveDeploymentPluginMetadata, UNTIL_AVAILABLE
        )
        self.save_stage_metadata = rpc(stub.SaveStageMetadata, UNTIL_AVAILABLE)
        self.report_command_handled = rpc(stub.ReportCommandHandled, UNTIL_AVAILABLE)
        self.report_event_statuses = rpc(stub.ReportEventStatuses, UNTIL_AVAILABLE)
        self.create_deployment_chain = rpc(stub.CreateDeploymentChain, UNTIL_AVAILABLE)
        self.report_application_deploying_status = rpc(
            stub.ReportApplicationDeployingStatus, UNTIL_AVAILABLE
        )
        self.report_application_most_recent_deployment = rpc(
            stub.ReportApplicationMostRecentDeployment, UNTIL_AVAILABLE
        )
        self.save_deployment_shared_metadata = rpc(
            stub.SaveDeploymentSharedMetadata, UNTIL_AVAILABLE
        )
        # Without these, piped and the control plane would disagree about a deployment.
        self.report_deployment_planned = rpc(stub.ReportDeploymentPlanned, UNTIL_IT_WORKS)
        self.report_deployment_status_changed = rpc(
            stub.ReportDeploymentStatusChanged, UNTIL_IT_WORKS
        )
        self.report_deployment_completed = rpc(stub.ReportDeploymentCompleted, UNTIL_IT_WORKS)
        # What is left of the log of a stage that has ended.
        self.report_final_stage_logs = rpc(stub.ReportStageLogsFromLastCheckpoint, UNTIL_IT_WORKS)
        self.report_stage_status_changed = rpc(stub.ReportStageStatusChanged, UNTIL_IT_WORKS)

    # RPCs of ours, which upstream's control plane does not have.

    @cached_property
    def list_deployments_in_order(self) -> Rpc[Message, ListDeploymentsInOrderResponse]:
        return self._own_rpc(ListDeploymentsInOrderResponse, ONCE)

    @cached_property
    def list_events_in_order(self) -> Rpc[Message, ListEventsInOrderResponse]:
        return self._own_rpc(ListEventsInOrderResponse, ONCE)

    @cached_property
    def create_deployment_in_order(self) -> Rpc[Message, CreateDeploymentInOrderResponse]:
        return self._own_rpc(CreateDeploymentInOrderResponse, UNTIL_AVAILABLE)

    @cached_property
    def report_plugin_failures(self) -> Rpc[Message, ReportPluginFailuresResponse]:
        return self._own_rpc(ReportPluginFailuresResponse, UNTIL_AVAILABLE)

    @cached_property
    def report_deployment_changes(self) -> Rpc[Message, ReportDeploymentChangesResponse]:
        return self._own_rpc(ReportDeploymentChangesResponse, A_FEW_TIMES, is_log=True)

    @cached_property
    def _reports(self) -> CallBatcher:
        return self._batcher()

    @cached_property
    def _logs(self) -> CallBatcher:
        # Apart from the reports, which a slow filestore must not delay.
        return self._batcher()

    def _batcher(self) -> CallBatcher:
        call_batch = extension_rpc(self._channel, PIPED_SERVICE, "CallBatch", CallBatchResponse)

        async def send(request: CallBatchRequest, deadline: float) -> CallBatchResponse:
            with self._channel.expect_response():
                return await call_batch(request, timeout=deadline, metadata=self.lease.metadata)

        return CallBatcher(send)

    def _own_rpc(
        self, response: type[ResponseT], policy: RpcRetryPolicy, *, is_log: bool = False
    ) -> Rpc[Message, ResponseT]:
        name = response.DESCRIPTOR.name.removesuffix("Response")
        method = extension_rpc(self._channel, PIPED_SERVICE, name, response)
        return Rpc(method, policy, self, is_log)

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
    ) -> AsyncGenerator["ControlPlaneClient", None]:
        """Connects with the key of a piped; waits while the control plane is unavailable."""
        authorization = RenewableAuthorization(
            lambda: piped_token(project, piped, key()), piped_key_refused
        )
        async with open_reconnecting_channel(
            address,
            authorization=authorization.authorization,
            insecure=insecure,
            cert_file=cert_file,
        ) as channel:
            client = cls(channel, authorization)
            probes = asyncio.create_task(client._probe(), name="probe the control plane")
            try:
                yield client
            finally:
                probes.cancel()
                await asyncio.wait({probes})

    async def watch_wakeups(self) -> AsyncGenerator[Wakeup, None]:
        """Yields hints about what to poll, until the stream ends or fails."""
        self._authorization_source.check()
        authorization = self._authorization_source.authorization()
        call = self._watch(
            WatchWakeupsRequest(heartbeat_seconds=HEARTBEAT_SECONDS), metadata=self.lease.metadata
        )
        try:
            reading = read_wakeups(call, expect_response=self._channel.expect_response)
            async with aclosing(reading) as wakeups:
                async for wakeup in wakeups:
                    # A heartbeat ends an outage, not the backoff of a call that fails otherwise.
                    if wakeup.kind != Wakeup.HEARTBEAT or self._is_unavailable.is_set():
                        self._call_succeeded()
                    yield wakeup
        except grpc.aio.AioRpcError as e:
            raise await self._error(e, authorization) from e
        finally:
            call.cancel()

    async def export_traces(self, request: bytes) -> bytes:
        """Sends spans once to the collector behind the control plane."""
        authorization = self._authorization_source.authorization()
        metadata = (("authorization", bearer(authorization)),)
        try:
            with self._channel.expect_response():
                return await self._export(request, metadata=metadata, timeout=ONCE.deadline)
        except grpc.aio.AioRpcError as e:
            raise from_rpc_error(e) from e

    async def call(self, rpc: Rpc[RequestT, ResponseT], request: RequestT) -> ResponseT:
        """Calls an RPC as often as its retry policy says."""
        attempts = 0
        while True:
            try:
                response = await self._attempt(
                    rpc, request, deadline=rpc.policy.deadline_after(attempts)
                )
            except ConnectionReplaced:
                # This says nothing of the control plane; the new connection may work at once.
                continue
            except PipecdError as error:
                if self.lease.loss is not None:
                    await asyncio.sleep(_ENDS_WITHIN)
                    raise
                attempts += 1
                limit = self._limit(error, rpc.policy)
                if limit is not None and attempts >= limit:
                    raise
                pause = self._chance() * _BACKOFF.after(attempts)
                log.warning(
                    "control plane unavailable, retrying"
                    if _is_unavailable(error)
                    else "control plane returned an error, retrying",
                    rpc=type(request).__name__.removesuffix("Request"),
                    attempts=attempts,
                    retry_in=round(pause, 1),
                    error=str(error),
                )
            else:
                self._call_succeeded()
                return response
            await self.wait_until_available(pause)

    async def _attempt(
        self,
        rpc: Rpc[RequestT, ResponseT],
        request: RequestT,
        *,
        deadline: float,
        wait_for_ready: bool = False,
    ) -> ResponseT:
        self._authorization_source.check()
        authorization = self._authorization_source.authorization()

        async def call_alone() -> ResponseT:
            with self._channel.expect_response():
                return await rpc.method(
                    request,
                    timeout=deadline,
                    metadata=self.lease.metadata,
                    wait_for_ready=wait_for_ready,
                )

        try:
            if rpc.is_batched:
                batcher = self._logs if rpc.is_log else self._reports
                return await batcher.call(request, call_alone, deadline)
            return await call_alone()
        except grpc.aio.AioRpcError as e:
            raise await self._error(e, authorization) from e

    async def _error(self, error: grpc.aio.AioRpcError, authorization: str) -> PipecdError:
        if error.code() in _UNAVAILABLE - {grpc.StatusCode.RESOURCE_EXHAUSTED}:
            self._is_unavailable.set()
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            refused = from_rpc_error(error)
            if isinstance(refused, LeaseLost):
                self.lease.refused(refused)
            return refused
        refusal = await self._authorization_source.rejected(authorization)
        return refusal or Unavailable("the key of this piped was just replaced")

    def _limit(self, error: PipecdError, policy: RpcRetryPolicy) -> int | None:
        """Returns how often a call that fails with this error is made in all."""
        if isinstance(error, Unauthenticated):
            # A key that was accepted before may be accepted again: the piped was disabled.
            waits = policy.when_unavailable is None and self._authorization_source.was_accepted
            return None if waits else 1
        if not isinstance(error, Unavailable):
            return 1
        return policy.when_unavailable if _is_unavailable(error) else policy.on_error

    async def _probe(self) -> None:
        """Calls a control plane that is unavailable every few seconds, so that no backoff lasts."""
        while True:
            await self._is_unavailable.wait()
            await asyncio.sleep(_PROBE_INTERVAL * (1 + self._chance()) / 2)
            if not self._is_unavailable.is_set():
                continue
            try:
                await self._attempt(
                    self.get_desired_version,
                    GetDesiredVersionRequest(),
                    deadline=_PROBE_DEADLINE,
                    wait_for_ready=True,
                )
            except PipecdError as e:
                log.debug("control plane is still unavailable", error=str(e))
            else:
                self._call_succeeded()

    async def wait_until_available(self, pause: float) -> None:
        """Waits for the backoff, or until another call shows that the control plane is back."""
        try:
            async with asyncio.timeout(pause):
                await self._available.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._chance() * min(_SPREAD, pause))

    def _call_succeeded(self) -> None:
        self._authorization_source.accepted()
        self._is_unavailable.clear()
        self._available.set()
        self._available = asyncio.Event()


def _is_unavailable(error: PipecdError) -> bool:
    cause = error.__cause__
    return isinstance(cause, grpc.aio.AioRpcError) and cause.code() in _UNAVAILABLE
