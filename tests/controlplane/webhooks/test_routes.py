# SPDX-License-Identifier: Apache-2.0
"""A signed push wakes the pipeds that watch the repository."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.webhooks import Webhooks
from pipecd.controlplane.web import WebServer, http_server
from pipecd.controlplane.webhooks import routes
from pipecd.controlplane.webhooks.routes import RateLimiter, create_webhooks
from pipecd.model.clock import Now, to_unix
from pipecd.model.errors import Denied, Unavailable
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest

REPOSITORY = {
    "clone_url": "https://github.com/shop/site.git",
    "ssh_url": "git@github.com:shop/site.git",
}
PUSH = json.dumps({"ref": "refs/heads/main", "repository": REPOSITORY}).encode()


def signed(secret: str, body: bytes = PUSH, event: str = "push") -> dict[str, str]:
    return {
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}",
    }


@asynccontextmanager
async def served(webhooks: Webhooks, **settings: Any) -> AsyncGenerator[httpx2.AsyncClient]:
    web = WebServer(create_webhooks(webhooks, **settings))
    async with (
        http_server(web, host="127.0.0.1", port=0) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield client
        await web.stop()


@pytest.fixture
async def client(cases: UseCases, now: Now) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the webhook endpoint."""
    async with served(cases.webhooks, now=now) as client:
        yield client


async def secret_of(cases: UseCases, admin: User) -> str:
    settings = await cases.webhooks.settings(by=admin)
    assert settings is not None
    assert settings.secret is not None
    return settings.secret


@pytest.fixture
async def secret(cases: UseCases, admin: User, piped: PipedCaller) -> str:
    """The secret of a project with a piped that watches `shop/site`."""
    del piped
    await cases.webhooks.rotate(by=admin)
    return await secret_of(cases, admin)


@asynccontextmanager
async def published(bus: MemoryBus) -> AsyncGenerator[list[Signal]]:
    """The signals that are published within the context."""
    signals: list[Signal] = []
    async with bus.subscribe() as stream:
        yield signals
        await bus.publish(Signal(Topic.EVENT, "the end", "x"))
        async for signal in stream:
            if signal.id == "the end":
                return
            signals.append(signal)


async def test_a_push_wakes_the_piped_that_watches_the_repository_and_no_other(
    client: httpx2.AsyncClient,
    cases: UseCases,
    bus: MemoryBus,
    piped: PipedCaller,
    other_piped: PipedCaller,
    secret: str,
) -> None:
    elsewhere = ApplicationGitRepository(
        id="infra", remote="git@github.com:shop/infra.git", branch="main"
    )
    meta = ReportPipedMetaRequest(repositories=[elsewhere], config="{}")
    await cases.pipeds.report_meta(meta, by=other_piped)
    async with published(bus) as signals:
        response = await client.post("/webhooks/shop", content=PUSH, headers=signed(secret))
    assert (response.status_code, response.json()) == (202, {"message": "accepted"})
    assert signals == [Signal(Topic.REPOSITORY, "site", "shop", piped.piped)]
    settings = await cases.webhooks.settings(by=User("shop", "ann", ("Admin",)))
    assert settings is not None
    assert settings.last is not None
    assert (settings.last.host, settings.last.woken) == ("GitHub", 1)


async def test_a_push_to_an_unwatched_repository_gets_the_same_response(
    client: httpx2.AsyncClient, bus: MemoryBus, secret: str
) -> None:
    body = PUSH.replace(b"shop/site", b"shop/unknown")
    async with published(bus) as signals:
        response = await client.post("/webhooks/shop", content=body, headers=signed(secret, body))
    assert (response.status_code, response.json()) == (202, {"message": "accepted"})
    assert signals == []


async def test_a_disabled_piped_is_not_woken(
    client: httpx2.AsyncClient,
    cases: UseCases,
    bus: MemoryBus,
    admin: User,
    piped: PipedCaller,
    secret: str,
) -> None:
    await cases.pipeds.disable(piped.piped, by=admin)
    async with published(bus) as signals:
        await client.post("/webhooks/shop", content=PUSH, headers=signed(secret))
    assert signals == []


@pytest.mark.parametrize(
    ("path", "key"),
    [
        pytest.param("/webhooks/shop", "wrong", id="a wrong secret"),
        pytest.param("/webhooks/nobody", "wrong", id="a project that does not exist"),
        pytest.param("/webhooks/declared", "wrong", id="a project without webhooks"),
        pytest.param("/webhooks/a%00b", "wrong", id="a project that cannot exist"),
        pytest.param(f"/webhooks/{'x' * 5000}", "wrong", id="a project of a very long name"),
    ],
)
async def test_an_invalid_signature_gets_the_same_response_for_any_project(
    client: httpx2.AsyncClient, bus: MemoryBus, secret: str, path: str, key: str
) -> None:
    del secret
    async with published(bus) as signals:
        response = await client.post(path, content=PUSH, headers=signed(key))
        unsigned = await client.post(path, content=PUSH)
    for each in (response, unsigned):
        assert (each.status_code, each.json()) == (401, {"message": "invalid signature"})
    assert signals == []


async def test_an_unreadable_secret_is_not_revealed_to_senders(
    stores: Stores, bus: MemoryBus, secret: str, now: Now
) -> None:
    others = build_use_cases(stores, bus, address="", encryption_key=b"another key" * 3, now=now)
    async with served(others.webhooks, now=now) as client:
        response = await client.post("/webhooks/shop", content=PUSH, headers=signed(secret))
    assert (response.status_code, response.json()) == (401, {"message": "invalid signature"})


async def test_the_secret_is_stored_encrypted_and_shown_to_administrators_only(
    cases: UseCases, stores: Stores, viewer: User, secret: str
) -> None:
    sealed = await stores.webhook_secrets.get("shop")
    assert sealed is not None
    assert secret not in sealed.current
    assert secret.startswith("whsec_")
    for action in (cases.webhooks.settings, cases.webhooks.rotate, cases.webhooks.remove):
        with pytest.raises(Denied):
            await action(by=viewer)


async def test_an_earlier_secret_is_valid_for_a_day(
    client: httpx2.AsyncClient,
    cases: UseCases,
    admin: User,
    secret: str,
    advance: Callable[[float], None],
) -> None:
    async def status(key: str) -> int:
        headers = signed(key)
        return (await client.post("/webhooks/shop", content=PUSH, headers=headers)).status_code

    await cases.webhooks.rotate(by=admin)
    fresh = await secret_of(cases, admin)
    assert fresh != secret
    assert (await status(secret), await status(fresh)) == (202, 202)
    advance(24 * 60 * 60 - 1)
    assert await status(secret) == 202
    advance(1)
    assert (await status(secret), await status(fresh)) == (401, 202)
    await cases.webhooks.rotate(by=admin)
    await cases.webhooks.remove(by=admin)
    assert (await status(fresh), await cases.webhooks.settings(by=admin)) == (401, None)


@pytest.mark.parametrize(
    ("body", "event", "expected"),
    [
        pytest.param(b'{"zen": "."}', "ping", "200 pong", id="a ping"),
        pytest.param(b"{}", "star", "200 event ignored", id="another event"),
        pytest.param(b"no", "push", "422 the delivery is not JSON", id="a broken delivery"),
    ],
)
async def test_other_deliveries_wake_no_piped(
    client: httpx2.AsyncClient,
    bus: MemoryBus,
    secret: str,
    body: bytes,
    event: str,
    expected: str,
) -> None:
    async with published(bus) as signals:
        headers = signed(secret, body, event)
        response = await client.post("/webhooks/shop", content=body, headers=headers)
    assert f"{response.status_code} {response.json()['message']}".startswith(expected)
    assert signals == []


async def test_bitbucket_may_test_the_connection_without_a_signature(
    client: httpx2.AsyncClient, secret: str
) -> None:
    del secret
    ping = {"X-Event-Key": "diagnostics:ping"}
    known = await client.post("/webhooks/shop", content=b'{"test": true}', headers=ping)
    unknown = await client.post("/webhooks/nobody", content=b'{"test": true}', headers=ping)
    assert known.status_code == unknown.status_code == 200
    assert known.json() == unknown.json()
    forged = await client.post(
        "/webhooks/shop", content=b"{}", headers={**ping, "X-Hub-Signature": "sha256=00"}
    )
    assert forged.status_code == 401


async def test_a_repeated_delivery_id_is_ignored(
    client: httpx2.AsyncClient, bus: MemoryBus, secret: str, now: Now
) -> None:
    body = b'{"repository": "git@github.com:shop/site.git"}'

    def headers(id: str) -> dict[str, str]:
        moment = to_unix(now())
        made = hmac.digest(secret.encode(), f"{id}.{moment}.".encode() + body, "sha256")
        return {
            "webhook-id": id,
            "webhook-timestamp": str(moment),
            "webhook-signature": f"v1,{base64.b64encode(made).decode()}",
        }

    messages: list[str] = []
    for id in ("a", "a", "b", "a"):
        async with published(bus) as signals:
            response = await client.post("/webhooks/shop", content=body, headers=headers(id))
        messages.append(response.json()["message"])
        assert bool(signals) is (messages[-1] == "accepted")
    assert messages == ["accepted", "already delivered", "accepted", "already delivered"]


async def test_the_rate_limit_applies_to_each_project(
    cases: UseCases, bus: MemoryBus, secret: str, now: Now
) -> None:
    seconds = [0.0]
    rate_limiter = RateLimiter(burst=3, per_second=0.5, clock=lambda: seconds[0])
    async with served(cases.webhooks, rate_limiter=rate_limiter, now=now) as client:

        async def post() -> int:
            headers = signed(secret)
            return (await client.post("/webhooks/shop", content=PUSH, headers=headers)).status_code

        # Unsigned deliveries do not count.
        for _ in range(5):
            await client.post("/webhooks/shop", content=PUSH, headers=signed("wrong"))
        assert [await post() for _ in range(5)] == [202, 202, 202, 429, 429]
        seconds[0] += 2
        assert [await post() for _ in range(2)] == [202, 429]
    assert rate_limiter.allow("another project")


async def test_a_delivery_that_is_too_large_is_rejected(
    client: httpx2.AsyncClient, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_BODY_BYTES", 1000)
    body = b" " * 1001

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 100

    announced = await client.post("/webhooks/shop", content=body, headers=signed(secret, body))
    streamed = await client.post("/webhooks/shop", content=parts(), headers=signed(secret, body))
    assert (announced.status_code, streamed.status_code) == (413, 413)


async def test_a_slow_sender_times_out(
    client: httpx2.AsyncClient, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "_READ_TIMEOUT_SECONDS", 0.05)
    never = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b" "
        await never.wait()

    posting = asyncio.ensure_future(
        client.post("/webhooks/shop", content=parts(), headers=signed(secret))
    )
    _, waiting = await asyncio.wait({posting}, timeout=0.5)
    never.set()
    if waiting:
        await posting
    assert posting.result().status_code == 408


async def test_other_methods_and_paths_are_rejected(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/webhooks/shop")).status_code == 405
    assert (await client.post("/webhooks/shop/more")).status_code == 404


async def test_an_outage_of_the_datastore_is_a_503(
    cases: UseCases, now: Now, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_project: str) -> tuple[str, ...]:
        raise Unavailable("the database is unavailable")

    monkeypatch.setattr(cases.webhooks, "secrets_of", fail)
    async with served(cases.webhooks, now=now) as client:
        response = await client.post("/webhooks/shop", content=PUSH)
    assert (response.status_code, response.json()) == (503, {"message": "temporarily unavailable"})
