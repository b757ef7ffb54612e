# SPDX-License-Identifier: Apache-2.0
"""A piped can use only its own applications, deployments and commands."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.wire.credentials import piped_token

Connect = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]
SERVICE = pb.DESCRIPTOR.services_by_name["PipedService"]

OF_APPLICATIONS = {
    "ReportApplicationSyncState",
    "ReportApplicationDeployingStatus",
    "ReportApplicationMostRecentDeployment",
    "GetApplicationMostRecentDeployment",
    "CreateDeployment",
    "CreateDeploymentChain",
    "ReportApplicationLiveState",
    "GetLatestAnalysisResult",
    "PutLatestAnalysisResult",
    "UpdateApplicationConfigurations",
    "GetApplicationSharedObject",
    "PutApplicationSharedObject",
}
OF_DEPLOYMENTS = {
    "GetDeployment",
    "ReportDeploymentPlanned",
    "ReportDeploymentStatusChanged",
    "ReportDeploymentCompleted",
    "SaveDeploymentMetadata",
    "SaveDeploymentSharedMetadata",
    "SaveDeploymentPluginMetadata",
    "SaveStageMetadata",
    "ReportStageLogs",
    "ReportStageLogsFromLastCheckpoint",
    "ReportStageStatusChanged",
    "InChainDeploymentPlannable",
}


def aimed(name: str, request: Message, application: str, deployment: str) -> Message:
    """Sets the ids of the request that ownership is checked by."""
    for field, value in (
        ("application_id", application),
        ("deployment_id", deployment),
        ("id", deployment),
    ):
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, value)
    match request:
        case pb.CreateDeploymentRequest():
            request.deployment.application_id = application
        case pb.CreateDeploymentChainRequest():
            request.first_deployment.application_id = application
        case pb.ReportApplicationLiveStateRequest():
            request.snapshot.application_id = application
        case pb.UpdateApplicationConfigurationsRequest():
            request.applications.add(id=application, name="n", repo_id="r", path="ab", piped_id="p")
        case pb.ReportDeploymentCompletedRequest():
            request.status = model.DEPLOYMENT_SUCCESS
        case _:
            assert name in OF_APPLICATIONS | OF_DEPLOYMENTS
    return request


@pytest.mark.parametrize(
    ("name", "noun"),
    [
        *(pytest.param(n, "application", id=n) for n in sorted(OF_APPLICATIONS)),
        *(pytest.param(n, "deployment", id=n) for n in sorted(OF_DEPLOYMENTS)),
    ],
)
async def test_an_object_of_another_piped_is_denied_by(
    *,
    connect: Connect,
    cases: UseCases,
    admin: User,
    deployment: Deployment,
    minimal_message: Callable[[Message], Message],
    name: str,
    noun: str,
) -> None:
    intruder = await cases.pipeds.register("intruder", "", by=admin)
    rpc = getattr(pb, f"{name}Request")
    own = aimed(name, minimal_message(rpc()), deployment.application_id, deployment.id)
    gone = aimed(name, minimal_message(rpc()), "gone", "gone")
    async with connect(piped_token("shop", intruder.id, intruder.key)) as channel:
        call = getattr(PipedServiceStub(channel), name)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call(own)
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await call(gone)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert refusal.value.details() == f"requested {noun} doesn't belong to the piped"
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    assert missing.value.details() == f"Entity was not found to get {noun} gone"


async def test_a_command_of_another_piped_is_denied(
    connect: Connect, cases: UseCases, admin: User, piped: PipedCaller
) -> None:
    intruder = await cases.pipeds.register("intruder", "", by=admin)
    command = await cases.pipeds.restart(piped.piped, by=admin)
    request = pb.ReportCommandHandledRequest(command_id=command, handled_at=1)
    async with connect(piped_token("shop", intruder.id, intruder.key)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await PipedServiceStub(channel).ReportCommandHandled(request)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert refusal.value.details() == "The current piped does not have requested command"


def test_every_rpc_with_an_ownership_check_is_listed() -> None:
    others = {rpc.name for rpc in SERVICE.methods} - OF_APPLICATIONS - OF_DEPLOYMENTS
    assert others == {
        "ReportStat",
        "ReportPipedMeta",
        "GetDesiredVersion",
        "ListApplications",
        "ListNotCompletedDeployments",
        "ListUnhandledCommands",
        "ReportCommandHandled",
        "ReportApplicationLiveStateEvents",
        "GetLatestEvent",
        "ListEvents",
        "ReportEventStatuses",
        "ReportUnregisteredApplicationConfigurations",
    }
