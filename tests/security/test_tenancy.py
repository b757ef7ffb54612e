# SPDX-License-Identifier: Apache-2.0
"""Tenancy: every read and write with the ids of another project, or of another piped of the project.

The requests are built from the descriptors: every field that holds an id gets that of the victim. A
row must be refused with the expected code, must show nothing of the victim, and must leave all of the
victim's documents as they were.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import httpx2
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pipecd.controlplane.api import api_service, piped_service, web_authorization
from pipecd.controlplane.api.rest import PREFIX as REST
from pipecd.controlplane.api.rest.routes import ROUTES
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.console.add_application_view import file_of
from pipecd.controlplane.console.page_context import BrowserSession
from pipecd.controlplane.datastore.stores import Stores
from pipecd.proto.model import deployment_pb2 as model
from pipecd.proto.model.common_pb2 import ApplicationInfo
from pipecd.secrets.session import session_id
from pipecd.wire.credentials import api_key, piped_token
from security.access_rules import API_SESSIONS
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.rpc_requests import fill_required
from servers.tenants import PipedObjects, Tenant, add_tenant

pytestmark = pytest.mark.slow

DENIED, INVALID, MISSING = "PERMISSION_DENIED", "INVALID_ARGUMENT", "NOT_FOUND"


@dataclass(frozen=True)
class Foreign:
    """An RPC that is called with foreign ids, and the code that refuses it."""

    rpc: str
    code: str


def rows(service: str, code: str, names: str, other: str = "another project") -> dict[str, Foreign]:
    return {f"{service}: {name} of {other}": Foreign(name, code) for name in names.split()}


PIPED_NAMES = """
    ReportApplicationSyncState ReportApplicationDeployingStatus ReportApplicationMostRecentDeployment
    GetApplicationMostRecentDeployment GetDeployment CreateDeployment ReportDeploymentPlanned ReportDeploymentStatusChanged
    ReportDeploymentCompleted SaveDeploymentMetadata SaveDeploymentSharedMetadata SaveDeploymentPluginMetadata SaveStageMetadata
    ReportStageLogs ReportStageLogsFromLastCheckpoint ReportStageStatusChanged ReportCommandHandled ReportApplicationLiveState
    GetLatestAnalysisResult PutLatestAnalysisResult UpdateApplicationConfigurations CreateDeploymentChain
    InChainDeploymentPlannable GetApplicationSharedObject PutApplicationSharedObject CreateDeploymentInOrder
    ReportDeploymentChanges
"""
ATTACKS_OF_PIPEDS = {
    **rows("piped", DENIED, PIPED_NAMES),
    **rows("piped", DENIED, "ReportEventStatuses"),
    **rows("piped", DENIED, PIPED_NAMES, "another piped"),
}
ATTACKS_OF_API_KEYS = {
    **rows(
        "API", INVALID,
        "SyncApplication GetApplication UpdateApplication DeleteApplication EnableApplication DisableApplication GetDeployment "
        "ListStageLogs GetCommand GetPiped Encrypt AddApplication",
    ),
    **rows("API", DENIED, "RenameApplicationConfigFile UpdateApplicationDeployTargets UpdatePiped EnablePiped DisablePiped GetPlanPreviewResults "
        "GetPlanPreviewPages CancelDeployment ApproveStage RejectStage SkipStage GetStageLog AddApplicationToTargets"),
    **rows("API", MISSING, "EndSession"),
}  # fmt: skip
ATTACKS_OF_USERS = rows(
    "web", DENIED,
    "UpdatePiped RecreatePipedKey DeleteOldPipedKeys EnablePiped DisablePiped GetPiped UpdatePipedDesiredVersion RestartPiped "
    "AddApplication UpdateApplication EnableApplication DisableApplication DeleteApplication SyncApplication GetApplication "
    "GenerateApplicationSealedSecret GetDeployment GetStageLog CancelDeployment SkipStage ApproveStage GetApplicationLiveState "
    "GetCommand DisableAPIKey GetDeploymentChain",
)  # fmt: skip
# RPCs whose requests name no object, or whose ids only narrow what they return of the own project.
WITHOUT_IDS = {
    "piped": """
        ReportStat ReportPipedMeta GetDesiredVersion ListApplications ListNotCompletedDeployments ListUnhandledCommands
        GetLatestEvent ListEvents ReportUnregisteredApplicationConfigurations ReportApplicationLiveStateEvents
        ListDeploymentsInOrder ListEventsInOrder AcquirePipedLease ReleasePipedLease ReportPluginFailures CallBatch
    """,
    "API": """
        ListApplications ListDeployments RegisterPiped RegisterEvent RequestPlanPreview ListSessions EndUserSessions
        EndAllSessions ListPipeds
    """,
    "web": """
        RegisterPiped ListPipeds ListReleasedVersions ListDeprecatedNotes ListApplications ListUnregisteredApplications
        ListDeployments ListDeploymentTraces GetProject UpdateProjectStaticAdmin EnableStaticAdmin DisableStaticAdmin
        UpdateProjectSSOConfig UpdateProjectRBACConfig GetMe AddProjectRBACRole UpdateProjectRBACRole DeleteProjectRBACRole
        AddProjectUserGroup DeleteProjectUserGroup GenerateAPIKey ListAPIKeys GetInsightData GetInsightApplicationCount
        ListDeploymentChains ListEvents
    """,
}
SERVICES = {
    "piped": (
        piped_service.SERVICE,
        piped_service.ORDERING,
        piped_service.LEASES,
        piped_service.BATCH,
        piped_service.CHANGES,
        piped_service.PLUGIN_FAILURES,
    ),
    "API": (
        api_service.SERVICE,
        api_service.CONTROL,
        api_service.SESSIONS,
        api_service.PREVIEW_PAGES,
        api_service.PIPED_LIST,
        api_service.APPLICATION_TARGETS,
    ),
    "web": (web_authorization.SERVICE,),
}
DECLARED = {"piped": ATTACKS_OF_PIPEDS, "API": ATTACKS_OF_API_KEYS, "web": ATTACKS_OF_USERS}
LISTS = {
    "piped": "ListApplications ListNotCompletedDeployments ListUnhandledCommands ListEvents ListDeploymentsInOrder",
    "API": "ListApplications ListDeployments ListSessions ListPipeds",
    "web": "ListPipeds ListApplications ListDeployments ListDeploymentTraces GetProject ListAPIKeys ListDeploymentChains ListEvents "
    "ListUnregisteredApplications",
}  # fmt: skip


@dataclass
class Installation:
    """Two projects of one control plane; `own` attacks, the others are the victims."""

    running: ServedControlPlane
    own: Tenant
    rival: Tenant
    chain: str
    rival_key_id: str
    rival_session: str
    channel: grpc.aio.Channel
    http: httpx2.AsyncClient

    def key_for(self, rpc: str) -> str:
        """The API key of the attacker's project that may call the RPC for its own objects."""
        return self.own.session_key if rpc in API_SESSIONS else self.own.api_key

    def metadata(self, service: str, rpc: str) -> tuple[tuple[str, str], ...]:
        piped = self.own.piped
        match service:
            case "piped":
                return (
                    ("authorization", piped_token(self.own.project, piped.caller.piped, piped.key)),
                )
            case "API":
                return (("authorization", api_key(self.key_for(rpc))),)
            case _:
                return (("cookie", f"token={self.token}"),)

    @property
    def token(self) -> str:
        return self.running.cases.sessions.issue(self.own.user("Admin"))


@pytest.fixture(scope="module")
async def installation(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    async with start_control_plane(tmp_path_factory.mktemp("plane")) as running:
        cases = running.cases
        await cases.projects.add("rival")
        own, rival = [await add_tenant(cases, name) for name in ("demo", "rival")]
        chain = await rival_chain(cases, rival)
        keys = await cases.api_keys.list(by=rival.user("Admin"))
        session = await cases.sessions.begin(rival.user("Admin"))
        async with (
            grpc.aio.insecure_channel(running.address) as channel,
            httpx2.AsyncClient(base_url=f"http://{running.address}", timeout=30) as http,
        ):
            yield Installation(running, own, rival, chain, keys[0].id, session, channel, http)


async def rival_chain(cases: Any, rival: Tenant) -> str:
    """A deployment chain of the victim."""
    piped = rival.piped.caller
    first = await cases.deployments.get(rival.piped.deployment, by=piped)
    first.id = "first-of-rival-chain"
    await cases.chains.create(first, [], by=piped)
    chains = await cases.chains.list(by=rival.user("Admin"))
    return chains.items[0].id


def aimed(rpc: str, message: Message, victim: PipedObjects, target: Installation) -> Message:
    """The smallest valid request with every id of the victim in it."""
    fill_required(message)
    ids = {
        **victim.ids,
        "deployment_chain_id": target.chain,
        "new_filename": "app.pipecd.yaml",
        "public_key": "k",
    }
    for field in message.DESCRIPTOR.fields:
        if field.name in ids:
            setattr(message, field.name, ids[field.name])
    match rpc:
        case "RecreatePipedKey":
            message.id = victim.caller.piped
        case "DisableAPIKey":
            message.id = target.rival_key_id
        case "EndSession":
            message.session_id = session_id(target.rival_session)
        case "GetDeployment" if "id" in message.DESCRIPTOR.fields_by_name:
            message.id = victim.deployment
        case _:
            aim_nested(rpc, message, victim)
    return message


def aim_nested(rpc: str, message: Any, victim: PipedObjects) -> None:
    """Sets ids in lists and inner messages."""
    match rpc:
        case "CreateDeployment":
            copy_ids(message.deployment, victim)
        case "CreateDeploymentInOrder":
            fill_required(message.deployment)
            copy_ids(message.deployment.deployment, victim)
        case "CreateDeploymentChain":
            copy_ids(message.first_deployment, victim)
        case "ReportApplicationLiveState":
            message.snapshot.application_id = victim.application
        case "UpdateApplicationConfigurations":
            del message.applications[:]
            message.applications.add(
                id=victim.application, name="stolen", repo_id="site", path="ab", piped_id="p"
            )
        case "ReportDeploymentCompleted":
            message.status = model.DEPLOYMENT_SUCCESS
        case "ReportEventStatuses":
            del message.events[:]
            message.events.add(id=victim.event, status=2, status_description="d")
        case "GetPlanPreviewResults" | "GetPlanPreviewPages":
            message.commands[:] = [victim.command]
        case "RenameApplicationConfigFile":
            message.application_ids[:] = [victim.application]
        case "UpdatePipedDesiredVersion":
            message.piped_ids[:] = [victim.caller.piped]
        case "AddApplication" | "AddApplicationToTargets":
            added = message if rpc == "AddApplication" else message.application
            added.name, added.piped_id = "stolen", victim.caller.piped
            added.git_path.repo.id, added.git_path.path = "site", "stolen"
        case _:
            pass


def copy_ids(deployment: model.Deployment, victim: PipedObjects) -> None:
    deployment.id = "stolen"
    deployment.application_id = victim.application
    deployment.piped_id, deployment.project_id = victim.caller.piped, victim.caller.project


async def documents(stores: Stores, victim: PipedObjects, tenant: Tenant) -> list[Any]:
    """Everything that is stored about the victim."""
    caller: PipedCaller = victim.caller
    return [
        await stores.projects.get(caller.project),
        await stores.pipeds.get(caller.piped),
        await stores.applications.get(victim.application),
        await stores.deployments.get(victim.deployment),
        await stores.commands.get(victim.command),
        await stores.events.get(victim.event),
        sorted(command.id for command in await stores.commands.list_unhandled(caller.piped)),
        sorted(d.id for d in await stores.deployments.list_not_completed(caller.piped)),
        [key for key in await stores.api_keys.list(tenant.project) if not key.disabled],
    ]


async def answer_of(
    installation: Installation, service: str, rpc: str, request: Message
) -> tuple[str, bytes]:
    name = SERVICES[service][0].full_name
    method: Any = installation.channel.unary_unary(f"/{name}/{rpc}")
    try:
        response: bytes = await method(
            request.SerializeToString(), metadata=installation.metadata(service, rpc), timeout=20
        )
    except grpc.aio.AioRpcError as e:
        return e.code().name, str(e.details()).encode()
    return "OK", response


def request_of(service: str, rpc: str) -> Message:
    method = next(m for s in SERVICES[service] for m in s.methods if m.name == rpc)
    return GetMessageClass(method.input_type)()


async def check(
    installation: Installation, service: str, row: Foreign, victim: PipedObjects, tenant: Tenant
) -> None:
    stores = installation.running.running.stores
    before = await documents(stores, victim, tenant)
    request = aimed(row.rpc, request_of(service, row.rpc), victim, installation)
    code, content = await answer_of(installation, service, row.rpc, request)
    assert await documents(stores, victim, tenant) == before
    assert await installation.running.cases.sessions.user(installation.rival_session)
    assert code == row.code, content
    assert f"{victim.caller.project}-".encode() not in content.replace(
        victim.deployment.encode(), b""
    )


@pytest.mark.parametrize("row", ATTACKS_OF_PIPEDS.values(), ids=ATTACKS_OF_PIPEDS)
async def test_a_piped_reaches_only_its_own(
    installation: Installation, row: Foreign, request: pytest.FixtureRequest
) -> None:
    is_sibling = "another piped" in request.node.callspec.id
    tenant = installation.own if is_sibling else installation.rival
    victim = installation.own.sibling if is_sibling else installation.rival.piped
    await check(installation, "piped", row, victim, tenant)


@pytest.mark.parametrize("row", ATTACKS_OF_API_KEYS.values(), ids=ATTACKS_OF_API_KEYS)
async def test_an_api_key_reaches_only_its_project(
    installation: Installation, row: Foreign
) -> None:
    await check(installation, "API", row, installation.rival.piped, installation.rival)


@pytest.mark.parametrize("row", ATTACKS_OF_USERS.values(), ids=ATTACKS_OF_USERS)
async def test_an_admin_reaches_only_their_project(
    installation: Installation, row: Foreign
) -> None:
    await check(installation, "web", row, installation.rival.piped, installation.rival)


@pytest.mark.parametrize("service", SERVICES)
def test_every_rpc_is_attacked_or_names_no_object(service: str) -> None:
    rpcs = {rpc.name for described in SERVICES[service] for rpc in described.methods}
    attacked = {row.rpc for row in DECLARED[service].values()}
    assert attacked | set(WITHOUT_IDS[service].split()) == rpcs
    assert not attacked & set(WITHOUT_IDS[service].split())


@pytest.mark.parametrize(
    ("service", "rpc"),
    [(service, rpc) for service, names in LISTS.items() for rpc in names.split()],
)
async def test_a_list_has_only_objects_of_the_own_project(
    installation: Installation, service: str, rpc: str
) -> None:
    code, content = await answer_of(
        installation, service, rpc, fill_required(request_of(service, rpc))
    )
    assert code == "OK", content
    assert b"rival" not in content


NARROWED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deployments of a foreign application": (
        "API",
        "ListDeployments",
        {"application_ids": ["{application}"]},
    ),
    "applications of a foreign piped": ("API", "ListApplications", {"piped_id": "{piped}"}),
    "a chart of a foreign application": (
        "web",
        "GetInsightData",
        {"application_id": "{application}"},
    ),
}
ATTACKS_BY_FILTERS = {f"filter: {name}": row for name, row in NARROWED.items()}


@pytest.mark.parametrize(
    ("service", "rpc", "fields"), ATTACKS_BY_FILTERS.values(), ids=ATTACKS_BY_FILTERS
)
async def test_a_filter_with_a_foreign_id_shows_nothing(
    installation: Installation, service: str, rpc: str, fields: dict[str, Any]
) -> None:
    victim = installation.rival.piped
    ids = {"application": victim.application, "piped": victim.caller.piped}
    request = fill_required(request_of(service, rpc))
    for name, value in fields.items():
        if isinstance(value, list):
            getattr(request, name).extend(text.format(**ids) for text in value)
        else:
            setattr(request, name, value.format(**ids))
    _, content = await answer_of(installation, service, rpc, request)
    assert b"rival-" not in content


ATTACKS_BY_REST = {
    f"REST: {route.method} {route.path}": route for route in ROUTES if route.path_fields
}


@pytest.mark.parametrize("route", ATTACKS_BY_REST.values(), ids=ATTACKS_BY_REST)
async def test_rest_reaches_only_the_own_project(installation: Installation, route: Any) -> None:
    victim, tenant = installation.rival.piped, installation.rival
    stores = installation.running.running.stores
    before = await documents(stores, victim, tenant)
    path = f"{REST.rstrip('/')}{route.path}"
    ids = {**victim.ids, "session_id": session_id(installation.rival_session)}
    for field in route.path_fields:
        path = path.replace(f"{{{field}}}", ids[field])
    content = {"name": "x", "plaintext": "x"} if route.rpc in ("UpdatePiped", "Encrypt") else {}
    content = {k: v for k, v in content.items() if k in route.descriptor.input_type.fields_by_name}
    answer = await installation.http.request(
        route.method,
        path,
        json=content if route.has_body else None,
        headers={"authorization": f"Bearer {installation.key_for(route.rpc)}"},
    )
    assert await documents(stores, victim, tenant) == before
    assert answer.status_code in ((404,) if route.rpc == "EndSession" else (400, 403)), answer.text
    assert "rival-" not in answer.text.replace(victim.deployment, "")


PAGES = {
    "the application": "GET /applications/{application_id}",
    "the live state": "GET /applications/{application_id}/live?res=x",
    "the deployment": "GET /deployments/{deployment_id}",
    "the log of a stage": "GET /deployments/{deployment_id}/stages/s1/log.txt",
    "the piped": "GET /settings/piped/{piped_id}",
    "the result of a command": "GET /applications?cmd={command_id}",
    "the form for a secret": "GET /applications/{application_id}/encrypt",
    "an encrypted secret": "POST /applications/{application_id}/encrypt",
    "a sync": "POST /applications/{application_id}/sync",
    "a cancellation": "POST /deployments/{deployment_id}/cancel",
    "an approval": "POST /deployments/{deployment_id}/stages/s1/approve",
    "a skipped stage": "POST /deployments/{deployment_id}/stages/s1/skip",
    "a rejection": "POST /deployments/{deployment_id}/stages/s1/reject",
    "the settings of the application": "GET /applications/{application_id}/settings",
    "moving the application": "POST /applications/{application_id}/settings/edit",
    "enabling the application": "POST /applications/{application_id}/settings/enable",
    "disabling the application": "POST /applications/{application_id}/settings/disable",
    "deleting the application": "POST /applications/{application_id}/settings/delete",
    "a restart": "POST /settings/piped/{piped_id}/restart",
    "a new key": "POST /settings/piped/{piped_id}/keys",
    "another name of the piped": "POST /settings/piped/{piped_id}/edit",
    "another version": "POST /settings/piped/{piped_id}/version",
    "enabling the piped": "POST /settings/piped/{piped_id}/enable",
    "disabling the piped": "POST /settings/piped/{piped_id}/disable",
    "dropping old keys": "POST /settings/piped/{piped_id}/keys/drop",
}
ATTACKS_ON_PAGES = {f"console: {name}": page for name, page in PAGES.items()}


@pytest.mark.parametrize("page", ATTACKS_ON_PAGES.values(), ids=ATTACKS_ON_PAGES)
async def test_a_page_shows_and_changes_only_the_own_project(
    installation: Installation, page: str
) -> None:
    victim, tenant, token = installation.rival.piped, installation.rival, installation.token
    stores = installation.running.running.stores
    before = await documents(stores, victim, tenant)
    method, _, path = page.format(**victim.ids).partition(" ")
    csrf = BrowserSession(installation.own.user("Admin"), token).csrf
    data = (
        {"csrf": csrf, "name": "stolen", "version": "v9", "secret": "s"}
        if method == "POST"
        else None
    )
    answer = await installation.http.request(
        method, path, headers={"cookie": f"token={token}"}, data=data
    )
    assert await documents(stores, victim, tenant) == before
    assert answer.status_code == (200 if "cmd=" in page else 403)
    assert "rival-" not in answer.text.replace(victim.deployment, "")


async def test_forms_about_several_applications_leave_those_of_others_alone(
    installation: Installation,
) -> None:
    victim, tenant, token = installation.rival.piped, installation.rival, installation.token
    stores = installation.running.running.stores
    unregistered = ApplicationInfo(
        piped_id=victim.caller.piped,
        repo_id="rival-repository",
        path="apps/rival-new",
        config_filename="app.pipecd.yaml",
        name="rival-new",
    )
    reports = installation.running.cases.application_reports
    await reports.report_unregistered([unregistered], by=victim.caller)
    before = await documents(stores, victim, tenant)
    csrf = BrowserSession(installation.own.user("Admin"), token).csrf
    for path, field, value in (
        ("/applications/sync", "id", victim.ids["application_id"]),
        ("/applications/enable", "id", victim.ids["application_id"]),
        ("/applications/disable", "id", victim.ids["application_id"]),
        ("/applications/add/several", "found", file_of(unregistered).anchor),
    ):
        answer = await installation.http.request(
            "POST",
            path,
            headers={"cookie": f"token={token}"},
            data={"csrf": csrf, field: value},
        )
        if answer.status_code == 303:
            answer = await installation.http.request(
                "GET", answer.headers["location"], headers={"cookie": f"token={token}"}
            )
        assert answer.status_code == 200
        assert "rival-" not in answer.text
        assert await documents(stores, victim, tenant) == before


async def test_the_owner_reaches_the_same_objects(installation: Installation) -> None:
    """So that the file does not pass by refusing everything."""
    own = installation.own.piped
    for service, rpc in (
        ("piped", "GetDeployment"),
        ("API", "GetApplication"),
        ("web", "GetPiped"),
    ):
        request = aimed(rpc, request_of(service, rpc), own, installation)
        code, content = await answer_of(installation, service, rpc, request)
        assert code == "OK", content
        assert b"demo-one" in content
