# SPDX-License-Identifier: Apache-2.0
"""APIService over a real channel: the calls of pipectl, and errors."""

from collections.abc import Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import COMMAND_NOT_HANDLED_YET
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import deployment_control_pb2 as control
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.application_targets_pb2 import (
    AddApplicationToTargetsRequest,
    AddApplicationToTargetsResponse,
)
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.secrets import hybrid
from pipecd.wire.channel import API_SERVICE, extension_rpc

SERVICE = pb.DESCRIPTOR.services_by_name["APIService"]

READ_ONLY = {
    "GetApplication",
    "ListApplications",
    "GetDeployment",
    "ListDeployments",
    "ListStageLogs",
    "GetCommand",
    "GetPiped",
    "Encrypt",
}
OTHER_PROJECT_IS_DENIED = {
    "RenameApplicationConfigFile",
    "UpdateApplicationDeployTargets",
    "UpdatePiped",
    "EnablePiped",
    "DisablePiped",
    "GetPlanPreviewResults",
}
OF_THE_CALLER = {
    "ListApplications",
    "ListDeployments",
    "RegisterPiped",
    "RegisterEvent",
    "RequestPlanPreview",
}
RPCS = [rpc.name for rpc in SERVICE.methods]


async def test_an_application_is_added_disabled_with_its_deploy_targets(
    api_channel: grpc.aio.Channel, piped: PipedCaller
) -> None:
    request = AddApplicationToTargetsRequest(
        application=pb.AddApplicationRequest(
            name="web",
            piped_id=piped.piped,
            git_path=common.ApplicationGitPath(
                repo=common.ApplicationGitRepository(id="site"), path="apps/web"
            ),
        ),
        deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["dev"])},
        disabled=True,
    )
    add = extension_rpc(
        api_channel, API_SERVICE, "AddApplicationToTargets", AddApplicationToTargetsResponse
    )
    id = (await add(request)).application_id
    stub = APIServiceStub(api_channel)
    got = await stub.GetApplication(pb.GetApplicationRequest(application_id=id))
    assert got.application.disabled
    targets = got.application.deploy_targets_by_plugin
    assert {name: list(each.deploy_targets) for name, each in targets.items()} == {
        "kubernetes": ["dev"]
    }


async def test_an_application_from_registration_to_deletion(
    api_channel: grpc.aio.Channel, piped: PipedCaller, cases: UseCases
) -> None:
    stub = APIServiceStub(api_channel)
    path = common.ApplicationGitPath(
        repo=common.ApplicationGitRepository(id="site"), path="apps/web"
    )
    added = await stub.AddApplication(
        pb.AddApplicationRequest(
            name="web", piped_id=piped.piped, git_path=path, platform_provider="k8s"
        )
    )
    id = added.application_id
    sync = await stub.SyncApplication(pb.SyncApplicationRequest(application_id=id))
    command = (await stub.GetCommand(pb.GetCommandRequest(command_id=sync.command_id))).command
    assert (command.status, command.application_id) == (COMMAND_NOT_HANDLED_YET, id)
    path.config_filename = "web.yaml"
    await stub.UpdateApplication(
        pb.UpdateApplicationRequest(application_id=id, piped_id=piped.piped, git_path=path)
    )
    await stub.UpdateApplicationDeployTargets(
        pb.UpdateApplicationDeployTargetsRequest(
            application_id=id,
            deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["dev"])},
        )
    )
    await stub.RenameApplicationConfigFile(
        pb.RenameApplicationConfigFileRequest(application_ids=[id], new_filename="new.yaml")
    )
    await stub.DisableApplication(pb.DisableApplicationRequest(application_id=id))
    listed = await stub.ListApplications(pb.ListApplicationsRequest(disabled=True))
    assert [a.id for a in listed.applications] == [id]
    await stub.EnableApplication(pb.EnableApplicationRequest(application_id=id))
    listed = await stub.ListApplications(
        pb.ListApplicationsRequest(kind="KUBERNETES", name="web", limit=5)
    )
    (application,) = listed.applications
    assert application.git_path.config_filename == "new.yaml"
    assert application.deploy_targets_by_plugin["kubernetes"].deploy_targets == ["dev"]
    got = await stub.GetApplication(pb.GetApplicationRequest(application_id=id))
    assert got.application == application
    deleted = await stub.DeleteApplication(pb.DeleteApplicationRequest(application_id=id))
    assert deleted.application_id == id
    assert not (await stub.ListApplications(pb.ListApplicationsRequest())).applications
    assert await cases.applications.list_enabled(by=piped) == ()


async def test_deployments_and_their_logs_are_read(
    api_channel: grpc.aio.Channel,
    cases: UseCases,
    deployment: Deployment,
    piped: PipedCaller,
    new_deployment: Callable[[], Deployment],
) -> None:
    stub = APIServiceStub(api_channel)
    await cases.deployment_reports.create(new_deployment(), by=piped)
    planned = await stub.ListDeployments(
        pb.ListDeploymentsRequest(statuses=["DEPLOYMENT_PLANNED"], kinds=["KUBERNETES"])
    )
    assert [d.id for d in planned.deployments] == [deployment.id]
    page = await stub.ListDeployments(pb.ListDeploymentsRequest(limit=1))
    rest = await stub.ListDeployments(pb.ListDeploymentsRequest(limit=1, cursor=page.cursor))
    assert len({d.id for d in (*page.deployments, *rest.deployments)}) == 2
    nothing = await stub.ListDeployments(pb.ListDeploymentsRequest(statuses=[""], kinds=["", ""]))
    assert len(nothing.deployments) == 2
    block = LogBlock(index=1, log="hello", created_at=1)
    await cases.logs.append(StageRun(deployment.id, "s1"), [block], by=piped)
    logs = await stub.ListStageLogs(pb.ListStageLogsRequest(deployment_id=deployment.id))
    assert sorted(logs.stage_logs) == ["s1", "s2", "s3"]
    assert list(logs.stage_logs["s1"].blocks) == [block]
    got = await stub.GetDeployment(pb.GetDeploymentRequest(deployment_id=deployment.id))
    assert got.deployment.id == deployment.id
    part = await extension_rpc(
        api_channel, API_SERVICE, "GetStageLog", control.GetStageLogResponse
    )(control.GetStageLogRequest(deployment_id=deployment.id, stage_id="s1", offset_index=1))
    assert (list(part.blocks), part.has_more, part.completed) == ([block], False, False)


async def test_pipeds_events_plan_previews_and_encryption(
    api_channel: grpc.aio.Channel,
    cases: UseCases,
    spec_dir: Path,
    admin: User,
    advance: Callable[[float], None],
) -> None:
    stub = APIServiceStub(api_channel)
    made = await stub.RegisterPiped(pb.RegisterPipedRequest(name="edge", desc="d"))
    await stub.UpdatePiped(pb.UpdatePipedRequest(piped_id=made.id, name="edge2"))
    await stub.DisablePiped(pb.DisablePipedRequest(piped_id=made.id))
    await stub.EnablePiped(pb.EnablePipedRequest(piped_id=made.id))
    piped = (await stub.GetPiped(pb.GetPipedRequest(piped_id=made.id))).piped
    assert (piped.name, piped.keys[0].hash, piped.keys[0].creator) == ("edge2", "redacted", "ci")
    public = (spec_dir / "vectors" / "secret_public.pem").read_text()
    meta = ReportPipedMetaRequest(
        secret_encryption=Piped.SecretEncryption(type="KEY_PAIR", public_key=public),
        repositories=[common.ApplicationGitRepository(id="r", remote="git@h:o/r", branch="main")],
    )
    await cases.pipeds.report_meta(meta, by=PipedCaller("shop", made.id))
    sealed = await stub.Encrypt(pb.EncryptRequest(plaintext="secret", piped_id=made.id))
    private = (spec_dir / "vectors" / "secret_private.pem").read_bytes()
    assert hybrid.decrypt(private, sealed.ciphertext) == "secret"
    event = await stub.RegisterEvent(pb.RegisterEventRequest(name="n", data="d"))
    assert event.event_id
    requested = await stub.RequestPlanPreview(
        pb.RequestPlanPreviewRequest(
            repo_remote_url="git@h:o/r", head_branch="b", head_commit="c", base_branch="main"
        )
    )
    # The time in which pipeds reconnect, or start their plugins, has passed.
    advance(121)
    results = await stub.GetPlanPreviewResults(
        pb.GetPlanPreviewResultsRequest(commands=requested.commands)
    )
    assert [r.error for r in results.results] == ["Maybe Piped is offline currently."]
    del admin


async def refusal_of(
    channel: grpc.aio.Channel, name: str, request: Message
) -> grpc.aio.AioRpcError | None:
    try:
        await getattr(APIServiceStub(channel), name)(request)
    except grpc.aio.AioRpcError as e:
        return e
    return None


@pytest.mark.parametrize("name", [pytest.param(name, id=name) for name in RPCS])
async def test_a_read_only_api_key_cannot_write_with(
    read_only_channel: grpc.aio.Channel, minimal_message: Callable[[Message], Message], name: str
) -> None:
    refusal = await refusal_of(
        read_only_channel, name, minimal_message(getattr(pb, f"{name}Request")())
    )
    denied = refusal is not None and refusal.code() is grpc.StatusCode.PERMISSION_DENIED
    assert denied is (name not in READ_ONLY)
    if denied and refusal is not None:
        assert refusal.details() == "Permission denied"


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=name) for name in RPCS if name not in OF_THE_CALLER]
)
async def test_an_object_of_another_project_is_denied_by(
    api_channel: grpc.aio.Channel,
    cases: UseCases,
    stranger: User,
    minimal_message: Callable[[Message], Message],
    name: str,
) -> None:
    foreign = await foreign_things(cases, stranger)
    request = minimal_message(getattr(pb, f"{name}Request")())
    for field, value in foreign.items():
        if field in request.DESCRIPTOR.fields_by_name:
            setattr(request, field, value)
    match request:
        case pb.RenameApplicationConfigFileRequest():
            request.application_ids[:] = [foreign["application_id"]]
        case pb.GetPlanPreviewResultsRequest():
            request.commands.append(foreign["command_id"])
        case _:
            pass
    refusal = await refusal_of(api_channel, name, request)
    assert refusal is not None
    expected = (
        grpc.StatusCode.PERMISSION_DENIED
        if name in OTHER_PROJECT_IS_DENIED
        else grpc.StatusCode.INVALID_ARGUMENT
    )
    assert refusal.code() is expected
    assert "belong to your project" in str(refusal.details())


async def foreign_things(cases: UseCases, stranger: User) -> dict[str, str]:
    """An application, a deployment, a piped and a command of another project."""
    made = await cases.pipeds.register("theirs", "", by=stranger)
    piped = PipedCaller(stranger.project, made.id)
    repository = common.ApplicationGitRepository(id="r", remote="git@h:o/r", branch="main")
    await cases.pipeds.report_meta(ReportPipedMetaRequest(repositories=[repository]), by=piped)
    draft = Application(
        name="theirs",
        piped_id=made.id,
        git_path=common.ApplicationGitPath(repo=repository, path="apps/theirs"),
    )
    application = await cases.applications.add(draft, by=stranger)
    deployment = Deployment(
        id=new_id(),
        application_id=application,
        application_name="theirs",
        piped_id=made.id,
        project_id=stranger.project,
        git_path=draft.git_path,
    )
    deployment.trigger.timestamp = 1
    commit = deployment.trigger.commit
    commit.hash, commit.message, commit.author, commit.branch = "h", "m", "a", "b"
    commit.created_at = 1
    await cases.deployment_reports.create(deployment, by=piped)
    return {
        "application_id": application,
        "deployment_id": deployment.id,
        "piped_id": made.id,
        "command_id": await cases.applications.sync(application, by=stranger),
    }


@pytest.mark.parametrize(
    ("name", "request_", "code", "message"),
    [
        pytest.param(
            "ListApplications",
            pb.ListApplicationsRequest(kind="ECSApp"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "Invalid application kind",
            id="an unknown kind of applications",
        ),
        pytest.param(
            "ListDeployments",
            pb.ListDeploymentsRequest(statuses=["", "DONE"]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "DONE is invalid deployment status",
            id="an unknown status",
        ),
        pytest.param(
            "ListDeployments",
            pb.ListDeploymentsRequest(kinds=["X"]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "X is invalid application kind",
            id="an unknown kind of deployments",
        ),
        pytest.param(
            "GetApplication",
            pb.GetApplicationRequest(application_id="x"),
            grpc.StatusCode.NOT_FOUND,
            "Application is not found",
            id="an unknown application",
        ),
        pytest.param(
            "GetDeployment",
            pb.GetDeploymentRequest(deployment_id="x"),
            grpc.StatusCode.NOT_FOUND,
            "Deployment is not found",
            id="an unknown deployment",
        ),
        pytest.param(
            "GetCommand",
            pb.GetCommandRequest(command_id="x"),
            grpc.StatusCode.NOT_FOUND,
            "Command is not found",
            id="an unknown command",
        ),
        pytest.param(
            "GetPiped",
            pb.GetPipedRequest(piped_id="x"),
            grpc.StatusCode.NOT_FOUND,
            "Piped is not found",
            id="an unknown piped",
        ),
        pytest.param(
            "GetPiped",
            pb.GetPipedRequest(),
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid request: invalid GetPipedRequest.PipedId: "
            "value length must be at least 1 runes",
            id="a request that breaks a rule",
        ),
    ],
)
async def test_the_error_of(
    *,
    api_channel: grpc.aio.Channel,
    name: str,
    request_: Message,
    code: grpc.StatusCode,
    message: str,
) -> None:
    refusal = await refusal_of(api_channel, name, request_)
    assert refusal is not None
    assert (refusal.code(), refusal.details()) == (code, message)
