# SPDX-License-Identifier: Apache-2.0
"""Strangers cannot hold the control plane's connections, nor fill its memory with bodies."""

import asyncio
import resource
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2
import pytest
import structlog
from google.protobuf.message import Message
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pipecd.config.controlplane import ConnectionsSpec
from pipecd.controlplane import web
from pipecd.controlplane.app import Ports
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.web import BodyBudget, WebServer, http_server
from pipecd.model.address import parse_networks
from pipecd.proto.service import api_pb2 as api
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2 import ListApplicationsRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.wire import admission as admission_module
from pipecd.wire import listener as listener_module
from pipecd.wire.admission import Admission, ConnectionLimits
from pipecd.wire.credentials import api_key
from servers.control_plane import ServedControlPlane, start_control_plane
from servers.server import free_ports
from servers.tenants import Tenant, add_tenant

LIMITS = {"connections": ConnectionsSpec(max_waiting=40, max_waiting_per_address=20)}
# More than the limits above.
MANY = 60


@pytest.fixture(scope="module")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedControlPlane]:
    """A control plane with low limits, which all tests use one after the other."""
    async with start_control_plane(tmp_path_factory.mktemp("plane"), spec=LIMITS) as running:
        yield running


async def connect(plane: ServedControlPlane) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = plane.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            while await reader.read(65536):
                pass
    except (TimeoutError, ConnectionError) as e:
        return isinstance(e, ConnectionError)
    return True


@asynccontextmanager
async def held(
    plane: ServedControlPlane, sent: bytes, count: int
) -> AsyncGenerator[list[asyncio.StreamReader], None]:
    """So many connections on which a client sent these bytes and no more."""
    readers: list[asyncio.StreamReader] = []
    async with AsyncExitStack() as stack:
        for _ in range(count):
            reader, writer = await connect(plane)
            stack.callback(writer.close)
            writer.write(sent)
            readers.append(reader)
        await asyncio.sleep(0.05)
        yield readers


POST = "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
# What a client sends before it goes quiet.
ATTACKS_CONNECTIONS = {
    "nothing": b"",
    "the first byte of a head": b"G",
    "a head without its end": b"GET /login HTTP/1.1\r\nHost: x\r\nX-A: ",
    "the start of the preface of HTTP/2": b"PR",
    "the preface of HTTP/2": PREFACE,
    "a form without its body": POST.format(
        path="/auth/login/static",
        length=1000,
        headers="Content-Type: application/x-www-form-urlencoded\r\n",
    ).encode(),
    "a delivery without its body": POST.format(
        path="/webhooks/demo", length=1000, headers=f"X-Hub-Signature-256: sha256={'a' * 64}\r\n"
    ).encode(),
    "a whole request, then nothing": b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n",
    "a whole request, then a head": b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\nGET /",
}


@pytest.mark.parametrize("sent", ATTACKS_CONNECTIONS.values(), ids=ATTACKS_CONNECTIONS)
async def test_clients_that_hold_connections_lose_the_oldest(
    sent: bytes, plane: ServedControlPlane
) -> None:
    async with held(plane, sent, MANY) as readers:
        assert await is_closed(readers[0])
        async with httpx2.AsyncClient(base_url=f"http://{plane.address}") as browser:
            assert (await browser.get("/login")).status_code == 200


async def test_a_stream_of_live_updates_survives_the_flood(plane: ServedControlPlane) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}", timeout=10) as browser:
        form = {"project": "demo", "username": "admin", "password": plane.password}
        await browser.post("/auth/login/static", data=form)
        async with browser.stream("GET", "/_/stream?t=apps") as stream:
            chunks = stream.aiter_bytes()
            await anext(chunks)
            async with held(plane, b"GET /", MANY):
                piped = await plane.register_piped()
                await piped.add_repository("site", "git@example.com:site.git")
                await piped.add_application("web")
                async with asyncio.timeout(5):
                    assert await anext(chunks)


async def test_a_piped_keeps_its_connection_during_the_flood(plane: ServedControlPlane) -> None:
    piped = await plane.register_piped("flooded")
    async with piped.api() as api:
        await api.list_applications(ListApplicationsRequest())
        async with held(plane, PREFACE, MANY):
            await api.list_applications(ListApplicationsRequest())


class Client:
    """A connection as the limits see it."""

    def __init__(self, address: str, *, is_waiting: bool = True) -> None:
        self.address, self.is_waiting = address, is_waiting
        self.deadline: float | None = None
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def admit(limits: ConnectionLimits, clients: list[Client]) -> list[int]:
    """The indices of those that are closed."""
    admission = Admission(limits)
    for client in clients:
        admission.add(client)
    return [i for i, client in enumerate(clients) if client.is_closed]


STRANGER, OTHER, PROXY = "203.0.113.9", "198.51.100.7", "10.0.0.1"
PROXIES = parse_networks(["10.0.0.0/8"])


def test_one_address_cannot_push_out_another() -> None:
    clients = [Client(OTHER), *(Client(STRANGER) for _ in range(50))]
    closed = admit(ConnectionLimits(10, 10), clients)
    assert 0 not in closed
    assert closed == list(range(1, 42))


def test_the_limit_of_an_address_does_not_apply_to_a_trusted_proxy() -> None:
    clients = [Client(PROXY) for _ in range(10)]
    assert admit(ConnectionLimits(10, 4, PROXIES), clients) == []
    assert admit(ConnectionLimits(10, 4), clients) == list(range(6))


def test_a_request_that_is_served_is_never_cut() -> None:
    clients = [Client(STRANGER, is_waiting=False) for _ in range(50)]
    assert admit(ConnectionLimits(10, 4), clients) == []


def test_grpc_connections_count_after_their_turn_to_be_authenticated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [100.0]
    monkeypatch.setattr(admission_module.time, "monotonic", lambda: clock[0])
    admission = Admission(ConnectionLimits(10, 4))

    class GrpcClient(Client):
        """A connection on which no call was authenticated yet."""

        def __init__(self) -> None:
            super().__init__(OTHER)
            self.connected_at = clock[0]

        @property
        def is_waiting(self) -> bool:
            return admission.counts_since(self.connected_at)

        @is_waiting.setter
        def is_waiting(self, _: bool) -> None:
            """It follows from the time."""

    clients = [GrpcClient() for _ in range(30)]
    for client in clients:
        admission.add(client, is_grpc=True)

    def closed() -> int:
        admission.enforce()
        return sum(client.is_closed for client in clients)

    # A restarted server has just begun, and is busy with them for seconds.
    for _ in range(6):
        assert closed() == 0
        clock[0] += 1.4
        admission.authenticated(clients.pop())
    # The others call nothing.
    clock[0] += 1.6
    assert closed() == 20
    # However many come, there is a limit for new ones, too.
    clients = [GrpcClient() for _ in range(50)]
    for client in clients:
        admission.add(client, is_grpc=True)
    assert sum(client.is_closed for client in clients) >= 10


@pytest.fixture
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "HEAD_SECONDS", 0.05)
    monkeypatch.setitem(web._PHASE_SECONDS, web._Phase.HEAD, 0.05)
    monkeypatch.setitem(web._PHASE_SECONDS, web._Phase.BODY, 0.05)
    monkeypatch.setattr(listener_module, "_HANDSHAKE_TIMEOUT", 0.05)
    monkeypatch.setattr("pipecd.wire.multiplexer._DETECTION_TIMEOUT", 0.05)
    monkeypatch.setattr(admission_module, "_SWEEP_SECONDS", 0.02)


ATTACKS_SLOW = {
    name: sent
    for name, sent in ATTACKS_CONNECTIONS.items()
    # The others are idle, which the web server allows for longer.
    if name != "the preface of HTTP/2" and not name.startswith("a whole request")
}


@pytest.mark.usefixtures("short_deadlines")
@pytest.mark.parametrize("sent", ATTACKS_SLOW.values(), ids=ATTACKS_SLOW)
async def test_a_client_that_goes_quiet_is_closed(sent: bytes, plane: ServedControlPlane) -> None:
    # The deadlines are checked again after the sweep that is under way.
    async with held(plane, sent, 1) as readers:
        assert await is_closed(readers[0])


@pytest.fixture
def few_files() -> Iterator[None]:
    """A process with hardly any files left to open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 40, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_lack_of_files_is_logged_once_and_survived(few_files: None) -> None:
    del few_files

    async def hello(_request: Request) -> Response:
        return PlainTextResponse("hello")

    server = WebServer(
        Starlette(routes=[Route("/", hello)]), Admission(ConnectionLimits(10_000, 10_000))
    )
    server.admission._total = server.admission._per_address = 10_000
    with structlog.testing.capture_logs() as logs:
        async with http_server(server, host="127.0.0.1", port=0) as port:
            clients = [socket.socket() for _ in range(18)]
            for client in clients:
                client.setblocking(False)
                with pytest.raises(BlockingIOError):
                    client.connect(("127.0.0.1", port))
            # The last files of the process are taken by clients and their connections.
            async with asyncio.timeout(10):
                while not any("cannot be accepted" in entry["event"] for entry in logs):
                    await asyncio.sleep(0.05)
                    clients.append(socket.socket())
                    clients[-1].setblocking(False)
                    with pytest.raises((BlockingIOError, OSError)):
                        clients[-1].connect(("127.0.0.1", port))
            await asyncio.sleep(0.5)
            for client in clients:
                client.close()
            async with httpx2.AsyncClient() as browser:
                assert (await browser.get(f"http://127.0.0.1:{port}/")).text == "hello"
        await server.stop()
    assert sum("cannot be accepted" in entry["event"] for entry in logs) == 1


class Upload:
    """A request whose body never ends; counts what the server takes of it."""

    def __init__(self, plane: ServedControlPlane) -> None:
        self._plane = plane
        self.taken = 0

    async def send(self, path: str, headers: dict[str, str], length: str) -> str:
        """The first line of the response."""
        reader, writer = await connect(self._plane)
        head = POST.format(
            path=path,
            length=length,
            headers="".join(f"{name}: {value}\r\n" for name, value in headers.items()),
        )
        writer.write(head.encode())
        try:
            async with asyncio.timeout(10):
                return (await reader.readline()).decode().strip()
        finally:
            writer.close()


GRPC_WEB = {"Content-Type": "application/grpc-web+proto"}
SERVICE = "/grpc.service.webservice.WebService"
SIGNED = {"X-Hub-Signature-256": f"sha256={'a' * 64}", "X-GitHub-Event": "push"}
# Requests that are answered although no byte of their body arrived; the last part is the status.
ATTACKS_BODIES: dict[str, tuple[str, dict[str, str], str, int]] = {
    "a delivery without a signature": ("/webhooks/demo", {}, "1000", 401),
    "a delivery with a wrong token": ("/webhooks/demo", {"X-Gitlab-Token": "x"}, "1000", 401),
    "a delivery with half a digest": ("/webhooks/demo", {"X-Gitea-Signature": "abc"}, "1000", 401),
    "a delivery with another algorithm": (
        "/webhooks/demo", {"X-Hub-Signature-256": f"sha1={'a' * 40}"}, "1000", 401,
    ),
    "an old delivery": (
        "/webhooks/demo",
        {"Webhook-Signature": "v1,x", "Webhook-Timestamp": "1", "Webhook-Id": "1"},
        "1000",
        401,
    ),
    "a delivery that announces too much": ("/webhooks/demo", SIGNED, "99999999", 413),
    "a delivery with a length of 30 digits": ("/webhooks/demo", SIGNED, "9" * 30, 413),
    "a delivery with a length of 5,000 digits": ("/webhooks/demo", SIGNED, "9" * 5000, 413),
    "a gRPC-Web call without a session": (f"{SERVICE}/GetMe", GRPC_WEB, "1000", 200),
    "a gRPC-Web call with a wrong session": (
        f"{SERVICE}/GetMe", {**GRPC_WEB, "Cookie": "token=x"}, "1000", 200,
    ),
    "a gRPC-Web call of an unknown method": (f"{SERVICE}/Nothing", GRPC_WEB, "1000", 200),
    "a gRPC-Web call from another site": (
        f"{SERVICE}/GetMe", {**GRPC_WEB, "Sec-Fetch-Site": "cross-site"}, "1000", 200,
    ),
    "a REST call without a key": ("/api/v1/applications", {}, "1000", 401),
    "a REST call with a wrong key": (
        "/api/v1/applications", {"Authorization": "Bearer x.y"}, "1000", 401,
    ),
    "a form that announces too much": ("/auth/login/static", {}, "99999999", 413),
    "a form with a length of 5,000 digits": ("/auth/login/static", {}, "9" * 5000, 413),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "headers", "length", "status"), ATTACKS_BODIES.values(), ids=ATTACKS_BODIES
)
async def test_the_body_of_a_worthless_request_is_not_read(
    plane: ServedControlPlane, path: str, headers: dict[str, str], length: str, status: int
) -> None:
    line = await Upload(plane).send(path, headers, length)
    accepted = {str(status), "400"} if len(length) > 20 else {str(status)}
    assert line.split(" ")[1] in accepted


@pytest.mark.parametrize(
    "path", ["/webhooks/demo", f"{SERVICE}/GetMe", "/api/v1/events", "/auth/login/static"]
)
async def test_a_body_after_the_response_ends_the_connection(
    plane: ServedControlPlane, path: str
) -> None:
    """Otherwise a stranger keeps the server busy with bytes that it has no use for."""
    reader, writer = await connect(plane)
    size = 200 * 1024 * 1024
    writer.write(POST.format(path=path, length=size, headers="").encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 ")
    sent = 0
    with suppress(ConnectionError):
        async with asyncio.timeout(30):
            while sent < size:
                writer.write(bytes(256 * 1024))
                await writer.drain()
                sent += 256 * 1024
    writer.close()
    # What fits into the buffers of the sockets was sent, too.
    assert sent < 50 * 1024 * 1024


async def test_a_client_that_sends_a_body_without_waiting_reads_the_response(
    plane: ServedControlPlane,
) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}", timeout=10) as client:
        for _ in range(2):
            refused = await client.post("/webhooks/demo", content=bytes(900 * 1024))
            assert refused.status_code == 401


# Values of headers that a reader of URLs, numbers or dates may stumble over.
ATTACKS_HEADERS: dict[str, dict[str, str]] = {
    "a referrer with half an address": {"Referer": "http://["},
    "a referrer with a port out of range": {"Referer": "http://x:99999999/"},
    "a referrer that is no URL": {"Referer": "\\\\x\x7f"},
    "a host with half an address": {"Host": "["},
    "a host with a port out of range": {"Host": "x:99999999"},
    "an origin with half an address": {"Origin": "http://["},
    "a forwarded host with half an address": {"X-Forwarded-Host": "[", "Origin": "http://x"},
    "a forwarded address that is none": {"X-Forwarded-For": "[,::::,1.2.3"},
    "a language that is none": {"Accept-Language": ";q=1e999,*;q=-"},
    "a cookie that is none": {"Cookie": '=;;token="; projects=%%%; tz=../../etc/passwd; state=='},
    "a time zone that is a path": {"Cookie": "tz=/etc/passwd; timezone=..%2f..%2fx"},
    "a type with half a parameter": {"Content-Type": "multipart/form-data; boundary="},
    "a range that is none": {"Range": "bytes=9-1,-"},
    "a time that is none": {"If-Modified-Since": "9" * 200},
}


@pytest.mark.parametrize("headers", ATTACKS_HEADERS.values(), ids=ATTACKS_HEADERS)
async def test_a_header_of_a_stranger_causes_no_internal_error(
    plane: ServedControlPlane, headers: dict[str, str]
) -> None:
    forms = {"": "x", "csrf": "x"}
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}", headers=headers) as client:
        statuses = {
            path: (await client.request(method, path, data=forms)).status_code
            for method, path in (
                ("GET", "/login"), ("GET", "/"), ("GET", "/setup"), ("GET", "/overview"),
                ("GET", "/assets/layout.css"), ("GET", "/auth/callback"), ("GET", "/events/stream"),
                ("POST", "/auth/login/static"), ("POST", "/auth/login"), ("POST", "/auth/logout"),
                ("POST", "/applications/x/sync"), ("POST", "/settings/project/sso"),
                ("POST", "/webhooks/demo"), ("POST", "/api/v1/applications"),
            )
        }  # fmt: skip
    assert {path: status for path, status in statuses.items() if status >= 500} == {}


async def test_a_stranger_does_not_fill_the_log(
    plane: ServedControlPlane, caplog: pytest.LogCaptureFixture
) -> None:
    web._limit_warnings._logged_at.clear()
    for _ in range(20):
        reader, writer = await connect(plane)
        writer.write(b"this is no HTTP\r\n\r\n")
        assert await is_closed(reader)
        writer.close()
    assert [record.message for record in caplog.records].count(
        "request refused: it is not valid HTTP; is TLS sent here?"
    ) == 1


GRPC_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
ATTACKS_ON_GRPC_PORTS: dict[str, bytes] = {
    "connections that say nothing": b"",
    "connections that speak HTTP/2 and call nothing": GRPC_PREFACE,
    "connections that begin a head": GRPC_PREFACE + bytes((0, 0, 9, 1, 0, 0, 0, 0, 1)),
}


@pytest.mark.parametrize("sent", ATTACKS_ON_GRPC_PORTS.values(), ids=ATTACKS_ON_GRPC_PORTS)
async def test_strangers_cannot_hold_the_connections_of_a_grpc_port(
    sent: bytes, tmp_path: Path
) -> None:
    ports = Ports(*free_ports(6))
    async with (
        start_control_plane(tmp_path, spec=LIMITS, ports=ports) as plane,
        AsyncExitStack() as stack,
    ):
        channel = await stack.enter_async_context(
            grpc.aio.insecure_channel(f"127.0.0.1:{ports.piped_api}")
        )
        key = await plane.cases.pipeds.register("edge", "", by=plane.admin)
        token = f"PIPED-TOKEN demo,{key.id},{key.key}"
        stub = PipedServiceStub(channel)

        async def call() -> None:
            request, metadata = ListApplicationsRequest(), (("authorization", token),)
            await stub.ListApplications(request, metadata=metadata, timeout=10)

        await call()
        opened = [await asyncio.open_connection("127.0.0.1", ports.piped_api) for _ in range(MANY)]
        for _, writer in opened:
            writer.write(sent)
        closed = await asyncio.gather(*(is_closed(reader) for reader, _ in opened))
        assert closed.count(False) <= 20
        # The piped that was authenticated before, and one that comes now.
        await call()
        async with grpc.aio.insecure_channel(
            f"127.0.0.1:{ports.piped_api}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as other:
            stub = PipedServiceStub(other)
            await call()
        for _, writer in opened:
            writer.close()


async def test_all_bodies_together_have_a_budget() -> None:
    release = asyncio.Event()

    async def read(request: Request) -> Response:
        body = await request.body()
        await release.wait()
        return PlainTextResponse(str(len(body)))

    app = BodyBudget(Starlette(routes=[Route("/", read, methods=["POST"])]), limit=250)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        posts = [asyncio.create_task(client.post("/", content=bytes(100))) for _ in range(3)]
        done, _ = await asyncio.wait(posts, timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in done] == [503]
        release.set()
        answers = await asyncio.gather(*posts)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503]
        # What was held is given back.
        assert (await client.post("/", content=bytes(240))).text == "240"


MANY_LABELS = {"env": "prod"} | {f"key-{n}": "v" for n in range(3000)}
IN_URL = "labels[0]=env:prod&" + "&".join(f"labels[{n}]=key-{n}:v" for n in range(1, 1500))
# Small requests of a reader that become statements of many megabytes.
ATTACKS_FILTERS: dict[str, Message | str] = {
    "applications with many labels": api.ListApplicationsRequest(labels=MANY_LABELS),
    "deployments with many labels": api.ListDeploymentsRequest(labels=MANY_LABELS),
    "a page of applications with many labels": f"/applications?{IN_URL}",
    "a page of deployments with many labels": f"/deployments?{IN_URL}",
    "a page of events with many labels": f"/events?{IN_URL}",
    "differences of applications with many labels": f"/applications/drift?{IN_URL}",
}


@pytest.fixture(scope="module")
async def tenant(plane: ServedControlPlane) -> Tenant:
    """A project whose application and deployment have a label that a list can be filtered by."""
    tenant = await add_tenant(plane.cases, "demo")
    stores = plane.running.stores

    def label(document: Any) -> None:
        document.labels["env"] = "prod"

    await stores.applications.update(tenant.piped.application, label)
    await stores.deployments.update(tenant.piped.deployment, label)
    return tenant


@pytest.mark.parametrize("sent", ATTACKS_FILTERS.values(), ids=ATTACKS_FILTERS)
async def test_a_reader_cannot_request_a_huge_statement(
    sent: Message | str, plane: ServedControlPlane, tenant: Tenant
) -> None:
    if isinstance(sent, str):
        cookies = {"token": plane.cases.sessions.issue(tenant.user("Viewer"))}
        async with httpx2.AsyncClient(
            base_url=f"http://{plane.address}", cookies=cookies
        ) as browser:
            assert (await browser.get(sent)).status_code == 422
        return
    async with grpc.aio.insecure_channel(plane.address) as channel:
        name = type(sent).__name__.removesuffix("Request")
        key = (("authorization", api_key(tenant.read_only_key)),)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await getattr(APIServiceStub(channel), name)(sent, metadata=key)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_list_is_filtered_by_several_labels(
    plane: ServedControlPlane, tenant: Tenant
) -> None:
    labels = {"env": "prod"}
    listed = await plane.cases.applications.list(
        ApplicationFilter("demo", labels=labels), by=tenant.user("Viewer")
    )
    assert [one.id for one in listed.items] == [tenant.piped.application]
    missing = labels | {f"key-{n}": "v" for n in range(99)}
    listed = await plane.cases.applications.list(
        ApplicationFilter("demo", labels=missing), by=tenant.user("Viewer")
    )
    assert listed.items == ()
