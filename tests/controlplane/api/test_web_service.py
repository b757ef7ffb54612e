# SPDX-License-Identifier: Apache-2.0
"""WebService over a real channel: the permission of every RPC, and its effects."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model import project_pb2 as project
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.service import web_pb2 as pb
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.web_pb2_grpc import WebServiceStub

WIRE = Path(__file__).parents[2] / "spec" / "wire.csv"
Cookie = Callable[[User], tuple[tuple[str, str], ...]]

READS = {("APPLICATION", "GET"), ("APPLICATION", "LIST"), ("DEPLOYMENT", "GET")} | {
    ("DEPLOYMENT", "LIST"),
    ("PIPED", "GET"),
    ("PIPED", "LIST"),
    ("PROJECT", "GET"),
    ("INSIGHT", "GET"),
    ("EVENT", "LIST"),
}


def may_call(role: str, rule: str) -> bool:
    """The permissions of the specification."""
    if role == "Admin" or rule in ("ignored", "ignored=true"):
        return True
    if not rule:
        # Upstream grants chains to no role; here every role that reads deployments reads them.
        return True
    resource, action = rule.split(":")
    may_edit = role == "Editor" and resource in ("APPLICATION", "DEPLOYMENT")
    return may_edit or (resource, action) in READS


def rows() -> list[tuple[str, str]]:
    with WIRE.open(newline="") as lines:
        return [
            (row["name"], row["rules"].removeprefix("rbac="))
            for row in csv.DictReader(lines)
            if row["kind"] == "rpc" and row["owner"] == "WebService"
        ]


async def code_of(call: Any, request: Message, metadata: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call(request, metadata=metadata)
    except grpc.aio.AioRpcError as e:
        return e.code(), e.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize(
    ("name", "rule"),
    [pytest.param(n, r, id=f"{n} needs {r or 'nothing known'}") for n, r in rows()],
)
async def test_which_roles_can_call(
    *,
    web_channel: grpc.aio.Channel,
    cookie: Cookie,
    admin: User,
    minimal_message: Callable[[Message], Message],
    name: str,
    rule: str,
) -> None:
    call = getattr(WebServiceStub(web_channel), name)
    request = minimal_message(getattr(pb, f"{name}Request")())
    for role in ("Viewer", "Editor", "Admin"):
        person = User(admin.project, "somebody", (role,))
        code, message = await code_of(call, request, cookie(person))
        if may_call(role, rule):
            assert code is not grpc.StatusCode.PERMISSION_DENIED
            assert code is not grpc.StatusCode.INTERNAL
        else:
            assert (code, message) == (grpc.StatusCode.PERMISSION_DENIED, "Permission Denied")
    nobody = User(admin.project, "somebody", ("Nobody",))
    code, _ = await code_of(call, request, cookie(nobody))
    assert code is grpc.StatusCode.PERMISSION_DENIED


async def test_the_permission_is_checked_before_the_request_is_validated(
    web_channel: grpc.aio.Channel, cookie: Cookie, viewer: User, admin: User
) -> None:
    call = WebServiceStub(web_channel).UpdateProjectStaticAdmin
    code, message = await code_of(call, pb.UpdateProjectStaticAdminRequest(), cookie(viewer))
    assert (code, message) == (grpc.StatusCode.PERMISSION_DENIED, "Permission Denied")
    code, message = await code_of(call, pb.UpdateProjectStaticAdminRequest(), cookie(admin))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param((), id="no cookie"),
        pytest.param((("cookie", "a=b; no-equals-sign; ; =x"),), id="no token among the cookies"),
        pytest.param((("cookie", "token=eyJhbGciOiJub25lIn0.e30."),), id="an unsigned token"),
        pytest.param((("authorization", "API-KEY a.b"),), id="an API key"),
    ],
)
async def test_a_call_without_a_session_is_refused_with(
    web_channel: grpc.aio.Channel, metadata: tuple[tuple[str, str], ...]
) -> None:
    call = WebServiceStub(web_channel).GetMe
    code, message = await code_of(call, pb.GetMeRequest(), metadata)
    assert (code, message) == (grpc.StatusCode.UNAUTHENTICATED, "Unauthenticated")


@pytest.fixture
def ask(web_channel: grpc.aio.Channel, cookie: Cookie, admin: User) -> Callable[..., Any]:
    """Calls an RPC as an admin."""

    def call(rpc: str, /, **fields: Any) -> Any:
        request = getattr(pb, f"{rpc}Request")(**fields)
        return getattr(WebServiceStub(web_channel), rpc)(request, metadata=cookie(admin))

    return call


async def test_applications(ask: Callable[..., Any], application: Application, admin: User) -> None:
    me = await ask("GetMe")
    assert (me.subject, me.project_id) == (admin.name, "shop")
    added = await ask(
        "AddApplication",
        name="web",
        piped_id=application.piped_id,
        git_path=application.git_path,
        kind=common.KUBERNETES,
        labels={"env": "prod"},
    )
    await ask(
        "UpdateApplication",
        application_id=added.application_id,
        name="ignored",
        piped_id=application.piped_id,
        config_filename="x.yaml",
    )
    listed = await ask("ListApplications", options={"labels": {"env": "prod"}})
    assert [a.git_path.config_filename for a in listed.applications] == ["x.yaml"]
    assert len((await ask("ListApplications")).applications) == 2
    await ask("DisableApplication", application_id=application.id)
    enabled = await ask("ListApplications", options={"enabled": {"value": True}})
    assert [a.id for a in enabled.applications] == [added.application_id]
    await ask("EnableApplication", application_id=application.id)
    command = await ask("SyncApplication", application_id=application.id, sync_strategy=1)
    got = await ask("GetCommand", command_id=command.command_id)
    assert (got.command.commander, got.command.sync_application.sync_strategy) == (admin.name, 1)
    await ask("DeleteApplication", application_id=application.id)
    assert (await ask("GetApplication", application_id=application.id)).application.deleted
    assert not (await ask("ListUnregisteredApplications")).applications


async def test_deployments(
    ask: Callable[..., Any],
    cases: UseCases,
    deployment: Deployment,
    piped: PipedCaller,
    admin: User,
) -> None:
    listed = await ask("ListDeployments", options={"application_ids": [deployment.application_id]})
    assert [d.id for d in listed.deployments] == [deployment.id]
    assert not (await ask("ListDeployments", page_min_updated_at=2**40)).deployments
    block = LogBlock(index=7, log="x", created_at=1)
    await cases.logs.append(StageRun(deployment.id, "s1"), [block], by=piped)
    log = await ask("GetStageLog", deployment_id=deployment.id, stage_id="s1", offset_index=8)
    assert (len(log.blocks), log.completed) == (0, False)
    log = await ask("GetStageLog", deployment_id=deployment.id, stage_id="s1")
    assert list(log.blocks) == [block]
    assert (await ask("ApproveStage", deployment_id=deployment.id, stage_id="s2")).command_id
    assert (await ask("SkipStage", deployment_id=deployment.id, stage_id="s3")).command_id
    assert (await ask("CancelDeployment", deployment_id=deployment.id)).command_id
    kinds = [c.type for c in await cases.commands.list_unhandled(by=piped)]
    assert sorted(kinds) == [2, 3, 6]
    event = RegisterEventRequest(name="n", data="d", commit_hash="h", commit_url="https://u")
    await cases.events.register(event, by=admin)
    (trace,) = (await ask("ListDeploymentTraces")).traces
    assert trace.trace.commit_hash == "h"
    (event,) = (await ask("ListEvents")).events
    assert event.data == "d"
    assert not (await ask("ListDeploymentChains")).deployment_chains
    got = await ask("GetDeployment", deployment_id=deployment.id)
    assert got.deployment.id == deployment.id


async def test_pipeds(ask: Callable[..., Any]) -> None:
    made = await ask("RegisterPiped", name="edge", desc="d")
    second = await ask("RecreatePipedKey", id=made.id)
    assert len({made.key, second.key}) == 2
    await ask("DeleteOldPipedKeys", piped_id=made.id)
    await ask("UpdatePiped", piped_id=made.id, name="edge2")
    await ask("UpdatePipedDesiredVersion", version="v1.2.3", piped_ids=[made.id])
    assert (await ask("RestartPiped", piped_id=made.id)).command_id
    await ask("DisablePiped", piped_id=made.id)
    off = await ask("ListPipeds", with_status=True, options={"enabled": {"value": False}})
    assert [(p.name, p.status) for p in off.pipeds] == [("edge2", Piped.OFFLINE)]
    await ask("EnablePiped", piped_id=made.id)
    piped = (await ask("GetPiped", piped_id=made.id)).piped
    assert ([k.hash for k in piped.keys], piped.desired_version) == (["redacted"], "v1.2.3")


async def test_an_sso_configuration_of_upstreams_console_is_stored(
    ask: Callable[..., Any], stores: Stores
) -> None:
    """Upstream's console sends no session_ttl, which upstream's own server refuses."""
    await ask("UpdateProjectSSOConfig", sso={"github": {"client_id": "i", "client_secret": "s"}})
    stored = (await stores.projects.get("shop")).sso
    assert (stored.session_ttl, stored.github.client_id == "i") == (168, False)
    oidc = {"client_id": "i", "client_secret": "s", "issuer": "https://i", "scopes": ["a", "b"]}
    sso = {"provider": project.ProjectSSOConfig.OIDC, "session_ttl": 8, "oidc": oidc}
    await ask("UpdateProjectSSOConfig", sso=sso)
    stored = (await stores.projects.get("shop")).sso
    assert (stored.provider, stored.session_ttl) == (project.ProjectSSOConfig.OIDC, 8)
    assert (stored.oidc.issuer, list(stored.oidc.scopes)) == ("https://i", ["a", "b"])
    shown = (await ask("GetProject")).project.sso.oidc
    assert (shown.client_secret, shown.issuer) == ("redacted", "https://i")


@pytest.mark.parametrize(
    ("sso", "error_text"),
    [
        pytest.param(
            {"session_ttl": -1},
            "SessionTtl: value must be greater than 0",
            id="a negative session_ttl",
        ),
        pytest.param({"provider": 2}, "provider GOOGLE is not supported", id="Google"),
        pytest.param({"provider": 0}, "github needs a client id", id="GitHub without a client"),
        pytest.param(
            {"provider": 3, "oidc": {"client_id": "i", "client_secret": "s", "issuer": "x"}},
            "the issuer of oidc is not a URL",
            id="an issuer that is not a URL",
        ),
    ],
)
async def test_an_sso_configuration_is_refused_with(
    ask: Callable[..., Any], stores: Stores, sso: dict[str, Any], error_text: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await ask("UpdateProjectSSOConfig", sso=sso)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error_text in (refused.value.details() or "")
    assert not (await stores.projects.get("shop")).HasField("sso")


async def test_the_project(ask: Callable[..., Any]) -> None:
    await ask("UpdateProjectStaticAdmin", username="boss", password="long enough")
    await ask(
        "UpdateProjectSSOConfig",
        sso={"session_ttl": 5, "github": {"client_id": "i", "client_secret": "s"}},
    )
    await ask("UpdateProjectRBACConfig", rbac={"admin": "org/admins"})
    await ask("DisableStaticAdmin")
    await ask("EnableStaticAdmin")
    policy = project.ProjectRBACPolicy(
        resources=[project.ProjectRBACResource()], actions=[project.ProjectRBACPolicy.GET]
    )
    await ask("AddProjectRBACRole", name="reader", policies=[policy])
    await ask("UpdateProjectRBACRole", name="reader", policies=[policy, policy])
    await ask("AddProjectUserGroup", sso_group="org/readers", role="reader")
    shown = (await ask("GetProject")).project
    assert shown.static_admin.username == "boss"
    assert shown.sso.github.client_secret == "redacted"
    assert [r.name for r in shown.rbac_roles] == ["Admin", "Editor", "Viewer", "reader"]
    assert [g.sso_group for g in shown.user_groups] == ["org/admins", "org/readers"]
    await ask("DeleteProjectUserGroup", sso_group="org/admins")
    await ask("DeleteProjectRBACRole", name="reader")


async def test_api_keys(ask: Callable[..., Any], cases: UseCases) -> None:
    key = (await ask("GenerateAPIKey", name="ci", role=APIKey.READ_WRITE)).key
    caller = await cases.api_keys.verify(key)
    (listed,) = (await ask("ListAPIKeys", options={"enabled": {"value": True}})).keys
    assert (listed.id, listed.key_hash, listed.last_used_at > 0) == (
        caller.key_id,
        "redacted",
        True,
    )
    await ask("DisableAPIKey", id=caller.key_id)
    assert not (await ask("ListAPIKeys", options={"enabled": {"value": True}})).keys


async def test_an_object_of_another_project_is_denied(
    web_channel: grpc.aio.Channel,
    cookie: Cookie,
    stranger: User,
    deployment: Deployment,
    minimal_message: Callable[[Message], Message],
) -> None:
    ids = {
        "application_id": deployment.application_id,
        "deployment_id": deployment.id,
        "piped_id": deployment.piped_id,
        "id": deployment.piped_id,
    }
    for name, rule in rows():
        request = minimal_message(getattr(pb, f"{name}Request")())
        aimed = [f for f in ids if f in request.DESCRIPTOR.fields_by_name]
        if not aimed or rule.startswith("API_KEY"):
            continue
        for field in aimed:
            setattr(request, field, ids[field])
        call = getattr(WebServiceStub(web_channel), name)
        code, message = await code_of(call, request, cookie(stranger))
        assert (name, code) == (name, grpc.StatusCode.PERMISSION_DENIED)
        assert "does not belong to your project" in message
