# SPDX-License-Identifier: Apache-2.0
"""Every RPC of WebService for a role with all actions on objects with the label `env: dev`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.api.web_authorization import SERVICE
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.model.ids import new_id
from pipecd.proto.model import project_pb2 as model
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import web_pb2 as pb
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.piped_pb2 import ReportDeploymentPlannedRequest
from pipecd.proto.service.web_pb2_grpc import WebServiceStub

DENIED = (grpc.StatusCode.PERMISSION_DENIED, "Permission Denied")

# RPCs on one application or deployment, whose labels decide.
TO_ONE = {
    "AddApplication",
    "UpdateApplication",
    "EnableApplication",
    "DisableApplication",
    "DeleteApplication",
    "SyncApplication",
    "GetApplication",
    "GetApplicationLiveState",
    "GetDeployment",
    "GetStageLog",
    "CancelDeployment",
    "SkipStage",
    "ApproveStage",
}
# Lists, and the field of the response with the items.
LISTS = {
    "ListApplications": "applications",
    "ListDeployments": "deployments",
    "ListEvents": "events",
    "ListUnregisteredApplications": "applications",
    "ListDeploymentTraces": "traces",
}
# Counts cover the visible objects; the other RPCs have no object with labels.
FOR_ANYBODY = {
    "GetInsightData",
    "GetInsightApplicationCount",
    "GenerateApplicationSealedSecret",
    "GetMe",
    "GetCommand",
    "ListReleasedVersions",
    "ListDeprecatedNotes",
}
# Objects without labels: a policy with labels does not cover them.
WITHOUT_LABELS = {rpc.name for rpc in SERVICE.methods} - TO_ONE - set(LISTS) - FOR_ANYBODY


@dataclass(frozen=True)
class Stand:
    """One application and deployment of each environment, and a user of the dev team."""

    call: Callable[[str, Message], Any]
    ids: dict[str, dict[str, str]]
    piped: str


@pytest.fixture
async def stand(
    *,
    cases: UseCases,
    application: Application,
    deployment: Deployment,
    stages: list[PipelineStage],
    piped: PipedCaller,
    admin: User,
    web_channel: grpc.aio.Channel,
    cookie: Callable[[User], Any],
) -> Stand:
    policy = model.ProjectRBACPolicy(
        resources=[model.ProjectRBACResource(labels={"env": "dev"})],
        actions=[model.ProjectRBACPolicy.ALL],
    )
    await cases.roles.add("dev team", [policy], by=admin)
    other, planned = Application(), Deployment()
    other.CopyFrom(application)
    other.name, other.labels["env"] = "shop front", "prod"
    other.id = await cases.applications.add(other, by=admin)
    planned.CopyFrom(deployment)
    planned.id, planned.application_id, planned.labels["env"] = new_id(), other.id, "prod"
    await cases.deployment_reports.create(planned, by=piped)
    plan = ReportDeploymentPlannedRequest(deployment_id=planned.id, stages=stages)
    await cases.deployment_reports.report_planned(plan, by=piped)
    for env in ("dev", "prod"):
        event = RegisterEventRequest(name="image", data="v2", labels={"env": env})
        await cases.events.register(event, by=admin)
    metadata = cookie(User(admin.project, "tom", ("dev team",)))
    stub = WebServiceStub(web_channel)
    return Stand(
        lambda name, request: getattr(stub, name)(request, metadata=metadata),
        {
            "dev": {"application_id": application.id, "deployment_id": deployment.id},
            "prod": {"application_id": other.id, "deployment_id": planned.id},
        },
        piped.piped,
    )


def request_for(
    stand: Stand, name: str, minimal_message: Callable[[Message], Message], env: str
) -> Any:
    request = minimal_message(getattr(pb, f"{name}Request")())
    about = {**stand.ids[env], "piped_id": stand.piped, "stage_id": "s2"}
    for field in request.DESCRIPTOR.fields:
        if field.name in about:
            setattr(request, field.name, about[field.name])
    if isinstance(request, pb.AddApplicationRequest):
        request.labels["env"] = env
        request.git_path.repo.id, request.git_path.path = "site", "apps/new"
    if isinstance(request, pb.SkipStageRequest):
        request.stage_id = "s3"
    return request


async def outcome(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return e.code(), e.details() or ""
    return grpc.StatusCode.OK, ""


def named(names: set[str]) -> list[Any]:
    return [pytest.param(name, id=name) for name in sorted(names)]


@pytest.mark.parametrize("name", named(TO_ONE))
async def test_only_objects_with_the_label_can_be_used_by(
    stand: Stand, minimal_message: Callable[[Message], Message], name: str
) -> None:
    assert (
        await outcome(stand.call(name, request_for(stand, name, minimal_message, "prod"))) == DENIED
    )
    code, words = await outcome(stand.call(name, request_for(stand, name, minimal_message, "dev")))
    # Nothing is deployed, so there is neither a live state nor a log.
    missing = name in ("GetApplicationLiveState", "GetStageLog")
    assert code is (grpc.StatusCode.NOT_FOUND if missing else grpc.StatusCode.OK), words


@pytest.mark.parametrize("name", named(set(LISTS)))
async def test_only_objects_with_the_label_are_listed_by(
    stand: Stand, minimal_message: Callable[[Message], Message], name: str
) -> None:
    answer = await stand.call(name, request_for(stand, name, minimal_message, "dev"))
    assert all(found.labels["env"] == "dev" for found in getattr(answer, LISTS[name]))
    if name in ("ListApplications", "ListDeployments", "ListEvents"):
        assert len(getattr(answer, LISTS[name])) == 1


@pytest.mark.parametrize("name", named(FOR_ANYBODY))
async def test_every_role_can_call(
    stand: Stand, minimal_message: Callable[[Message], Message], name: str
) -> None:
    assert (
        await outcome(stand.call(name, request_for(stand, name, minimal_message, "dev"))) != DENIED
    )


@pytest.mark.parametrize("name", named(WITHOUT_LABELS))
async def test_a_policy_with_labels_does_not_cover_objects_without_labels_in(
    stand: Stand, minimal_message: Callable[[Message], Message], name: str
) -> None:
    assert (
        await outcome(stand.call(name, request_for(stand, name, minimal_message, "dev"))) == DENIED
    )


def test_rpcs_on_objects_without_labels_are_listed_completely() -> None:
    assert len(WITHOUT_LABELS) == len(SERVICE.methods) - 25
    kinds = ("Piped", "Project", "StaticAdmin", "APIKey", "DeploymentChain")
    assert all(any(kind in name for kind in kinds) for name in WITHOUT_LABELS)
