# SPDX-License-Identifier: Apache-2.0
"""Requests that a project's admin aims never reach an address that is not public."""

import asyncio
import errno
import gzip
import re
import socket
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest

from pipecd.config.controlplane import OutboundSpec
from pipecd.model.address import parse_networks
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.wire.outbound import (
    PUBLIC_DESTINATIONS,
    ForbiddenDestination,
    OutboundPolicy,
    OutboundTransport,
)
from servers.control_plane import ServedControlPlane, StartControlPlane

# The provider that the operator allows; everything else of this machine is the victim.
ALLOWED = "127.0.0.2"
# The addresses are what these tests are about; that https is required has its own.
POLICY = OutboundPolicy(parse_networks([f"{ALLOWED}/32"]), requires_https=False)
PUBLIC = OutboundPolicy(requires_https=False)
# Answers of the resolver to names of the tests; the port is of no interest.
Resolver = Callable[[str], list[str]]


@dataclass
class HttpServer:
    """Answers every request with the content that `respond` returns, and records it."""

    host: str
    respond: Callable[[str], bytes]
    port: int = 0
    requests: list[str] = field(default_factory=list[str])

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.split("\r\n")[0])
            writer.write(self.respond(head.split(" ")[1]))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def response(content: bytes, *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


@asynccontextmanager
async def serving(respond: Callable[[str], bytes], *hosts: str) -> AsyncGenerator[HttpServer, None]:
    """Listens on the same port of all hosts."""
    server = HttpServer(hosts[0], respond)
    async with AsyncExitStack() as stack:
        for sock in listening_sockets(hosts):
            stack.callback((await asyncio.start_server(server.handle, sock=sock)).close)
            server.port = sock.getsockname()[1]
        yield server


def listening_sockets(hosts: Sequence[str]) -> list[socket.socket]:
    """Sockets with the same port; one that is free on the first host may be in use on another."""
    while True:
        sockets: list[socket.socket] = []
        try:
            for host in hosts:
                family = socket.AF_INET6 if ":" in host else socket.AF_INET
                sockets.append(socket.socket(family))
                sockets[-1].bind((host, sockets[0].getsockname()[1] if len(sockets) > 1 else 0))
        except OSError as e:
            for each in sockets:
                each.close()
            if e.errno != errno.EADDRINUSE:
                raise
        else:
            return sockets


@pytest.fixture
async def victim() -> AsyncIterator[HttpServer]:
    """A service of the control plane's own machine, which has no password."""
    async with serving(lambda _: response(b'{"token": "internal"}'), "127.0.0.1", "::1") as server:
        yield server


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Resolver], None]:
    """Has names under .example resolved by the test, as an attacker's name server does."""
    original = socket.getaddrinfo

    def install(resolver: Resolver) -> None:
        def getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
            name = host.decode() if isinstance(host, bytes) else host
            if not name.endswith(".example"):
                return original(host, port, *args, **kwargs)
            return [each for a in resolver(name) for each in original(a, port, type=1)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return install


def client(policy: OutboundPolicy, proxy: str = "", **options: Any) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        transport=OutboundTransport(policy, proxy=proxy), timeout=3, **options
    )


# URLs of a service on the control plane's own machine; {} is its port.
ATTACKS_URLS = {
    "the loopback address": "http://127.0.0.1:{}/",
    "another address of the loopback network": "http://127.255.255.254:{}/",
    "the name of the loopback address": "http://localhost:{}/",
    "the name with a dot at its end": "http://localhost.:{}/",
    "an address with fewer parts": "http://127.1:{}/",
    "an address as one number": "http://2130706433:{}/",
    "an address in hexadecimal": "http://0x7f000001:{}/",
    "an address in octal": "http://0177.1:{}/",
    "the unspecified address": "http://0.0.0.0:{}/",
    "the loopback address of IPv6": "http://[::1]:{}/",
    "the unspecified address of IPv6": "http://[::]:{}/",
    "an IPv4-mapped address": "http://[::ffff:127.0.0.1]:{}/",
    "an IPv4-mapped address in hexadecimal": "http://[::ffff:7f00:1]:{}/",
    "a user name that looks like a public host": "http://accounts.google.com@127.0.0.1:{}/",
    "a name that resolves to the loopback address": "http://private.example:{}/",
    "a name with a public and a private address": "http://both.example:{}/",
}


@pytest.mark.parametrize("url", ATTACKS_URLS.values(), ids=ATTACKS_URLS)
async def test_a_service_of_the_own_machine_is_not_reached(
    url: str, victim: HttpServer, resolve: Callable[[Resolver], None]
) -> None:
    resolve(lambda name: ["127.0.0.1"] if name == "private.example" else ["1.1.1.1", "127.0.0.1"])
    async with client(PUBLIC) as http:
        with pytest.raises(ForbiddenDestination):
            await http.get(url.format(victim.port))
    assert victim.requests == []


@pytest.mark.parametrize("first", [[ALLOWED], ["127.0.0.1"]], ids=["allowed first", "last"])
async def test_a_name_that_resolves_differently_a_second_time_gains_nothing(
    first: list[str], victim: HttpServer, resolve: Callable[[Resolver], None]
) -> None:
    answers = [first, ["127.0.0.1"], ["127.0.0.1"], ["127.0.0.1"]]
    resolve(lambda _: answers.pop(0))
    async with client(POLICY) as http:
        with pytest.raises(httpx2.ConnectError):
            # Nobody listens on this port of the allowed address.
            await http.get(f"http://rebinding.example:{victim.port}/")
    assert victim.requests == []


async def test_a_public_host_must_be_reached_by_https() -> None:
    async with client(PUBLIC_DESTINATIONS) as http:
        with pytest.raises(ForbiddenDestination, match="https"):
            await http.get("http://1.1.1.1/")


async def test_a_redirect_is_checked_as_its_own_request(victim: HttpServer) -> None:
    to_victim = response(b"", f"Location: {victim.url}/admin", status="302 Found")
    async with serving(lambda _: to_victim, ALLOWED) as provider:
        async with client(POLICY, follow_redirects=True) as http:
            with pytest.raises(ForbiddenDestination):
                await http.get(f"{provider.url}/start")
        assert len(provider.requests) == 1
    assert victim.requests == []


@pytest.mark.parametrize("url", ["http://1.1.1.1/", "http://unknown.example/"])
async def test_a_proxy_on_a_private_address_is_not_used(
    url: str, victim: HttpServer, resolve: Callable[[Resolver], None]
) -> None:
    resolve(lambda _: [])
    async with client(PUBLIC, proxy=victim.url) as http:
        with pytest.raises(ForbiddenDestination):
            await http.get(url)
    assert victim.requests == []


async def test_an_allowed_proxy_is_not_asked_for_a_private_address(victim: HttpServer) -> None:
    async with serving(lambda _: response(b"internal"), ALLOWED) as proxy:
        async with client(POLICY, proxy=proxy.url) as http:
            with pytest.raises(ForbiddenDestination):
                await http.get(victim.url)
            assert (await http.get("http://1.1.1.1/")).text == "internal"
        assert proxy.requests == ["GET http://1.1.1.1/ HTTP/1.1"]


async def test_the_proxy_of_the_environment_is_the_operators(
    victim: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", victim.url)
    async with client(PUBLIC) as http:
        assert (await http.get("http://1.1.1.1/")).json() == {"token": "internal"}
        with pytest.raises(ForbiddenDestination):
            await http.get("http://169.254.169.254/latest/meta-data/")
    assert victim.requests == ["GET http://1.1.1.1/ HTTP/1.1"]


ATTACKS_ADDRESSES = {
    "metadata of AWS, Google Cloud and Azure": "169.254.169.254",
    "metadata of AWS by IPv6": "fd00:ec2::254",
    "metadata of Alibaba Cloud": "100.100.100.200",
    "metadata of Oracle Cloud": "192.0.0.192",
    "the host agent of Azure": "168.63.129.16",
    "metadata by an IPv4-mapped address": "::ffff:169.254.169.254",
    "metadata by an IPv4-compatible address": "::169.254.169.254",
    "metadata by NAT64": "64:ff9b::a9fe:a9fe",
    "a local prefix of NAT64": "64:ff9b:1::a9fe:a9fe",
    "metadata by 6to4": "2002:a9fe:a9fe::1",
    "metadata by Teredo": "2001:0:a9fe:a9fe::1",
    "a private network of class A": "10.1.2.3",
    "a private network of class B": "172.31.255.1",
    "a private network of class C": "192.168.0.1",
    "a network behind a carrier's NAT": "100.64.0.1",
    "a unique local address": "fc00::1",
    "a link-local address": "fe80::1",
    "a site-local address": "fec0::1",
    "this network": "0.1.2.3",
    "a network for benchmarks": "198.18.0.1",
    "multicast": "224.0.0.251",
    "multicast of IPv6": "ff02::1",
    "broadcast": "255.255.255.255",
    "the discard prefix": "100::1",
    "documentation": "2001:db8::1",
}


@pytest.mark.parametrize("address", ATTACKS_ADDRESSES.values(), ids=ATTACKS_ADDRESSES)
def test_an_address_is_not_public(address: str) -> None:
    assert not PUBLIC_DESTINATIONS.permits("host.example", [ip_address(address)])


@pytest.mark.parametrize(
    ("address", "networks"),
    [
        ("1.1.1.1", ()),
        ("172.32.0.1", ()),
        ("2606:4700:4700::1111", ()),
        ("::ffff:1.1.1.1", ()),
        ("64:ff9b::101:101", ()),
        ("10.1.2.3", ("10.0.0.0/8",)),
        ("::ffff:10.1.2.3", ("10.0.0.0/8",)),
        ("fd12::1", ("10.0.0.0/8", "fd12::/16")),
    ],
)
def test_public_addresses_and_allowed_networks_are_permitted(
    address: str, networks: tuple[str, ...]
) -> None:
    policy = OutboundPolicy(parse_networks(networks))
    assert policy.permits("host.example", [ip_address(address)])


def test_a_host_can_be_allowed_by_its_name() -> None:
    policy = OutboundPolicy(hosts=frozenset({"charts.internal"}))
    assert policy.permits("Charts.internal", [ip_address("10.0.0.1")])
    assert not policy.permits("other.internal", [ip_address("10.0.0.1")])


ZEROS = bytes(16 << 20)
ATTACKS_RESPONSES = {
    "a gzip bomb": response(gzip.compress(ZEROS, 1), "Content-Encoding: gzip"),
    "a gzip bomb in capitals": response(gzip.compress(ZEROS, 1), "content-encoding: GZIP"),
    "a deflate bomb": response(zlib.compress(ZEROS, 1), "Content-Encoding: deflate"),
    "a bomb in a bomb": response(
        gzip.compress(gzip.compress(ZEROS, 1)), "Content-Encoding: gzip, gzip"
    ),
    "a response without an end": b"HTTP/1.1 200 OK\r\n\r\n" + ZEROS,
    "a response in chunks without an end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    + (b"10000\r\n" + bytes(0x10000) + b"\r\n") * 200,
    "a large response with its length": response(ZEROS),
}


@pytest.mark.parametrize("content", ATTACKS_RESPONSES.values(), ids=ATTACKS_RESPONSES)
async def test_a_response_does_not_fill_the_memory(content: bytes) -> None:
    async with serving(lambda _: content, ALLOWED) as provider, client(POLICY) as http:
        received = 0
        with pytest.raises((httpx2.ReadError, httpx2.DecodingError)):
            async with http.stream("GET", provider.url) as answer:
                async for chunk in answer.aiter_bytes():
                    received += len(chunk)
        assert received <= 4 << 20


async def test_a_response_below_the_limit_is_read_whole() -> None:
    content = bytes(3 << 20)
    async with serving(lambda _: response(content), ALLOWED) as provider, client(POLICY) as http:
        assert (await http.get(provider.url)).content == content


def oidc(issuer: str, **fields: str) -> ProjectSSOConfig:
    return ProjectSSOConfig(
        provider=ProjectSSOConfig.OIDC,
        oidc=ProjectSSOConfig.Oidc(client_id="id", client_secret="secret", issuer=issuer, **fields),
    )


# What a project's admin writes to reach {victim}; {provider} is a provider on an allowed network
# whose discovery document the second part changes.
ATTACKS_SSO: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "the issuer": ({"issuer": "{victim}"}, {}),
    "the token endpoint": ({"token_endpoint": "{victim}/token"}, {}),
    "the proxy": ({"proxy_url": "{victim}"}, {}),
    "the token endpoint of the discovery document": ({}, {"token_endpoint": "{victim}/token"}),
    "the keys of the discovery document": ({}, {"jwks_uri": "{victim}/keys"}),
}


@asynccontextmanager
async def oidc_provider(documents: dict[str, str]) -> AsyncGenerator[HttpServer, None]:
    """A provider whose tokens nobody signed; `documents` changes its discovery document."""

    def respond(path: str) -> bytes:
        if path == "/.well-known/openid-configuration":
            names = ("authorization", "token", "userinfo")
            found = {f"{name}_endpoint": f"{server.url}/{name}" for name in names}
            found |= {"issuer": server.url, "jwks_uri": f"{server.url}/keys"} | documents
            return response(httpx2.Response(200, json=found).content)
        return response(b'{"access_token": "a", "id_token": "b"}')

    async with serving(respond, ALLOWED) as server:
        yield server


async def try_sign_in(plane: ServedControlPlane, config: ProjectSSOConfig) -> str:
    """Signs in up to the callback; returns the error that the browser is shown."""

    def change(project: Project) -> None:
        project.sso.CopyFrom(config)

    await plane.running.stores.projects.update("demo", change)
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}") as browser:
        begun = await browser.post("/auth/login", data={"project": "demo"})
        location = begun.headers.get("location", "") or begun.text
        state = re.search(r"state=([^&\"]+)", location)
        if state is None:
            return unquote(begun.cookies["error"])
        query = {"state": unquote(state[1]), "code": "c"}
        return unquote((await browser.get("/auth/callback", params=query)).cookies["error"])


@pytest.mark.parametrize(("config", "documents"), ATTACKS_SSO.values(), ids=ATTACKS_SSO)
async def test_single_sign_on_does_not_reach_a_private_address(
    config: dict[str, str],
    documents: dict[str, str],
    victim: HttpServer,
    start_plane: StartControlPlane,
) -> None:
    changed = {name: text.format(victim=victim.url) for name, text in documents.items()}
    spec = {"outbound": OutboundSpec(allowed_networks=(f"{ALLOWED}/32",))}
    async with oidc_provider(changed) as provider, start_plane(spec=spec) as plane:
        fields = {name: text.format(victim=victim.url) for name, text in config.items()}
        error = await try_sign_in(plane, oidc(**{"issuer": provider.url, **fields}))
    assert victim.requests == []
    assert "internal" not in error


async def test_github_enterprise_on_a_private_address_is_not_reached(
    victim: HttpServer, start_plane: StartControlPlane
) -> None:
    config = ProjectSSOConfig(
        provider=ProjectSSOConfig.GITHUB,
        github=ProjectSSOConfig.GitHub(base_url=victim.url),
    )
    async with start_plane() as plane:
        config.github.client_id = config.github.client_secret = "x"
        await plane.cases.projects.set_sso(config, by=plane.admin)
        stored = await plane.cases.projects.read("demo")
        error = await try_sign_in(plane, stored.sso)
    assert victim.requests == []
    assert "internal" not in error


async def test_the_error_names_the_setting(start_plane: StartControlPlane) -> None:
    async with start_plane() as plane:
        error = await try_sign_in(plane, oidc("http://127.0.0.1:1"))
    assert "spec.outbound.allowedNetworks" in error


async def test_a_provider_on_an_allowed_network_is_used(start_plane: StartControlPlane) -> None:
    spec = {"outbound": OutboundSpec(allowed_networks=(f"{ALLOWED}/32",))}
    async with oidc_provider({}) as provider, start_plane(spec=spec) as plane:
        error = await try_sign_in(plane, oidc(provider.url))
        paths = [request.split(" ")[1] for request in provider.requests]
    assert paths == ["/.well-known/openid-configuration", "/token", "/keys"]
    assert "ID token" in error
