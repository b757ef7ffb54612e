# SPDX-License-Identifier: Apache-2.0
"""Fuzzes every endpoint of a whole control plane over real connections.

No call may end in an internal error or without an answer, no answer may show internals, and the
control plane must log no error. A round is a new control plane, so that one does not wear out
while calls delete its objects.
"""

import asyncio
import json
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import grpc
import grpc.aio
import httpx2
import structlog
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from fuzz.limits import Finding
from fuzz.mutation import Mutator
from fuzz.readers import DELIVERIES
from pipecd.controlplane.api import api_service, piped_service, web_authorization
from pipecd.controlplane.api.rest import PREFIX as REST
from pipecd.controlplane.api.rest.routes import ROUTES, RestRoute
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.console.app import create_console
from pipecd.wire.credentials import api_key, piped_token
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.rpc_requests import RequestFuzzer
from servers.tenants import add_objects

ROUND = 500
CONCURRENT = 16
HANG_SECONDS = 60.0
OK = "OK"
ANSWERS = frozenset(
    {
        OK,
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
        "RESOURCE_EXHAUSTED",
        # Requests can disable the piped or the key that they come with.
        "UNAUTHENTICATED",
    }
)
NUMBERS = {str(cast("int", code.value[0])): code.name for code in grpc.StatusCode}
# Texts that only appear in internal errors.
INTERNALS = (
    "Traceback", 'File "', "sqlite", "psycopg", "object at 0x", "Exception", "site-packages",
)  # fmt: skip
# Each of these computes a bcrypt hash, which is slow.
SLOW = {"GenerateAPIKey", "RegisterPiped", "RecreatePipedKey", "UpdateProjectStaticAdmin"}

PIPED_RPCS = tuple(
    (rpc, f"/{piped_service.SERVICE.full_name}/{rpc.name}")
    for service in (piped_service.SERVICE, piped_service.ORDERING, piped_service.LEASES)
    for rpc in service.methods
)
API_RPCS = tuple(
    (r, f"/{api_service.SERVICE.full_name}/{r.name}") for r in api_service.SERVICE.methods
)
WEB_RPCS = tuple(
    (r, f"/{web_authorization.SERVICE.full_name}/{r.name}") for r in web_authorization.SERVICE.methods
)  # fmt: skip
KINDS = ("application/grpc-web+proto",) * 8 + ("application/grpc-web", "text/plain", "")
PARAMETERS = (
    "project", "return", "kind", "syncStatus", "activeStatus", "name", "pipedId", "labels[0]", "page", "size", "sort", "q",
    "status", "applicationId", "before", "from", "to", "stage", "find", "cmd", "state", "code", "t", "after", "username", "password",
    "topics", "iss", "error", "cursor", "switch", "lines",
)  # fmt: skip
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RAW = (
    b"GET /login HTTP/1.1\r\nHost: x\r\n\r\n", b"POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nproje",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n", PREFACE + b"\0\0\0\4\0\0\0\0\0",
    PREFACE + b"\0\0\x04\x08\0\0\0\0\0\xff\xff\xff\xff", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/1.1\r\nCookie: token=a\r\n",
)  # fmt: skip


@dataclass
class ErrorLog:
    """Counts the error messages that the control plane logs, and drops all messages."""

    errors: list[str] = field(default_factory=list[str])

    def __call__(self, _: Any, level: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        if level in ("error", "critical", "exception") and len(self.errors) < 20:
            renderer = structlog.processors.ExceptionRenderer()
            self.errors.append(str(dict(renderer(None, level, event)))[:3000])
        raise structlog.DropEvent


@dataclass(frozen=True)
class Answer:
    """The outcome of a call: the name of a gRPC status, and its text."""

    code: str
    text: str = ""


@dataclass(frozen=True)
class Plane:
    """A running control plane, clients with credentials, and the ids of its objects."""

    channel: grpc.aio.Channel
    http: httpx2.AsyncClient
    address: tuple[str, int]
    known: Mapping[str, dict[str, str]]
    metadata: Mapping[str, tuple[tuple[str, str], ...]]
    key: str
    csrf: str
    webhook_secret: str
    pages: tuple[tuple[str, str], ...]


Call = Callable[[], Awaitable[Answer]]


@dataclass(frozen=True)
class Endpoint:
    """A way to reach the control plane; `prepare` builds the call of a number."""

    name: str
    prepare: Callable[[Plane, str, int], tuple[str, Call]]
    answers: frozenset[str] = ANSWERS


async def rpc_answer(call: Any) -> Answer:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return Answer(e.code().name, str(e.details()))
    return Answer(OK)


def grpc_endpoint(name: str, rpcs: tuple[tuple[MethodDescriptor, str], ...]) -> Endpoint:
    def prepare(plane: Plane, seed: str, number: int) -> tuple[str, Call]:
        fuzzer = RequestFuzzer(f"{seed}/{name}/{number}", plane.known[name])
        rpc, path = rpcs[number % len(rpcs)]
        if rpc.name in SLOW and number % 10:
            rpc, path = rpcs[0]
        request = fuzzer.request(rpc)
        method: Any = plane.channel.unary_unary(path)
        return f"{path} {request[:3000].hex()}", lambda: rpc_answer(
            method(request, metadata=plane.metadata[name], timeout=HANG_SECONDS)
        )

    return Endpoint(name, prepare)


def http_answer(response: httpx2.Response) -> Answer:
    """The answer of an HTTP endpoint; what the server could not handle is INTERNAL."""
    if response.status_code >= 500 and response.status_code != 501:
        return Answer("INTERNAL", f"{response.status_code} {response.text[:300]}")
    return Answer(OK if response.status_code < 400 else "INVALID_ARGUMENT", response.text)


def grpc_web(plane: Plane, seed: str, number: int) -> tuple[str, Call]:
    fuzzer = RequestFuzzer(f"{seed}/grpc-web/{number}", plane.known["web"])
    rpc, path = WEB_RPCS[number % len(WEB_RPCS)]
    if rpc.name in SLOW and number % 10:
        rpc, path = WEB_RPCS[0]
    choose = fuzzer.random.choice
    message = fuzzer.request(rpc)
    length = choose((len(message),) * 5 + (0, 7, 2**32 - 1))
    frame = struct.pack(">BI", choose((0, 0, 0, 0, 1, 0x80, 255)), length) + message
    body = choose((frame,) * 8 + (message, frame[:4], frame + frame))
    headers = {"content-type": choose(KINDS), "x-grpc-web": "1"}

    async def call() -> Answer:
        response = await plane.http.post(path, content=body, headers=headers)
        status = response.content.rpartition(b"grpc-status:")[2].partition(b"\r\n")[0]
        if response.status_code != 200:
            return http_answer(response)
        return Answer(NUMBERS.get(status.decode("latin-1").strip(), "UNKNOWN"), response.text)

    return f"POST {path} {headers} {body[:3000].hex()}", call


def rest(plane: Plane, seed: str, number: int) -> tuple[str, Call]:
    fuzzer = RequestFuzzer(f"{seed}/rest/{number}", plane.known["api"])
    route = ROUTES[number % len(ROUTES)]
    if route.rpc in SLOW and number % 10:
        route = ROUTES[0]
    path, rest_of_path = "", f"{REST.rstrip('/')}{route.path}"
    while "{" in rest_of_path:
        before, _, rest_of_path = rest_of_path.partition("{")
        name, _, rest_of_path = rest_of_path.partition("}")
        known = fuzzer.known.get(name, "")
        value = fuzzer.random.choice((known, known, fuzzer.text())) or "x"
        path += before + quote(value, safe="")[:1000]
    path += rest_of_path
    body = json_body(fuzzer, route)
    query = {fuzzer.random.choice(PARAMETERS): fuzzer.text()} if number % 5 == 0 else {}
    headers = {"authorization": f"Bearer {plane.key}"}

    async def call() -> Answer:
        return http_answer(
            await plane.http.request(
                route.method, path, params=query, content=body, headers=headers
            )
        )

    return f"{route.method} {path} {query} {body[:3000]!r}", call


def json_body(fuzzer: RequestFuzzer, route: RestRoute) -> bytes:
    """A request body: valid, fuzzed, truncated, or not JSON."""
    request = GetMessageClass(route.descriptor.input_type)()
    request.MergeFromString(fuzzer.nearly_right(route.descriptor))
    content = json_format.MessageToDict(request)
    for name in list(content):
        if fuzzer.random.random() < 0.2:
            content[name] = fuzzer.random.choice(
                (None, 1, -1.5, [], {}, [[]], "x", True, {"a": []})
            )
    text = json.dumps(content).encode()
    cut = text[: fuzzer.random.randrange(len(text) + 1)]
    return fuzzer.random.choice((text, text, text, cut, fuzzer.noise(route.descriptor)))


def console(plane: Plane, seed: str, number: int) -> tuple[str, Call]:
    fuzzer = RequestFuzzer(f"{seed}/console/{number}", plane.known["web"])
    method, template = plane.pages[number % len(plane.pages)]
    path = "/".join(
        quote(fuzzer.text() or "x", safe="") if part.startswith("{") else part
        for part in template.split("/")
    )[:4000]
    fields = {
        fuzzer.random.choice(PARAMETERS): fuzzer.text() for _ in range(fuzzer.random.randrange(5))
    }
    if fuzzer.random.random() < 0.7:
        fields["csrf"] = plane.csrf
    headers = {"HX-Request": "true"} if number % 7 == 0 else {}

    async def call() -> Answer:
        # A live page is a stream without an end; only its beginning is read.
        params, data = (fields, None) if method == "GET" else (None, fields)
        request = plane.http.build_request(method, path, headers=headers, params=params, data=data)
        response = await plane.http.send(request, stream=True)
        try:
            if "event-stream" not in response.headers.get("content-type", ""):
                await response.aread()
                return http_answer(response)
            return Answer(OK)
        finally:
            await response.aclose()

    return f"{method} {path} {fields}", call


def webhooks(plane: Plane, seed: str, number: int) -> tuple[str, Call]:
    mutator = Mutator(f"{seed}/webhooks/{number}", ("sha256=", "v1,", "refs/heads/"))
    body = mutator.mutate(DELIVERIES)
    names = (
        "x-github-event", "x-gitlab-event", "x-event-key", "x-hub-signature-256", "x-hub-signature", "x-gitlab-token",
        "webhook-id", "webhook-timestamp", "webhook-signature", "content-type", "x-gitea-signature", "x-gogs-signature",
    )  # fmt: skip
    headers = {
        name: "".join(c for c in mutator.word().decode("latin-1") if 32 <= ord(c) < 127)[
            :500
        ].strip()
        for name in mutator.random.sample(names, 4)
    }
    if mutator.random.random() < 0.5:
        headers = {
            "x-gitlab-token": plane.webhook_secret,
            "x-gitlab-event": mutator.random.choice(("Push Hook", "Tag Push Hook", "x")),
        }
    project = mutator.random.choice(("demo", "demo", "demo", "gone", "x" * 300, "%00", ".."))

    async def call() -> Answer:
        response = await plane.http.post(f"/webhooks/{project}", content=body, headers=headers)
        return http_answer(response)

    return f"POST /webhooks/{project} {headers} {body[:2000]!r}", call


def raw(plane: Plane, seed: str, number: int) -> tuple[str, Call]:
    content = Mutator(f"{seed}/raw/{number}", ("\r\n", "HTTP/1.1", ": ", "chunked")).mutate(RAW)

    async def call() -> Answer:
        reader, writer = await asyncio.open_connection(*plane.address)
        try:
            writer.write(content)
            writer.write_eof()
            answer = await reader.read(100_000)
        except ConnectionError:
            answer = b""
        finally:
            writer.close()
        status = answer.partition(b"\r\n")[0]
        return Answer("INTERNAL" if b" 500 " in status else OK, answer.decode("latin-1"))

    return repr(content[:2000]), call


ENDPOINTS = {
    endpoint.name: endpoint
    for endpoint in (
        grpc_endpoint("piped", PIPED_RPCS),
        grpc_endpoint("api", API_RPCS),
        grpc_endpoint("web", WEB_RPCS),
        Endpoint("grpc-web", grpc_web),
        Endpoint("rest", rest),
        Endpoint("console", console),
        Endpoint("webhooks", webhooks),
        Endpoint("raw", raw),
    )
}


@asynccontextmanager
async def open_plane(directory: Path) -> AsyncGenerator[Plane, None]:
    """Starts a control plane in which each gRPC service has a piped with objects of its own."""
    async with start_control_plane(directory) as running:
        host, _, port = running.address.rpartition(":")
        objects = {
            name: await add_objects(running.cases, running.admin, name)
            for name in ("piped", "api", "web")
        }
        piped = objects["piped"]
        token = piped_token("demo", piped.caller.piped, piped.key)
        session = running.cases.sessions.issue(User("demo", "ann", ("Admin",)))
        await running.cases.webhooks.rotate(by=running.admin)
        (secret,) = await running.cases.webhooks.secrets_of("demo")
        limits = httpx2.Limits(max_connections=CONCURRENT)
        async with (
            grpc.aio.insecure_channel(running.address) as channel,
            httpx2.AsyncClient(
                base_url=f"http://{running.address}",
                cookies={"token": session},
                limits=limits,
                timeout=HANG_SECONDS,
            ) as http,
        ):
            page = (await http.get("/settings/project")).text
            yield Plane(
                channel,
                http,
                (host, int(port)),
                {name: object_.ids for name, object_ in objects.items()},
                {
                    "piped": (("authorization", token),),
                    "api": (("authorization", api_key(running.api_key)),),
                    "web": (("cookie", f"token={session}"),),
                },
                running.api_key,
                page.partition('name="csrf" value="')[2].partition('"')[0],
                secret,
                console_pages(running),
            )


def console_pages(running: ServedControlPlane) -> tuple[tuple[str, str], ...]:
    """The methods and paths of all pages of the console."""
    routes = create_console(running.cases, running.cases.bus, insecure_cookie=True).routes
    return tuple(
        (method, cast("Any", route).path)
        for route in routes
        for method in sorted(getattr(route, "methods", None) or ())
        if method in ("GET", "POST")
    )


async def fuzz_endpoint(
    endpoint: Endpoint,
    plane: Plane,
    seed: str,
    numbers: Iterable[int],
    progress: Callable[[int], None],
) -> tuple[list[Finding], Counter[str]]:
    """Sends the calls of these numbers; returns the findings and how often each answer came."""
    log, findings, answers = ErrorLog(), list[Finding](), Counter[str]()
    structlog.configure(processors=[log], cache_logger_on_first_use=False)
    waiting, last = iter(numbers), 0

    async def one_after_another() -> None:
        nonlocal last
        for number in waiting:
            last = max(last, number)
            sent, call = endpoint.prepare(plane, seed, number)
            try:
                async with asyncio.timeout(HANG_SECONDS + 10):
                    answer = await call()
            except (TimeoutError, httpx2.TimeoutException):
                answer = Answer("no answer in time")
            except (httpx2.InvalidURL, httpx2.LocalProtocolError, UnicodeError):
                # The client refuses to send it.
                answer = Answer(OK)
            except httpx2.TransportError as e:
                # The server may close a connection whose request it cannot read.
                answer = Answer(OK if "disconnected" in str(e) else repr(e))
            answers[answer.code] += 1
            leaked = [part for part in INTERNALS if part in answer.text]
            if answer.code not in endpoint.answers or leaked:
                what = f"{answer.code} {leaked or ''} {answer.text[:300]}"
                findings.append(Finding(endpoint.name, seed, number, what, f"  sent: {sent}"))
            progress(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONCURRENT):
            tasks.create_task(one_after_another())
    findings += [
        Finding(endpoint.name, seed, last, "an error was logged", f"  {text}")
        for text in log.errors
    ]
    if (status := (await plane.http.get("/login")).status_code) not in (200, 302):
        findings.append(Finding(endpoint.name, seed, last, f"/login is {status}", ""))
    return findings, answers
