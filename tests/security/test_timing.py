# SPDX-License-Identifier: Apache-2.0
"""Failed sign-ins and keys tell nothing by their answer or their work, and lock out nobody else."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import grpc
import httpx2
import pytest

from pipecd.controlplane.auth.request_origin import call_source, lockout_source
from pipecd.controlplane.webhooks.signature import is_signed
from pipecd.model.address import parse_networks
from pipecd.model.clock import utc_now
from pipecd.model.errors import PipecdError, Unauthenticated, Unavailable
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets import keys
from pipecd.wire.credentials import PipedToken, piped_token
from pipecd.wire.peer import PEER
from servers.control_plane import LocalPiped, ServedControlPlane, start_control_plane

LIST_APPLICATIONS = "/grpc.service.pipedservice.PipedService/ListApplications"
STRANGER, OURS = "203.0.113.9", "198.51.100.7"


@pytest.fixture(scope="module")
async def plane(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ServedControlPlane]:
    proxies = parse_networks(["127.0.0.0/8"])
    async with start_control_plane(
        tmp_path_factory.mktemp("plane"), trusted_proxies=proxies
    ) as running:
        yield running


class Work:
    """Counts the comparisons of passwords and digests."""

    def __init__(self) -> None:
        self.done: list[str] = []


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    counted = Work()
    slow, fast = keys.key_matches, hmac.compare_digest

    def key_matches(key: str, hashed: str) -> bool:
        # A hash that bcrypt refuses is compared in no time.
        counted.done.append(f"bcrypt of cost {hashed.split('$')[2]}")
        return slow(key, hashed)

    def compare_digest(left: str, right: str) -> bool:
        counted.done.append("compare")
        return fast(left, right)

    monkeypatch.setattr(keys, "key_matches", key_matches)
    monkeypatch.setattr(hmac, "compare_digest", compare_digest)
    return counted


# What a stranger tries, and what a wrong password of an existing admin looks like.
ATTACKS_SIGN_IN = {
    "an unknown project": {"project": "nowhere"},
    "an unknown project with a known name": {"project": "nowhere", "username": "admin"},
    "a project that another one begins with": {"project": "dem"},
    "a project in capitals": {"project": "DEMO"},
    "an unknown user": {"username": "nobody"},
    "a user that another one begins with": {"username": "admi"},
    "a user in capitals": {"username": "ADMIN"},
    "a static admin without a password": {"project": "empty"},
    "a disabled static admin": {"project": "disabled"},
}


@pytest.fixture(scope="module")
async def odd_projects(plane: ServedControlPlane) -> None:
    """A project without a password, and one whose static admin is disabled."""
    for name in ("empty", "disabled"):
        await plane.cases.projects.add(name, "")

    def clear(project: Project) -> None:
        project.static_admin.password_hash = keys.REDACTED

    def disable(project: Project) -> None:
        project.static_admin_disabled = True

    await plane.running.stores.projects.update("empty", clear)
    await plane.running.stores.projects.update("disabled", disable)


_ADDRESSES = (f"203.0.113.{n}" for n in range(256))


async def answer_to(plane: ServedControlPlane, **changes: str) -> tuple[int, str, str]:
    """The answer to a sign-in from an address that has not failed yet."""
    headers = {"X-Forwarded-For": next(_ADDRESSES)}
    form = {"project": "demo", "username": "admin", "password": "wrong", "return": "/"}
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}", headers=headers) as browser:
        response = await browser.post("/auth/login/static", data={**form, **changes})
    text = response.text
    # What was typed is shown again.
    for name, value in {**form, **changes}.items():
        text = text.replace(f'value="{value}"', f'value="({name})"')
        text = text.replace(f"<bdi>{value}</bdi>", f"<bdi>({name})</bdi>")
    return response.status_code, response.headers.get("location", ""), text


@pytest.mark.usefixtures("odd_projects")
@pytest.mark.parametrize("changes", ATTACKS_SIGN_IN.values(), ids=ATTACKS_SIGN_IN)
async def test_a_failed_sign_in_looks_like_a_wrong_password(
    plane: ServedControlPlane, work: Work, changes: dict[str, str]
) -> None:
    expected = await answer_to(plane)
    expected_work, work.done = work.done, []
    assert await answer_to(plane, **changes) == expected
    assert work.done == expected_work
    assert "bcrypt of cost 10" in work.done


async def test_the_page_of_an_unknown_project_is_that_of_a_known_one(
    plane: ServedControlPlane,
) -> None:
    async with httpx2.AsyncClient(base_url=f"http://{plane.address}") as browser:
        unknown = (await browser.get("/login?project=nowhere")).text
        known = (await browser.get("/login?project=demo")).text
    assert unknown.replace("nowhere", "demo") == known


async def test_the_right_password_still_signs_in(plane: ServedControlPlane) -> None:
    status, location, _ = await answer_to(plane, password=plane.password)
    assert (status, location) == (302, "/")


Attempt = Callable[[str, str], Awaitable[object]]


async def guess(attempt: Attempt, source: str, times: int = 12) -> None:
    for n in range(times):
        with suppress(PipecdError):
            await attempt(f"guess-{n}", source)


async def test_wrong_piped_keys_lock_out_their_source_only(plane: ServedControlPlane) -> None:
    piped = await plane.register_piped("locked")

    async def attempt(key: str, source: str) -> object:
        token = PipedToken("demo", piped.id, key)
        return await plane.cases.credentials.piped(token, lambda: source)

    await guess(attempt, STRANGER)
    with pytest.raises(Unavailable):
        await attempt("one more", STRANGER)
    with pytest.raises(Unauthenticated):
        await attempt("a mistake", OURS)
    await attempt(piped.key, OURS)


async def test_wrong_api_keys_lock_out_their_source_only(plane: ServedControlPlane) -> None:
    key = await plane.cases.api_keys.generate("locked", APIKey.READ_ONLY, by=plane.admin)
    id, _, _ = key.partition(".")

    async def attempt(secret: str, source: str) -> object:
        return await plane.cases.api_keys.verify(f"{id}.{secret}", lambda: source)

    await guess(attempt, STRANGER)
    with pytest.raises(Unavailable):
        await attempt("one more", STRANGER)
    await plane.cases.api_keys.verify(key, lambda: OURS)


async def test_wrong_passwords_lock_out_their_source_only(plane: ServedControlPlane) -> None:
    async def attempt(password: str, source: str) -> object:
        return await plane.cases.sessions.sign_in("demo", "admin", password, source)

    await guess(attempt, STRANGER)
    with pytest.raises(Unavailable):
        await attempt("one more", STRANGER)
    await attempt(plane.password, OURS)


@asynccontextmanager
async def forwarded(plane: ServedControlPlane, source: str) -> AsyncGenerator[str, None]:
    """The address of a relay that connects to the control plane from another address."""
    host, _, port = plane.address.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
        await asyncio.gather(pump(reader, inner[1]), pump(inner[0], writer))

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def call(address: str, piped: LocalPiped, key: str) -> grpc.StatusCode:
    """The code of a call with this key, over a connection of its own."""
    metadata = (("authorization", piped_token("demo", piped.id, key)),)
    async with grpc.aio.insecure_channel(
        address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        try:
            await channel.unary_unary(LIST_APPLICATIONS)(b"", metadata=metadata, timeout=10)
        except grpc.aio.AioRpcError as e:
            return e.code()
    return grpc.StatusCode.OK


async def test_a_piped_is_let_in_while_a_stranger_guesses_its_key(
    plane: ServedControlPlane,
) -> None:
    piped = await plane.register_piped("attacked")
    async with forwarded(plane, "127.0.0.2") as address:
        codes = [await call(address, piped, f"guess-{n}") for n in range(12)]
    assert codes[-1] is grpc.StatusCode.UNAVAILABLE
    assert await call(plane.address, piped, piped.key) is grpc.StatusCode.OK


# Peers of gRPC calls and their headers; each is another client.
ATTACKS_SOURCES: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "IPv4": ("ipv4:203.0.113.9:1234", ()),
    "IPv6": ("ipv6:%5B2001:db8::1%5D:1234", ()),
    "a relay of the shared port": ("unix:/tmp/pipecd-x/relay-7-198.51.100.7", ()),
    "a relay of IPv6": ("unix:/tmp/pipecd-x/relay-7-2001:db8:1::1", ()),
    "a client behind a trusted proxy": (
        "ipv4:10.0.0.1:1234", (("x-forwarded-for", "192.0.2.1"),),
    ),
    "another client behind it": ("ipv4:10.0.0.1:1234", (("x-forwarded-for", "192.0.2.2"),)),
    "a client that pretends to be behind one": (
        "ipv4:203.0.113.10:1234", (("x-forwarded-for", "192.0.2.1"),),
    ),
    "a client that lies about where it comes from": (
        "ipv4:10.0.0.1:1234", (("x-forwarded-for", "192.0.2.1, 192.0.2.3"),),
    ),
}  # fmt: skip
SOURCES = (
    "203.0.113.9", "2001:db8::/64", "198.51.100.7", "2001:db8:1::/64",
    "192.0.2.1", "192.0.2.2", "203.0.113.10", "192.0.2.3",
)  # fmt: skip


@pytest.mark.parametrize(
    ("peer", "headers", "source"),
    [(*attack, source) for attack, source in zip(ATTACKS_SOURCES.values(), SOURCES, strict=True)],
    ids=ATTACKS_SOURCES,
)
def test_a_call_is_counted_for(
    peer: str, headers: tuple[tuple[str, str], ...], source: str
) -> None:
    proxies = parse_networks(["10.0.0.0/8"])
    assert call_source((*headers, (PEER, peer)), proxies) == source


def test_a_network_of_ipv6_is_one_source() -> None:
    assert lockout_source("2001:db8::1") == lockout_source("2001:db8::ffff:1")
    assert lockout_source("::ffff:203.0.113.9") == "203.0.113.9"


def test_signatures_of_webhooks_are_compared_in_constant_time(work: Work) -> None:
    secrets = ("one", "two", "three")
    for token in ("one", "three", "wrong"):
        work.done = []
        is_signed({"x-gitlab-token": token}, b"", secrets, utc_now())
        assert work.done == ["compare"] * 3
    for secret in (*secrets, "wrong"):
        work.done = []
        digest = hmac.digest(secret.encode(), b"body", "sha256").hex()
        is_signed({"x-gitea-signature": digest}, b"body", secrets, utc_now())
        assert work.done == ["compare"] * 3
