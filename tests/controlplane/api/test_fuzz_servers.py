# SPDX-License-Identifier: Apache-2.0
"""More than twenty thousand fuzzed messages to every service, over real connections.

Each RPC gets bytes without meaning, cut and bloated requests, fields of the wrong type, requests
with odd values and requests that are nearly valid. No call may end in an internal error, and no
answer may show internals. A failure names the seed that repeats it.
"""

import asyncio
import json
import random
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle, islice
from typing import Any, cast
from urllib.parse import quote

import grpc
import grpc.aio
import httpx2
import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass
from structlog.testing import capture_logs

from pipecd.controlplane.api import api_service, piped_service, web_authorization, web_service
from pipecd.controlplane.api.grpc_web import GrpcWeb
from pipecd.controlplane.api.rest import PREFIX as REST
from pipecd.controlplane.api.rest import create_rest
from pipecd.controlplane.api.rest.routes import ROUTES, RestRoute
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.controlplane.web import PathPrefixRouter, WebServer, http_server
from pipecd.model.clock import Now
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.wire.credentials import api_key, piped_token
from pipecd.wire.server import grpc_server

pytestmark = pytest.mark.timeout(400)

SHARES = {
    "piped": 5_000,
    "external": 4_000,
    "web": 5_000,
    "grpc-web": 4_000,
    "pages": 3_000,
    "rest": 2_000,
}
SEED = random.SystemRandom().randrange(2**32)
AT_ONCE = 32
SERVICES: dict[str, ServiceDescriptor] = {
    "piped": piped_service.SERVICE,
    "external": api_service.SERVICE,
    "web": web_authorization.SERVICE,
}
SENSIBLE = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# Texts that only appear in internal errors.
INTERNALS = (
    "Traceback",
    'File "',
    "sqlite",
    "psycopg",
    "object at 0x",
    "Exception",
    "site-packages",
)
# Each of these computes a bcrypt hash, which is slow.
SLOW = {"GenerateAPIKey", "RegisterPiped", "RecreatePipedKey", "UpdateProjectStaticAdmin"}


def rpcs_of(service: ServiceDescriptor, many: int) -> Iterator[MethodDescriptor]:
    """All RPCs in turn; the slow ones only in every tenth round."""
    quick = [rpc for rpc in service.methods if rpc.name not in SLOW]
    return islice(cycle([*quick * 10, *service.methods]), many)


@contextmanager
def nothing_broke() -> Iterator[None]:
    with capture_logs() as logs:
        yield
    broken = [entry for entry in logs if entry["log_level"] in ("error", "critical")]
    assert not broken, f"seed {SEED}: {broken[:3]}"


async def all_at_once(work: Sequence[Callable[[], Awaitable[None]]]) -> None:
    waiting = iter(work)

    async def one_after_another() -> None:
        for deed in waiting:
            await deed()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(one_after_another())


def check_words(words: str) -> None:
    leaked = [part for part in INTERNALS if part in words]
    assert not leaked, f"seed {SEED}: {words[:300]}"


@pytest.fixture
async def known(
    registered: RegisteredPiped, deployment: Deployment, cases: UseCases, admin: User
) -> dict[str, str]:
    """The ids of existing objects, by the names of the fields that hold them."""
    event = RegisterEventRequest(name="image", data="v2")
    return {
        "piped_id": registered.id,
        "application_id": deployment.application_id,
        "deployment_id": deployment.id,
        "stage_id": "s1",
        "project_id": "shop",
        "repo_id": "site",
        "command_id": await cases.pipeds.restart(registered.id, by=admin),
        "event_id": await cases.events.register(event, by=admin),
    }


@pytest.fixture
def odd(create_fuzzer: Callable[..., Any], known: dict[str, str]) -> Any:
    return create_fuzzer(SEED, known)


@pytest.fixture
async def metadata(
    cases: UseCases, registered: RegisteredPiped, admin: User
) -> dict[str, tuple[tuple[str, str], ...]]:
    """The channel and metadata of each service."""
    key = await cases.api_keys.generate("fuzz", APIKey.READ_WRITE, by=admin)
    token = piped_token(admin.project, registered.id, registered.key)
    return {
        "piped": (("authorization", token),),
        "external": (("authorization", api_key(key)),),
        "web": (("cookie", f"token={cases.sessions.issue(admin)}"),),
    }


@pytest.fixture
async def channel(cases: UseCases) -> AsyncIterator[grpc.aio.Channel]:
    tables = [
        piped_service.piped_table(cases),
        api_service.api_table(cases),
        web_service.web_table(cases),
    ]
    async with (
        grpc_server(tables, host="127.0.0.1", port=0, grace=1) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=f"the {name} service") for name in SERVICES]
)
async def test_fuzzed_messages_cause_no_internal_error_in(
    name: str, channel: grpc.aio.Channel, odd: Any, metadata: dict[str, Any]
) -> None:
    answers: Counter[grpc.StatusCode] = Counter()

    def call(rpc: MethodDescriptor) -> Callable[[], Awaitable[None]]:
        request = odd.request(rpc)
        method: Any = channel.unary_unary(f"/{SERVICES[name].full_name}/{rpc.name}")

        async def called() -> None:
            code, words = await outcome(method(request, metadata=metadata[name], timeout=60))
            assert code in SENSIBLE, f"seed {SEED}: {rpc.name}: {code}: {words}"
            check_words(words)
            answers[code] += 1

        return called

    with nothing_broke():
        await all_at_once([call(rpc) for rpc in rpcs_of(SERVICES[name], SHARES[name])])
    assert answers.total() == SHARES[name]
    # Otherwise all requests failed in authentication.
    assert answers[grpc.StatusCode.OK] > SHARES[name] // 20


async def outcome(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        await call
    except grpc.aio.AioRpcError as e:
        return e.code(), str(e.details())
    return grpc.StatusCode.OK, ""


@pytest.fixture
async def browser(
    cases: UseCases, bus: MemoryBus, now: Now, metadata: dict[str, Any]
) -> AsyncIterator[httpx2.AsyncClient]:
    """A signed-in HTTP client."""
    calls = GrpcWeb(web_service.web_table(cases))
    pages = create_console(cases, bus, insecure_cookie=True, now=now)
    rest = create_rest(api_service.api_table(cases), cases.api_keys.verify)
    services = dict.fromkeys(calls.prefixes(), calls)
    served = WebServer(PathPrefixRouter({**services, REST: rest}, pages))
    limits = httpx2.Limits(max_connections=AT_ONCE)
    async with http_server(served, host="127.0.0.1", port=0) as port:
        cookies = {"token": metadata["web"][0][1].removeprefix("token=")}
        base = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(
            base_url=base, cookies=cookies, limits=limits, timeout=60
        ) as client:
            yield client
        await served.stop()


KINDS = ("application/grpc-web+proto",) * 8 + ("application/grpc-web", "text/plain", "")


async def test_fuzzed_grpc_web_frames_cause_no_internal_error(
    browser: httpx2.AsyncClient, odd: Any
) -> None:
    def call(rpc: MethodDescriptor) -> Callable[[], Awaitable[None]]:
        frame = odd_frame(odd, odd.request(rpc))
        headers = {"content-type": odd.random.choice(KINDS), "x-grpc-web": "1"}

        async def called() -> None:
            path = f"/{SERVICES['web'].full_name}/{rpc.name}"
            answer = await browser.post(path, content=frame, headers=headers)
            details = f"seed {SEED}: {rpc.name}: {answer.status_code}: {answer.content[:200]!r}"
            assert answer.status_code in (200, 415), details
            check_words(answer.text)
            if answer.status_code == 200:
                status = answer.content.rpartition(b"grpc-status:")[2].partition(b"\r\n")[0]
                assert status in SENSIBLE_NUMBERS, details

        return called

    with nothing_broke():
        await all_at_once([call(rpc) for rpc in rpcs_of(SERVICES["web"], SHARES["grpc-web"])])


SENSIBLE_NUMBERS = {str(cast("int", code.value[0])).encode() for code in SENSIBLE}


def odd_frame(odd: Any, message: bytes) -> bytes:
    """The message in a frame, which is valid in most cases."""
    flag = odd.random.choice((0, 0, 0, 0, 1, 0x80, 255))
    length = odd.random.choice((len(message),) * 5 + (0, 7, 2**32 - 1))
    frame = struct.pack(">BI", flag, length) + message
    return odd.random.choice((frame,) * 8 + (message, frame[:4], frame + frame))


PATHS = (
    "/", "/login", "/applications", "/applications/{}", "/deployments", "/deployments/{}", "/settings/project",
    "/deployments/{}/stages/{}/log.txt", "/auth/callback", "/auth/login", "/auth/login/static", "/{}", "/assets/{}/{}",
)  # fmt: skip
FORMS = (
    "/applications/{}/sync", "/deployments/{}/cancel", "/deployments/{}/stages/{}/approve", "/deployments/{}/stages/{}/skip",
    "/auth/login", "/settings/project/webhook/remove", "/settings/project/{}", "/{}/{}",
)  # fmt: skip
PARAMETERS = (
    "project", "return", "kind", "syncStatus", "activeStatus", "name", "pipedId", "labels[0]", "page", "size", "sort", "q",
    "status", "applicationId", "before", "from", "to", "stage", "find", "cmd", "state", "code", "t", "after", "username", "password",
)  # fmt: skip


async def test_fuzzed_paths_and_forms_are_answered_with_pages(
    browser: httpx2.AsyncClient, odd: Any
) -> None:
    page = (await browser.get("/settings/project")).text
    csrf = page.partition('name="csrf" value="')[2].partition('"')[0]

    def visit(number: int) -> Callable[[], Awaitable[None]]:
        fields = {odd.random.choice(PARAMETERS): odd.text() for _ in range(odd.random.randrange(5))}
        templates = PATHS if number % 2 else FORMS
        path = odd.random.choice(templates)
        while "{}" in path:
            path = path.replace("{}", quote(odd.text(), safe=""), 1)
        if odd.random.random() < 0.7:
            fields["csrf"] = csrf

        async def visited() -> None:
            if number % 2:
                answer = await browser.get(path[:4000], params=fields)
            else:
                answer = await browser.post(path[:4000], data=fields)
            details = f"seed {SEED}: {path[:200]} {fields}: {answer.status_code}"
            assert answer.status_code < 500, details
            check_words(answer.text)

        return visited

    with nothing_broke():
        await all_at_once([visit(number) for number in range(SHARES["pages"])])
    assert csrf


def odd_json(odd: Any, address: RestRoute) -> bytes:
    """A request body: valid, fuzzed, truncated, or not JSON."""
    request = GetMessageClass(address.descriptor.input_type)()
    request.MergeFromString(odd.nearly_right(address.descriptor))
    content = json_format.MessageToDict(request)
    for name in list(content):
        if odd.random.random() < 0.2:
            content[name] = odd.random.choice((None, 1, -1.5, [], {}, [[]], "x", True, {"a": []}))
    text = json.dumps(content).encode()
    cut = text[: odd.random.randrange(len(text) + 1)]
    return odd.random.choice((text, text, text, cut, odd.noise(address.descriptor)))


async def test_fuzzed_json_causes_no_internal_error(
    browser: httpx2.AsyncClient, odd: Any, metadata: dict[str, Any]
) -> None:
    key = metadata["external"][0][1].removeprefix("API-KEY ")
    answers: Counter[int] = Counter()

    def call(address: RestRoute) -> Callable[[], Awaitable[None]]:
        path = f"{REST.rstrip('/')}{address.path}"
        while "{" in path:
            begin, end = path.index("{"), path.index("}") + 1
            known = odd.known.get(path[begin + 1 : end - 1], "")
            text = odd.random.choice((known, known, odd.text())) or "x"
            path = path[:begin] + quote(text, safe="")[:1000] + path[end:]
        body = odd_json(odd, address)
        query = {odd.random.choice(PARAMETERS): odd.text()} if odd.random.random() < 0.2 else {}

        async def called() -> None:
            answer = await browser.request(
                address.method,
                path,
                params=query,
                content=body,
                headers={"authorization": f"Bearer {key}"},
            )
            details = f"seed {SEED}: {address.rpc}: {answer.status_code}: {answer.text[:200]}"
            assert answer.status_code in (200, 400, 403, 404, 405, 409, 413), details
            check_words(answer.text)
            answers[answer.status_code] += 1

        return called

    quick = [address for address in ROUTES if address.rpc not in SLOW]
    with nothing_broke():
        await all_at_once([call(address) for address in islice(cycle(quick), SHARES["rest"])])
    assert answers[200] > SHARES["rest"] // 20, answers


async def test_fuzzed_credentials_are_refused(channel: grpc.aio.Channel, odd: Any) -> None:
    for service in SERVICES.values():
        rpc: Any = channel.unary_unary(f"/{service.full_name}/{service.methods[0].name}")
        for text in (
            *odd.TEXTS,
            "PIPED-TOKEN a,b,c",
            "API-KEY a.b",
            "token=a.b.c",
            "token",
            "=;=;",
        ):
            plain = "".join(c for c in text if 32 <= ord(c) < 127)[:2000]
            code, words = await outcome(
                rpc(b"", metadata=(("authorization", plain), ("cookie", plain)))
            )
            assert code is grpc.StatusCode.UNAUTHENTICATED, plain
            check_words(words)


def test_the_run_is_long_enough() -> None:
    assert sum(SHARES.values()) >= 20_000
