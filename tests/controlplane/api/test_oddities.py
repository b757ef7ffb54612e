# SPDX-License-Identifier: Apache-2.0
"""Oddities of upstream's control plane: behaviour that clients rely on stays, bugs are fixed.

Those of the RPCs are tested in this file; `tests/conventions/test_oddities.py` names the tests of the
others.
"""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import COMMAND_SUCCEEDED
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.event_pb2 import EVENT_OUTDATED
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.project_pb2 import ProjectRBACPolicy, ProjectRBACResource
from pipecd.proto.service import api_pb2, piped_pb2, web_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.web_pb2_grpc import WebServiceStub
from pipecd.wire.credentials import piped_token

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub
    from pipecd.proto.service.piped_pb2_grpc import PipedServiceAsyncStub

Connect = Callable[[str], AbstractAsyncContextManager[grpc.aio.Channel]]
CallWeb = Callable[[str, Message], Awaitable[Any]]

OK = grpc.StatusCode.OK
INVALID = grpc.StatusCode.INVALID_ARGUMENT


async def outcome(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return e.code(), e.details() or ""
    return OK, ""


@pytest.fixture
def piped_service(piped_channel: grpc.aio.Channel) -> "PipedServiceAsyncStub":
    return PipedServiceStub(piped_channel)


@pytest.fixture
def api_service(api_channel: grpc.aio.Channel) -> "APIServiceAsyncStub":
    return APIServiceStub(api_channel)


@pytest.fixture
def call_web(web_channel: grpc.aio.Channel, cookie: Callable[[User], Any], admin: User) -> CallWeb:
    """Calls WebService as an admin."""
    stub = WebServiceStub(web_channel)

    def call(name: str, request: Message) -> Awaitable[Any]:
        return getattr(stub, name)(request, metadata=cookie(admin))

    return call


@pytest.mark.parametrize("cursor", ["", "e30="])
async def test_the_list_of_deployments_in_progress_ends_and_accepts_a_cursor_of_upstream(
    piped_service: "PipedServiceAsyncStub", deployment: Deployment, cursor: str
) -> None:
    request = piped_pb2.ListNotCompletedDeploymentsRequest()
    if "cursor" in request.DESCRIPTOR.fields_by_name:
        request.cursor = cursor
    answer = await piped_service.ListNotCompletedDeployments(request)
    assert [d.id for d in answer.deployments] == [deployment.id]
    assert answer.cursor == ""


async def test_lists_ignore_empty_statuses_kinds_and_ids(
    api_service: "APIServiceAsyncStub", deployment: Deployment
) -> None:
    request = api_pb2.ListDeploymentsRequest(statuses=["", ""], kinds=[""], application_ids=[""])
    assert [d.id for d in (await api_service.ListDeployments(request)).deployments] == [
        deployment.id
    ]


async def test_lists_of_web_service_need_no_options(
    call_web: CallWeb, application: Application
) -> None:
    listed = await call_web("ListApplications", web_pb2.ListApplicationsRequest())
    assert [a.id for a in listed.applications] == [application.id]
    assert not (await call_web("ListEvents", web_pb2.ListEventsRequest())).events


async def test_an_api_key_updates_an_application_without_losing_its_deploy_targets(
    api_service: "APIServiceAsyncStub", stores: Stores, application: Application
) -> None:
    def target(stored: Application) -> None:
        stored.deploy_targets_by_plugin["kubernetes"].deploy_targets.append("dev")

    await stores.applications.update(application.id, target)
    other = ApplicationGitPath(
        repo=ApplicationGitRepository(id="elsewhere"), path="no/where", config_filename="b.yaml"
    )
    await api_service.UpdateApplication(
        api_pb2.UpdateApplicationRequest(
            application_id=application.id, piped_id=application.piped_id, git_path=other
        )
    )
    stored = await stores.applications.get(application.id)
    assert stored.deploy_targets_by_plugin["kubernetes"].deploy_targets == ["dev"]
    # As with upstream, the repository and path are set only when an application is added.
    assert (stored.git_path.repo.id, stored.git_path.path) == ("site", "apps/cart")
    assert stored.git_path.config_filename == "b.yaml"


async def test_an_invalid_request_is_not_an_internal_error(
    call_web: CallWeb, registered: RegisteredPiped, stranger: User, cases: UseCases, stores: Stores
) -> None:
    policy = ProjectRBACPolicy(
        resources=[ProjectRBACResource(type=ProjectRBACResource.PIPED)],
        actions=[ProjectRBACPolicy.GET],
    )
    role = web_pb2.AddProjectRBACRoleRequest(name="dev", policies=[policy])
    third = web_pb2.RecreatePipedKeyRequest(id=registered.id)
    await call_web("AddProjectRBACRole", role)
    await call_web("RecreatePipedKey", third)
    foreign = await cases.api_keys.generate("theirs", APIKey.READ_ONLY, by=stranger)
    key = web_pb2.DisableAPIKeyRequest(id=foreign.partition(".")[0])
    codes = {
        "role": await outcome(call_web("AddProjectRBACRole", role)),
        "key": await outcome(call_web("RecreatePipedKey", third)),
        "name": await outcome(call_web("RegisterPiped", web_pb2.RegisterPipedRequest())),
        "other": await outcome(call_web("DisableAPIKey", key)),
    }
    assert {name: code.name for name, (code, _) in codes.items()} == {
        "role": "ALREADY_EXISTS",
        "key": "FAILED_PRECONDITION",
        "name": "INVALID_ARGUMENT",
        "other": "PERMISSION_DENIED",
    }
    assert not (await stores.api_keys.get(foreign.partition(".")[0])).disabled


async def test_an_outdated_event_keeps_its_times(
    piped_service: "PipedServiceAsyncStub",
    cases: UseCases,
    admin: User,
    stores: Stores,
    advance: Callable[[float], None],
) -> None:
    event = api_pb2.RegisterEventRequest(name="image", data="v1")
    id = await cases.events.register(event, by=admin)
    before = await stores.events.get(id)
    advance(60)
    status = piped_pb2.ReportEventStatusesRequest.Event(
        id=id, status=EVENT_OUTDATED, status_description="a newer one came"
    )
    await piped_service.ReportEventStatuses(piped_pb2.ReportEventStatusesRequest(events=[status]))
    after = await stores.events.get(id)
    assert after.status == EVENT_OUTDATED
    assert (after.updated_at, after.handled_at) == (before.updated_at, before.handled_at)


async def test_validation_rules_of_upstream_apply(
    piped_service: "PipedServiceAsyncStub",
    api_service: "APIServiceAsyncStub",
    deployment: Deployment,
    registered: RegisteredPiped,
) -> None:
    about: dict[str, Any] = {"deployment_id": deployment.id, "stage_id": "s1"}
    running = piped_pb2.ReportStageStatusChangedRequest(status=model.STAGE_RUNNING, **about)
    assert (await outcome(piped_service.ReportStageStatusChanged(running)))[0] is INVALID
    running.completed_at = 1
    assert (await outcome(piped_service.ReportStageStatusChanged(running)))[0] is OK
    empty = piped_pb2.ReportStageLogsRequest(blocks=[LogBlock(index=1, created_at=1)], **about)
    assert (await outcome(piped_service.ReportStageLogs(empty)))[0] is INVALID
    repo = ApplicationGitRepository(id="site")
    short = api_pb2.AddApplicationRequest(
        name="web", piped_id=registered.id, git_path=ApplicationGitPath(repo=repo, path=".")
    )
    code, words = await outcome(api_service.AddApplication(short))
    assert code is INVALID
    assert 'value does not match regex pattern "^[^/].+$"' in words


async def test_the_output_of_a_restart_command_is_accepted(
    piped_service: "PipedServiceAsyncStub",
    cases: UseCases,
    admin: User,
    registered: RegisteredPiped,
    stores: Stores,
) -> None:
    id = await cases.pipeds.restart(registered.id, by=admin)
    await piped_service.ReportCommandHandled(
        piped_pb2.ReportCommandHandledRequest(
            command_id=id, status=COMMAND_SUCCEEDED, handled_at=1, output=id.encode()
        )
    )
    assert await stores.files.get(f"command-output/{id}.json") == id.encode()


async def test_unregistered_applications_have_another_cache_key_than_upstreams(
    piped_service: "PipedServiceAsyncStub", stores: Stores
) -> None:
    report = piped_pb2.ReportUnregisteredApplicationConfigurationsRequest()
    await piped_service.ReportUnregisteredApplicationConfigurations(report)
    # Upstream would fail on a value that is not Go's own encoding.
    assert await stores.cache.fields("HASHKEY:UNREGISTERED_APPS:shop") == {}


async def test_an_approval_checks_the_project_before_the_approvers(
    web_channel: grpc.aio.Channel,
    cookie: Callable[[User], Any],
    deployment: Deployment,
    stranger: User,
    stores: Stores,
) -> None:
    def ask_for_ann(stored: Deployment) -> None:
        stored.stages[1].authorized_operators.append("ann")

    await stores.deployments.update(deployment.id, ask_for_ann)
    request = web_pb2.ApproveStageRequest(deployment_id=deployment.id, stage_id="s2")
    call = WebServiceStub(web_channel).ApproveStage(request, metadata=cookie(stranger))
    code, words = await outcome(call)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert "ann" not in words


async def test_a_stage_with_the_operation_skip_can_be_skipped_whatever_its_name(
    call_web: CallWeb, cases: UseCases, new_deployment: Callable[[], Deployment], piped: PipedCaller
) -> None:
    deployment = new_deployment()
    await cases.deployment_reports.create(deployment, by=piped)
    stage = PipelineStage(
        id="s9",
        name="SOAK",
        created_at=1,
        updated_at=1,
        available_operation=model.MANUAL_OPERATION_SKIP,
    )
    plan = piped_pb2.ReportDeploymentPlannedRequest(deployment_id=deployment.id, stages=[stage])
    await cases.deployment_reports.report_planned(plan, by=piped)
    request = web_pb2.SkipStageRequest(deployment_id=deployment.id, stage_id="s9")
    assert (await call_web("SkipStage", request)).command_id


async def test_the_next_call_of_a_disabled_piped_is_refused(
    connect: Connect, cases: UseCases, admin: User, registered: RegisteredPiped
) -> None:
    request = piped_pb2.GetDesiredVersionRequest()
    async with connect(piped_token("shop", registered.id, registered.key)) as channel:
        stub = PipedServiceStub(channel)
        assert (await outcome(stub.GetDesiredVersion(request)))[0] is OK
        await cases.pipeds.disable(registered.id, by=admin)
        code, _ = await outcome(stub.GetDesiredVersion(request))
    assert code is grpc.StatusCode.UNAUTHENTICATED
