# SPDX-License-Identifier: Apache-2.0
"""RBAC: every RPC, REST route and page of a whole control plane, called by the wrong caller.

The RPCs come from the tables that the servers use, the routes from the applications themselves. One
that is not declared below fails the first tests, so that a new one cannot be forgotten. A row sweeps
all endpoints of one kind with one caller, and every answer must be exactly the expected one.
"""

import base64
import json
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import grpc
import grpc.aio
import httpx2
import jwt
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from fuzz.wire import console_pages
from pipecd.controlplane.api.api_service import api_table
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.api.rest import PREFIX as REST
from pipecd.controlplane.api.rest.routes import ROUTES
from pipecd.controlplane.api.web_service import web_table
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.page_context import BrowserSession
from pipecd.model.ids import new_id
from pipecd.observe.telemetry import OTLP_EXPORT_METHOD
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.service import (
    api_pb2,
    application_targets_pb2,
    batch_pb2,
    deployment_changes_pb2,
    deployment_control_pb2,
    lease_pb2,
    ordering_pb2,
    piped_list_pb2,
    piped_pb2,
    plan_preview_pages_pb2,
    pluginfailures_pb2,
    session_control_pb2,
    wakeups_pb2,
    web_pb2,
)
from pipecd.secrets import session
from pipecd.wire.credentials import api_key, piped_token
from pipecd.wire.table import FORMER_PREFIX, PREFIX
from security.access_rules import (
    ADMIN_FORMS,
    ADMIN_PAGES,
    API_READING,
    API_SESSIONS,
    API_WRITING,
    EDITOR_FORMS,
    PIPED_RPCS,
    PUBLIC_PAGES,
    SERVED_AS,
    VIEWER_PAGES,
    WEB_ADMIN,
    WEB_EDITOR,
    WEB_VIEWER,
)
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.rpc_requests import fill_required
from servers.tenants import Tenant, add_tenant, new_deployment

pytestmark = pytest.mark.slow

REQUESTS: Mapping[str, type[Message]] = {
    f"{service.full_name}/{rpc.name}": GetMessageClass(rpc.input_type)
    for module in (
        piped_pb2,
        batch_pb2,
        deployment_changes_pb2,
        deployment_control_pb2,
        lease_pb2,
        ordering_pb2,
        application_targets_pb2,
        piped_list_pb2,
        plan_preview_pages_pb2,
        pluginfailures_pb2,
        session_control_pb2,
        wakeups_pb2,
        api_pb2,
        web_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
}

UNAUTHENTICATED, DENIED = "UNAUTHENTICATED", "PERMISSION_DENIED"
REFUSALS = (UNAUTHENTICATED, DENIED)
NUMBERS = {str(cast("int", code.value[0])): code.name for code in grpc.StatusCode}
# The calls of the audit by hand.
MIN_CALLS = 1_092


@dataclass
class Planes:
    """A control plane with two projects, and clients without credentials."""

    running: ServedControlPlane
    own: Tenant
    other: Tenant
    chain: str
    preview: str
    channel: grpc.aio.Channel
    http: httpx2.AsyncClient

    def session(self, user: User) -> str:
        return self.running.cases.sessions.issue(user)


@pytest.fixture(scope="module")
async def planes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Planes]:
    async with start_control_plane(tmp_path_factory.mktemp("plane")) as running:
        await running.cases.projects.add("rival")
        own, other = [await add_tenant(running.cases, name) for name in ("demo", "rival")]
        application = await running.running.stores.applications.get(own.piped.application)
        first = new_deployment(application, "first-of-chain")
        await running.cases.chains.create(first, [], by=own.piped.caller)
        preview = await running.cases.commands.add(
            Command(
                project_id="demo",
                piped_id=own.piped.caller.piped,
                type=Command.BUILD_PLAN_PREVIEW,
            )
        )
        url = f"http://{running.address}"
        async with (
            grpc.aio.insecure_channel(running.address) as channel,
            httpx2.AsyncClient(base_url=url, timeout=30) as http,
        ):
            yield Planes(running, own, other, first.deployment_chain_id, preview, channel, http)


def claims(plane: Planes, **changed: Any) -> dict[str, Any]:
    token = plane.session(plane.own.user("Admin"))
    return {**jwt.decode(token, options={"verify_signature": False}), **changed}


def unsigned(plane: Planes) -> str:
    parts = ({"alg": "none", "typ": "JWT"}, claims(plane))
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts
        )
        + "."
    )


def expired(plane: Planes) -> str:
    past = datetime.now(UTC) - timedelta(days=30)
    user = plane.own.user("Admin")
    return session.sign(
        session.Session(user.name, user.project, user.roles, "", int(past.timestamp()) - 9, int(past.timestamp()), "sso"),
        b"k" * 32,
    )  # fmt: skip


Metadata = tuple[tuple[str, str], ...]
Caller = Callable[[Planes], Metadata]


def authorization(text: str) -> Metadata:
    return (("authorization", text),)


def cookie(token: str) -> Metadata:
    return (("cookie", f"token={token}"),)


def own_piped(plane: Planes) -> Metadata:
    piped = plane.own.piped
    return authorization(piped_token("demo", piped.caller.piped, piped.key))


def role(*roles: str) -> Caller:
    return lambda plane: cookie(plane.session(plane.own.user(*roles)))


def forged(**changed: Any) -> Caller:
    return lambda plane: cookie(jwt.encode(claims(plane, **changed), b"another key" * 4, "HS256"))


# Callers with nothing that is valid for any service.
NOBODIES: dict[str, Caller] = {
    "no credentials": lambda _: (),
    "an empty authorization": lambda _: authorization(""),
    "a scheme without a key": lambda _: authorization("PIPED-TOKEN"),
    "a wrong key of a piped": lambda p: authorization(piped_token("demo", p.own.sibling.caller.piped, "x" * 50)),
    "a piped in a project that is not its own": lambda p: authorization(
        piped_token("rival", p.own.piped.caller.piped, p.own.piped.key)
    ),
    "a key of another piped": lambda p: authorization(
        piped_token("demo", p.own.sibling.caller.piped, p.own.piped.key)
    ),
    "a piped's key sent as an API key": lambda p: authorization(api_key(p.own.piped.key)),
    "an API key sent as a piped's": lambda p: authorization(
        piped_token("demo", p.own.piped.caller.piped, p.own.api_key)
    ),
    "an API key without its last character": lambda p: authorization(api_key(p.own.api_key[:-1])),
    "an API key in a cookie": lambda p: cookie(p.own.api_key),
    "a session sent as an API key": lambda p: authorization(api_key(p.session(p.own.user("Admin")))),
    "a session sent as a bearer token": lambda p: authorization(f"Bearer {p.session(p.own.user('Admin'))}"),
    "a session signed with another key": forged(),
    "a session without a signature": lambda p: cookie(unsigned(p)),
    "an expired session": lambda p: cookie(expired(p)),
    "a session of a project that does not exist": lambda p: cookie(p.session(User("gone", "ann", ("Admin",)))),
}  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """All endpoints of a service, called by one caller."""

    service: str
    caller: Caller
    allowed: frozenset[str] = frozenset()
    refusal: str = UNAUTHENTICATED


def sweeps() -> dict[str, Sweep]:
    """Every service with every caller that it must refuse, for some or all of its RPCs."""
    read_only: Caller = lambda p: authorization(api_key(p.own.read_only_key))  # noqa: E731
    own_key: Caller = lambda p: authorization(api_key(p.own.api_key))  # noqa: E731
    approving: Caller = lambda p: authorization(api_key(p.own.approving_key))  # noqa: E731
    sessions: Caller = lambda p: authorization(api_key(p.own.session_key))  # noqa: E731
    wrong_kinds: dict[str, dict[str, Caller]] = {
        "PipedService": {"an API key": own_key, "a read-only API key": read_only, "the session of an admin": role("Admin")},
        "APIService": {"a piped": own_piped, "the session of an admin": role("Admin")},
        "WebService": {"a piped": own_piped, "an API key": own_key},
    }  # fmt: skip
    made = {
        f"{service}: {name}": Sweep(service, caller)
        for service, callers in wrong_kinds.items()
        for name, caller in {**NOBODIES, **callers}.items()
    }
    web: dict[str, tuple[Caller, frozenset[str]]] = {
        "a user without a role": (role(), frozenset()),
        "a user with a role that does not exist": (role("Owner"), frozenset()),
        "a role in another case": (role("admin"), frozenset()),
        "a viewer": (role("Viewer"), WEB_VIEWER),
        "an editor": (role("Editor"), WEB_VIEWER | WEB_EDITOR),
        "a viewer who is also an editor": (role("Viewer", "Editor"), WEB_VIEWER | WEB_EDITOR),
    }
    made |= {
        f"WebService: {name}": Sweep("WebService", caller, allowed, DENIED)
        for name, (caller, allowed) in web.items()
    }
    keys: dict[str, tuple[Caller, frozenset[str]]] = {
        "a read-only API key": (read_only, API_READING),
        "a read-write API key": (own_key, API_READING | API_WRITING),
        "an API key that approves": (approving, API_READING | API_WRITING),
        "an API key that manages sessions": (sessions, API_READING | API_SESSIONS),
    }
    made |= {
        f"APIService: {name}": Sweep("APIService", caller, allowed, DENIED)
        for name, (caller, allowed) in keys.items()
    }
    return made


ATTACKS = sweeps()


def rpcs_of(plane: Planes, service: str) -> dict[str, type[Message]]:
    """The RPCs that the server has, with their requests."""
    cases = plane.running.cases
    tables: dict[str, Any] = {
        "PipedService": piped_table,
        "APIService": api_table,
        "WebService": web_table,
    }
    table = tables[service](cases)
    names = {*table._unary, *table._streams, *table._unimplemented}
    served = {
        f"{SERVED_AS.get(full.rpartition('/')[0], full.rpartition('/')[0])}/{full.rpartition('/')[2]}": request
        for full, request in REQUESTS.items()
    }
    return {name: served[f"{table.service_name}/{name}"] for name in names}


DECLARED = {
    "PipedService": PIPED_RPCS,
    "APIService": API_READING | API_WRITING | API_SESSIONS,
    "WebService": WEB_VIEWER | WEB_EDITOR | WEB_ADMIN,
}
FULL_NAMES = {
    "PipedService": "pipedservice.PipedService",
    "APIService": "apiservice.APIService",
    "WebService": "webservice.WebService",
}


@pytest.mark.parametrize("service", DECLARED)
def test_every_rpc_has_a_declared_rule(planes: Planes, service: str) -> None:
    assert set(rpcs_of(planes, service)) == DECLARED[service]


def test_every_page_has_a_declared_rule(planes: Planes) -> None:
    pages = {f"{method} {path}" for method, path in console_pages(planes.running)}
    assert pages == PUBLIC_PAGES | VIEWER_PAGES | EDITOR_FORMS | ADMIN_PAGES | ADMIN_FORMS


def test_every_rest_route_calls_a_declared_rpc() -> None:
    assert {route.rpc for route in ROUTES} == DECLARED["APIService"]


async def grpc_code(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return e.code().name
    return "OK"


async def first_message(stream: Any) -> None:
    await stream.read()
    stream.cancel()


async def call_grpc(plane: Planes, path: str, request: bytes, metadata: Metadata) -> str:
    if path.endswith("/WatchWakeups"):
        return await grpc_code(
            first_message(plane.channel.unary_stream(path)(request, metadata=metadata, timeout=20))
        )
    method: Any = plane.channel.unary_unary(path)
    return await grpc_code(method(request, metadata=metadata, timeout=20))


async def call_grpc_web(plane: Planes, path: str, request: bytes, metadata: Metadata) -> str:
    frame = struct.pack(">BI", 0, len(request)) + request
    headers = {"content-type": "application/grpc-web+proto", **dict(metadata)}
    answer = await plane.http.post(path, content=frame, headers=headers)
    status = answer.content.rpartition(b"grpc-status:")[2].partition(b"\r\n")[0].strip().decode()
    return NUMBERS.get(status, f"HTTP {answer.status_code}")


@pytest.mark.parametrize("sweep", ATTACKS.values(), ids=ATTACKS)
async def test_the_wrong_caller_is_refused_by_every_rpc(planes: Planes, sweep: Sweep) -> None:
    wrong: dict[str, str] = {}
    for name, request_type in rpcs_of(planes, sweep.service).items():
        request = fill_required(request_type()).SerializeToString()
        path = f"/{PREFIX}{FULL_NAMES[sweep.service]}/{name}"
        calls = [call_grpc, call_grpc_web] if sweep.service == "WebService" else [call_grpc]
        for call in calls:
            code = await call(planes, path, request, sweep.caller(planes))
            is_right = code not in REFUSALS if name in sweep.allowed else code == sweep.refusal
            if not is_right or code in ("INTERNAL", "UNKNOWN"):
                wrong[f"{call.__name__} {path}"] = code
    assert wrong == {}


@pytest.mark.parametrize("service", DECLARED)
async def test_the_former_names_of_services_need_credentials_too(
    planes: Planes, service: str
) -> None:
    for name, request_type in rpcs_of(planes, service).items():
        request = fill_required(request_type()).SerializeToString()
        path = f"/{FORMER_PREFIX}{FULL_NAMES[service]}/{name}"
        assert await call_grpc(planes, path, request, ()) == UNAUTHENTICATED, path


async def test_without_credentials_only_the_health_is_told(planes: Planes) -> None:
    assert await call_grpc(planes, "/grpc.health.v1.Health/Check", b"", ()) == "OK"
    for path in (
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/envoy.service.auth.v3.Authorization/Check",
    ):
        assert await call_grpc(planes, path, b"", ()) == "UNIMPLEMENTED", path


async def test_the_services_of_programs_are_not_served_to_browsers(planes: Planes) -> None:
    """A session cookie that a browser sends along must not reach the other two services."""
    for service in ("PipedService", "APIService"):
        for name in DECLARED[service]:
            path = f"/{PREFIX}{FULL_NAMES[service]}/{name}"
            code = await call_grpc_web(planes, path, b"", role("Admin")(planes))
            assert code in ("HTTP 404", "HTTP 405"), path


ALLOWED: dict[str, tuple[str, Caller]] = {
    "a piped": ("PipedService", own_piped),
    "an API key": ("APIService", lambda p: authorization(api_key(p.own.api_key))),
}


@pytest.mark.parametrize(("service", "caller"), ALLOWED.values(), ids=ALLOWED)
async def test_the_right_caller_is_let_in_by_every_rpc(
    planes: Planes, service: str, caller: Caller
) -> None:
    for name, request_type in rpcs_of(planes, service).items():
        request = fill_required(request_type()).SerializeToString()
        code = await call_grpc(
            planes, f"/{PREFIX}{FULL_NAMES[service]}/{name}", request, caller(planes)
        )
        # Without ids of its own objects it is not told to be unauthenticated.
        assert code != UNAUTHENTICATED, name


async def test_an_admin_may_call_every_rpc(planes: Planes) -> None:
    """The project of the test is another one, because these calls change it."""
    for name, request_type in rpcs_of(planes, "WebService").items():
        request = fill_required(request_type()).SerializeToString()
        admin = cookie(planes.session(planes.other.user("Admin")))
        code = await call_grpc(
            planes, f"/{PREFIX}{FULL_NAMES['WebService']}/{name}", request, admin
        )
        assert code not in (*REFUSALS, "INTERNAL", "UNKNOWN"), name


@pytest.mark.parametrize("name", NOBODIES)
async def test_only_pipeds_send_traces(planes: Planes, name: str) -> None:
    code = await call_grpc(planes, OTLP_EXPORT_METHOD, b"", NOBODIES[name](planes))
    has_header = any(key == "authorization" and value for key, value in NOBODIES[name](planes))
    assert code == (DENIED if has_header else UNAUTHENTICATED)


@dataclass(frozen=True)
class RestCaller:
    """Headers and query of a caller of the REST API."""

    headers: Callable[[Planes], Mapping[str, str]]
    query: Callable[[Planes], Mapping[str, str]] = lambda _: {}
    allowed: frozenset[str] = frozenset()
    status: int = 401


def bearer(key: Callable[[Planes], str]) -> Callable[[Planes], Mapping[str, str]]:
    return lambda plane: {"authorization": f"Bearer {key(plane)}"}


ATTACKS_BY_REST: dict[str, RestCaller] = {
    "REST: no credentials": RestCaller(lambda _: {}),
    "REST: a piped's key": RestCaller(bearer(lambda p: p.own.piped.key)),
    "REST: a piped's token": RestCaller(lambda p: dict(own_piped(p))),
    "REST: the cookie of an admin": RestCaller(lambda p: dict(role("Admin")(p))),
    "REST: the session of an admin": RestCaller(bearer(lambda p: p.session(p.own.user("Admin")))),
    "REST: a cut API key": RestCaller(bearer(lambda p: p.own.api_key[:-1])),
    "REST: an API key in the query": RestCaller(
        lambda _: {}, lambda p: {"key": p.own.api_key, "authorization": f"Bearer {p.own.api_key}"}
    ),
    "REST: a read-only API key": RestCaller(
        bearer(lambda p: p.own.read_only_key), allowed=API_READING, status=403
    ),
    "REST: a read-write API key": RestCaller(
        bearer(lambda p: p.own.api_key), allowed=API_READING | API_WRITING, status=403
    ),
    "REST: an API key that manages sessions": RestCaller(
        bearer(lambda p: p.own.session_key), allowed=API_READING | API_SESSIONS, status=403
    ),
}


@pytest.mark.parametrize("caller", ATTACKS_BY_REST.values(), ids=ATTACKS_BY_REST)
async def test_the_wrong_caller_is_refused_by_every_rest_route(
    planes: Planes, caller: RestCaller
) -> None:
    wrong: dict[str, int] = {}
    for route in ROUTES:
        path = f"{REST.rstrip('/')}{route.path}"
        for field in route.path_fields:
            path = path.replace(f"{{{field}}}", "x")
        message = fill_required(GetMessageClass(route.descriptor.input_type)())
        body = json_format.MessageToJson(message) if route.has_body else ""
        status = (
            await planes.http.request(
                route.method,
                path,
                headers=caller.headers(planes),
                params=caller.query(planes),
                content=body,
            )
        ).status_code
        is_right = (
            status not in (401, 403) if route.rpc in caller.allowed else status == caller.status
        )
        if not is_right or status >= 500:
            wrong[f"{route.method} {path}"] = status
    assert wrong == {}


@dataclass(frozen=True)
class Visitor:
    """A visitor of the console; `csrf` tells whether its forms carry the token of its session."""

    token: Callable[[Planes], str]
    allowed: frozenset[str] = frozenset()
    csrf: bool = True
    is_signed_in: bool = True


def user(*roles: str) -> Callable[[Planes], str]:
    return lambda plane: plane.session(plane.own.user(*roles))


ATTACKS_ON_PAGES: dict[str, Visitor] = {
    "console: nobody is signed in": Visitor(lambda _: "", is_signed_in=False),
    "console: an expired session": Visitor(expired, is_signed_in=False),
    "console: an unsigned session": Visitor(unsigned, is_signed_in=False),
    "console: an API key as cookie": Visitor(lambda p: p.own.api_key, is_signed_in=False),
    "console: a user without a role": Visitor(user()),
    "console: a viewer": Visitor(user("Viewer"), VIEWER_PAGES),
    "console: an editor": Visitor(user("Editor"), VIEWER_PAGES | EDITOR_FORMS),
    "console: an admin's forms without a CSRF token": Visitor(
        user("Admin"), VIEWER_PAGES | ADMIN_PAGES, csrf=False
    ),
}
# Without a permission these pages are shown with nothing in them, or redirect to such a page.
EMPTY_PAGES = frozenset(
    {
        "GET /search",
        "GET /help",
        "GET /help/{name}",
        "GET /settings",
        "GET /_/stream",
        "GET /settings/project",
        "GET /settings/users",
        "GET /overview",
    }
)
# This form is shown again with the reason when the application must not be added.
SHOWN_AGAIN = "POST /applications/add"
FORM = {
    "name": "n", "secret": "s", "username": "u", "password": "p", "confirm": "demo", "policies": "resources=*;actions=*", "group": "g",
    "role": "Viewer", "user": "u", "version": "v1", "description": "d", "client_id": "c", "client_secret": "s", "issuer": "https://idp.example",
}  # fmt: skip


@pytest.mark.parametrize("visitor", ATTACKS_ON_PAGES.values(), ids=ATTACKS_ON_PAGES)
async def test_the_wrong_visitor_is_refused_by_every_page(planes: Planes, visitor: Visitor) -> None:
    wrong: dict[str, int] = {}
    stores, token = planes.running.running.stores, visitor.token(planes)
    before = [await stores.projects.get("demo"), *await stores.pipeds.list("demo")]
    csrf = BrowserSession(User("", "", ()), token).csrf if visitor.csrf else ""
    for page in sorted((VIEWER_PAGES | EDITOR_FORMS | ADMIN_PAGES | ADMIN_FORMS) - EMPTY_PAGES):
        method, _, path = page.partition(" ")
        path = path.replace("{id}", object_of(planes, path)).replace("{stage}", "s1")
        data = {**FORM, "csrf": csrf} if method == "POST" else None
        answer = await planes.http.request(
            method, path, headers={"cookie": f"token={token}"}, data=data
        )
        status = answer.status_code
        if page in visitor.allowed:
            is_right = status not in (401, 403) and status < 500
        elif visitor.is_signed_in:
            is_right = status == 403 or (page, status) == (SHOWN_AGAIN, 422)
        else:
            is_right = status == 303 and answer.headers["location"].startswith("/login")
        if not is_right:
            wrong[page] = status
    assert wrong == {}
    assert [await stores.projects.get("demo"), *await stores.pipeds.list("demo")] == before


def object_of(plane: Planes, path: str) -> str:
    if path.endswith("/settings/delete"):
        # The others still need the application.
        return new_id()
    objects = {
        "/deployments": plane.own.piped.deployment,
        "/events": plane.own.piped.event,
        "/chains": plane.chain,
        "/plan-previews": plane.preview,
    }
    for prefix, id_ in objects.items():
        if path.startswith(prefix):
            return id_
    return plane.own.piped.caller.piped if "piped" in path else plane.own.piped.application


async def test_an_admin_sees_every_page(planes: Planes) -> None:
    token = planes.session(planes.own.user("Admin"))
    for page in sorted((VIEWER_PAGES | ADMIN_PAGES) - EMPTY_PAGES):
        path = page.removeprefix("GET ").replace("{stage}", "s1")
        path = path.replace("{id}", object_of(planes, path))
        answer = await planes.http.get(path, headers={"cookie": f"token={token}"})
        assert answer.status_code in (200, 302, 303, 307, 404), page
        assert answer.status_code != 404 or path.endswith("log.txt"), page


def test_the_sweep_is_at_least_as_wide_as_the_audit() -> None:
    # WebService is called by gRPC and by gRPC-Web.
    rpcs = {"PipedService": 1, "APIService": 1, "WebService": 2}
    calls = sum(rpcs[sweep.service] * len(DECLARED[sweep.service]) for sweep in ATTACKS.values())
    calls += len(ATTACKS_BY_REST) * len(ROUTES)
    calls += len(ATTACKS_ON_PAGES) * len((VIEWER_PAGES | EDITOR_FORMS | ADMIN_FORMS) - EMPTY_PAGES)
    sys.stdout.write(f"{calls} calls\n")
    assert calls >= MIN_CALLS
