# SPDX-License-Identifier: Apache-2.0
"""PipedService over a real channel: reports about deployments and applications, and errors."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import grpc.aio
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.analysis_pb2 import AnalysisResult
from pipecd.proto.model.application_pb2 import (
    SYNCED,
    Application,
    ApplicationDeploymentReference,
    ApplicationSyncState,
)
from pipecd.proto.model.command_pb2 import COMMAND_SUCCEEDED
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.event_pb2 import EVENT_SUCCESS
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
)
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import ordering_pb2 as ordering
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.deployment_changes_pb2 import (
    DeploymentChanges,
    ReportDeploymentChangesRequest,
    ReportDeploymentChangesResponse,
)
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.wire.channel import PIPED_SERVICE, extension_rpc

Connect = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]
SERVICE = pb.DESCRIPTOR.services_by_name["PipedService"]


async def test_a_deployment_from_creation_to_completion(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    admin: User,
    application: Application,
    new_deployment: Callable[[], Deployment],
    stages: list[PipelineStage],
) -> None:
    stub, made = PipedServiceStub(piped_channel), new_deployment()
    listed = await stub.ListApplications(pb.ListApplicationsRequest())
    assert [a.id for a in listed.applications] == [application.id]
    await stub.CreateDeployment(pb.CreateDeploymentRequest(deployment=made))
    waiting = await stub.ListNotCompletedDeployments(pb.ListNotCompletedDeploymentsRequest())
    assert [d.id for d in waiting.deployments] == [made.id]
    assert waiting.cursor == ""
    await stub.ReportDeploymentPlanned(
        pb.ReportDeploymentPlannedRequest(deployment_id=made.id, stages=stages, summary="s")
    )
    await stub.ReportDeploymentStatusChanged(
        pb.ReportDeploymentStatusChangedRequest(
            deployment_id=made.id, status=model.DEPLOYMENT_RUNNING
        )
    )
    await stub.ReportStageStatusChanged(
        pb.ReportStageStatusChangedRequest(
            deployment_id=made.id, stage_id="s1", status=model.STAGE_RUNNING, completed_at=1
        )
    )
    block = LogBlock(index=1, log="hello", created_at=1)
    await stub.ReportStageLogs(
        pb.ReportStageLogsRequest(deployment_id=made.id, stage_id="s1", blocks=[block])
    )
    await stub.ReportStageLogsFromLastCheckpoint(
        pb.ReportStageLogsFromLastCheckpointRequest(
            deployment_id=made.id, stage_id="s1", blocks=[block], completed=True
        )
    )
    await stub.SaveDeploymentMetadata(
        pb.SaveDeploymentMetadataRequest(deployment_id=made.id, metadata={"a": "1"})
    )
    await stub.SaveDeploymentSharedMetadata(
        pb.SaveDeploymentSharedMetadataRequest(deployment_id=made.id, metadata={"b": "2"})
    )
    await stub.SaveDeploymentPluginMetadata(
        pb.SaveDeploymentPluginMetadataRequest(
            deployment_id=made.id, plugin_name="wait", metadata={"c": "3"}
        )
    )
    await stub.SaveStageMetadata(
        pb.SaveStageMetadataRequest(deployment_id=made.id, stage_id="s1", metadata={"d": "4"})
    )
    await stub.ReportDeploymentCompleted(
        pb.ReportDeploymentCompletedRequest(
            deployment_id=made.id,
            status=model.DEPLOYMENT_SUCCESS,
            stage_statuses={"s1": model.STAGE_SUCCESS},
            completed_at=5,
        )
    )
    answer = await stub.GetDeployment(pb.GetDeploymentRequest(id=made.id))
    done = answer.deployment
    assert (done.status, done.completed_at) == (model.DEPLOYMENT_SUCCESS, 5)
    assert done.stages[0].status == model.STAGE_SUCCESS
    assert done.metadata_v2.plugins["wait"].keyValues["c"] == "3"
    assert (await cases.deployments.get(made.id, by=admin)) == done
    again = await stub.ListNotCompletedDeployments(pb.ListNotCompletedDeploymentsRequest())
    assert not again.deployments


async def test_of_deployments_created_at_once_one_is_stored_and_the_others_learn_its_id(
    piped_channel: grpc.aio.Channel, new_deployment: Callable[[], Deployment]
) -> None:
    create: Any = piped_channel.unary_unary(
        f"/{SERVICE.full_name}/CreateDeploymentInOrder",
        request_serializer=ordering.CreateDeploymentInOrderRequest.SerializeToString,
        response_deserializer=ordering.CreateDeploymentInOrderResponse.FromString,
    )

    async def create_after(last: str) -> tuple[str, str]:
        request, deployment = (
            ordering.CreateDeploymentInOrderRequest(follows=last),
            new_deployment(),
        )
        request.deployment.deployment.CopyFrom(deployment)
        return deployment.id, (await create(request)).newer

    last = (await create_after(""))[0]
    for _ in range(3):
        # All of them pass the check before the first one is stored.
        answers = await asyncio.gather(*(create_after(last) for _ in range(8)))
        (last,) = {id_ for id_, newer in answers if not newer}
        assert {newer for _, newer in answers if newer} == {last}


async def test_reports_about_an_application(
    piped_channel: grpc.aio.Channel,
    application: Application,
    new_deployment: Callable[[], Deployment],
) -> None:
    stub, id = PipedServiceStub(piped_channel), application.id
    state = ApplicationSyncState(status=SYNCED, timestamp=1)
    deployment = new_deployment()
    reference = ApplicationDeploymentReference(
        deployment_id="d", trigger=deployment.trigger, started_at=1
    )
    await stub.CreateDeployment(pb.CreateDeploymentRequest(deployment=deployment))
    await stub.ReportApplicationSyncState(
        pb.ReportApplicationSyncStateRequest(application_id=id, state=state)
    )
    await stub.ReportApplicationDeployingStatus(
        pb.ReportApplicationDeployingStatusRequest(application_id=id, deploying=True)
    )
    await stub.ReportApplicationMostRecentDeployment(
        pb.ReportApplicationMostRecentDeploymentRequest(
            application_id=id, status=model.DEPLOYMENT_PENDING, deployment=reference
        )
    )
    recent = await stub.GetApplicationMostRecentDeployment(
        pb.GetApplicationMostRecentDeploymentRequest(
            application_id=id, status=model.DEPLOYMENT_PENDING
        )
    )
    assert recent.deployment == reference
    info = ApplicationInfo(
        id=id, name="renamed", repo_id="site", path="apps/cart", piped_id=application.piped_id
    )
    await stub.UpdateApplicationConfigurations(
        pb.UpdateApplicationConfigurationsRequest(applications=[info])
    )
    await stub.ReportUnregisteredApplicationConfigurations(
        pb.ReportUnregisteredApplicationConfigurationsRequest(applications=[info])
    )
    (listed,) = (await stub.ListApplications(pb.ListApplicationsRequest())).applications
    assert (listed.name, listed.deploying, listed.sync_state.status) == ("renamed", True, SYNCED)
    snapshot = ApplicationLiveStateSnapshot(
        application_id=id,
        piped_id=application.piped_id,
        project_id="shop",
        version=ApplicationLiveStateVersion(timestamp=1),
    )
    await stub.ReportApplicationLiveState(pb.ReportApplicationLiveStateRequest(snapshot=snapshot))
    await stub.ReportApplicationLiveStateEvents(pb.ReportApplicationLiveStateEventsRequest())
    await stub.PutLatestAnalysisResult(
        pb.PutLatestAnalysisResultRequest(
            application_id=id, analysis_result=AnalysisResult(start_time=3)
        )
    )
    result = await stub.GetLatestAnalysisResult(
        pb.GetLatestAnalysisResultRequest(application_id=id)
    )
    assert result.analysis_result.start_time == 3
    await stub.PutApplicationSharedObject(
        pb.PutApplicationSharedObjectRequest(
            application_id=id, plugin_name="p", key="k", object=b"\xff"
        )
    )
    kept = await stub.GetApplicationSharedObject(
        pb.GetApplicationSharedObjectRequest(application_id=id, plugin_name="p", key="k")
    )
    assert kept.object == b"\xff"


async def test_the_other_rpcs(
    piped_channel: grpc.aio.Channel,
    cases: UseCases,
    admin: User,
    piped: PipedCaller,
    application: Application,
    new_deployment: Callable[[], Deployment],
) -> None:
    stub = PipedServiceStub(piped_channel)
    meta = await stub.ReportPipedMeta(pb.ReportPipedMetaRequest(version="v9"))
    assert (meta.name, meta.web_base_url) == ("dev", "https://pipecd.example")
    assert (await stub.ReportStat(pb.ReportStatRequest(piped_stats=b"x"))).report_interval == 0
    await cases.pipeds.set_desired_version("v10", [piped.piped], by=admin)
    assert (await stub.GetDesiredVersion(pb.GetDesiredVersionRequest())).version == "v10"

    command_id = await cases.applications.sync(application.id, by=admin)
    (command,) = (await stub.ListUnhandledCommands(pb.ListUnhandledCommandsRequest())).commands
    assert command.id == command_id
    await stub.ReportCommandHandled(
        pb.ReportCommandHandledRequest(
            command_id=command_id, status=COMMAND_SUCCEEDED, handled_at=1
        )
    )
    assert not (await stub.ListUnhandledCommands(pb.ListUnhandledCommandsRequest())).commands

    event = RegisterEventRequest(name="image", data="v1", labels={"a": "b"})
    event_id = await cases.events.register(event, by=admin)
    latest = await stub.GetLatestEvent(pb.GetLatestEventRequest(name="image", labels={"a": "b"}))
    assert latest.event.id == event_id
    report = pb.ReportEventStatusesRequest.Event(
        id=event_id, status=EVENT_SUCCESS, status_description="done"
    )
    await stub.ReportEventStatuses(pb.ReportEventStatusesRequest(events=[report]))
    for status, count in ((pb.ListEventsRequest.ALL, 1), (pb.ListEventsRequest.NOT_HANDLED, 0)):
        events = await stub.ListEvents(pb.ListEventsRequest(order=pb.DESC, status=status))
        assert len(events.events) == count

    first = new_deployment()
    await stub.CreateDeploymentChain(pb.CreateDeploymentChainRequest(first_deployment=first))
    (chain,) = (await cases.chains.list(by=admin)).items
    turn = await stub.InChainDeploymentPlannable(
        pb.InChainDeploymentPlannableRequest(deployment_id=first.id, deployment_chain_id=chain.id)
    )
    assert (turn.plannable, turn.cancel) == (True, False)


@pytest.mark.parametrize(
    ("authorization", "message"),
    [
        pytest.param("", "missing credentials in authorization", id="there are no credentials"),
        pytest.param("PIPED-TOKEN", "credentials is malformed", id="the token is missing"),
        pytest.param("Bearer x", "credentials is malformed", id="the scheme is unknown"),
        pytest.param("API-KEY a.b", "Unauthenticated", id="the scheme is that of another service"),
        pytest.param("PIPED-TOKEN a,b", "Unauthenticated", id="the token has two parts"),
        pytest.param("PIPED-TOKEN shop,b,c", "Unauthenticated", id="the piped is unknown"),
    ],
)
async def test_a_call_is_refused_when(
    connect: Connect, registered: RegisteredPiped, authorization: str, message: str
) -> None:
    del registered
    async with connect(authorization) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            # The request is invalid too, but authentication fails first.
            await PipedServiceStub(channel).GetDeployment(pb.GetDeploymentRequest())
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert refusal.value.details() == message


async def test_a_revoked_key_is_refused_on_an_open_channel(
    piped_channel: grpc.aio.Channel, cases: UseCases, admin: User, piped: PipedCaller
) -> None:
    stub = PipedServiceStub(piped_channel)
    await stub.GetDesiredVersion(pb.GetDesiredVersionRequest())
    await cases.pipeds.disable(piped.piped, by=admin)
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await stub.GetDesiredVersion(pb.GetDesiredVersionRequest())
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_completed_log_and_a_completed_deployment_cannot_be_changed(
    piped_channel: grpc.aio.Channel, deployment: Deployment
) -> None:
    stub = PipedServiceStub(piped_channel)
    block = LogBlock(index=1, log="x", created_at=1)
    last = pb.ReportStageLogsFromLastCheckpointRequest(
        deployment_id=deployment.id, stage_id="s1", blocks=[block], completed=True
    )
    await stub.ReportStageLogsFromLastCheckpoint(last)
    block.index = 2
    late = pb.ReportStageLogsRequest(deployment_id=deployment.id, stage_id="s1", blocks=[block])
    with pytest.raises(grpc.aio.AioRpcError) as closed:
        await stub.ReportStageLogs(late)
    assert closed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert closed.value.details() == (
        "could not append the logs because the stage was already completed"
    )
    await stub.ReportDeploymentCompleted(
        pb.ReportDeploymentCompletedRequest(
            deployment_id=deployment.id, status=model.DEPLOYMENT_CANCELLED, completed_at=1
        )
    )
    running = pb.ReportDeploymentStatusChangedRequest(
        deployment_id=deployment.id, status=model.DEPLOYMENT_RUNNING
    )
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await stub.ReportDeploymentStatusChanged(running)
    assert ended.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_what_a_deployment_changes_is_reported_under_the_prefix_of_the_service(
    piped_channel: grpc.aio.Channel, cases: UseCases, deployment: Deployment, viewer: User
) -> None:
    report = extension_rpc(
        piped_channel, PIPED_SERVICE, "ReportDeploymentChanges", ReportDeploymentChangesResponse
    )
    changes = DeploymentChanges(error="the plugin failed", created_at=1)
    await report(ReportDeploymentChangesRequest(deployment_id=deployment.id, changes=changes))
    assert await cases.deployments.changes(deployment.id, by=viewer) == changes
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await report(ReportDeploymentChangesRequest(deployment_id=deployment.id))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
