# SPDX-License-Identifier: Apache-2.0
"""Forged, stolen and borrowed credentials: session cookies, API keys and keys of pipeds."""

import base64
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jwt
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.errors import PipecdError
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.wire.credentials import PipedToken
from servers.control_plane import ServedControlPlane, start_control_plane

KEY = b"k" * 32
OTHER = User("other", "root", ("Admin",))


@dataclass
class World:
    """A control plane with two projects; the attacker has what `other` has, and a read-only key."""

    plane: ServedControlPlane
    piped_key: str
    piped_id: str
    read_only: str
    other_piped: tuple[str, str]
    other_key: str
    stored: dict[str, str] = field(default_factory=dict[str, str])

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=f"http://{self.plane.address}")


@pytest.fixture(scope="module")
async def plane(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServedControlPlane]:
    del anyio_backend
    async with start_control_plane(tmp_path_factory.mktemp("plane"), metrics=False) as plane:
        await plane.cases.projects.add("other")
        yield plane


@pytest.fixture
async def world(plane: ServedControlPlane) -> World:
    piped = await plane.cases.pipeds.register("dev", "", by=plane.admin)
    theirs = await plane.cases.pipeds.register("dev", "", by=OTHER)
    return World(
        plane,
        piped.key,
        piped.id,
        await plane.cases.api_keys.generate("reader", APIKey.READ_ONLY, by=plane.admin),
        (theirs.id, theirs.key),
        await plane.cases.api_keys.generate("theirs", APIKey.READ_WRITE, by=OTHER),
    )


def encoded(part: Any) -> str:
    text = json.dumps(part).encode() if not isinstance(part, bytes) else part
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    """The claims of an administrator of the project."""
    now = to_unix(utc_now())
    role = {"project_id": "demo", "project_rbac_roles": ["Admin"]}
    every = {"iss": "PipeCD", "sub": "admin", "iat": now - 5, "nbf": now - 5, "exp": now + 600}
    present = {**every, "role": role, **changes}
    return {name: value for name, value in present.items() if value is not None}


def signed(key: bytes, algorithm: str = "HS256", **changes: Any) -> Callable[[World], str]:
    def forge(_world: World) -> str:
        head = encoded({"alg": algorithm, "typ": "JWT"}) + "." + encoded(claims(**changes))
        hashes = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}
        return f"{head}.{encoded(hmac.digest(key, head.encode(), hashes[algorithm]))}"

    return forge


def unsigned(algorithm: str, signature: str = "") -> Callable[[World], str]:
    return lambda _: f"{encoded({'alg': algorithm, 'typ': 'JWT'})}.{encoded(claims())}.{signature}"


def valid(_world: World) -> str:
    return signed(KEY)(_world)


def viewer_as_admin(world: World) -> str:
    """The token of a viewer with other claims and the old signature."""
    token = world.plane.cases.sessions.issue(User("demo", "vera", ("Viewer",)))
    head, payload, signature = token.split(".")
    content = jwt.decode(token, options={"verify_signature": False})
    content["role"]["project_rbac_roles"] = ["Admin"]
    assert payload != encoded(content)
    return f"{head}.{encoded(content)}.{signature}"


def embedded_key(_world: World) -> str:
    """The token brings its own key in its header."""
    jwk = {"kty": "oct", "k": encoded(b"mine")}
    head = encoded({"alg": "HS256", "typ": "JWT", "jwk": jwk, "kid": "../../dev/null"})
    text = f"{head}.{encoded(claims())}"
    return f"{text}.{encoded(hmac.digest(b'mine', text.encode(), 'sha256'))}"


def piped_key_as_key(world: World) -> str:
    return signed(world.piped_key.encode())(world)


NOW = to_unix(utc_now())
ATTACKS_ON_SESSIONS: dict[str, Callable[[World], str]] = {
    "no signature": unsigned("none"),
    "no signature, in another spelling": unsigned("nOnE"),
    "no signature, with some": unsigned("none", "AAAA"),
    "an empty signature": unsigned("HS256"),
    "the key of nobody": signed(b""),
    "another key": signed(b"j" * 32),
    "the beginning of the key": signed(KEY[:31]),
    "a key of the attacker in the header": embedded_key,
    "the key of a piped": piped_key_as_key,
    "another algorithm": signed(KEY, "HS512"),
    "an expired session": signed(KEY, exp=NOW - 1),
    "a session of the future": signed(KEY, nbf=NOW + 3600),
    "a session that never expires": signed(KEY, exp=None),
    "an expiry that is not a number": signed(KEY, exp="9999999999"),
    "an expiry that is true": signed(KEY, exp=True),
    "a token for something else": signed(KEY, iss="Somebody"),
    "a role that a viewer gave themselves": viewer_as_admin,
    "a truncated token": lambda world: valid(world)[:-2],
    "a token of two parts": lambda world: valid(world).rpartition(".")[0],
    "an API key": lambda world: world.plane.api_key,
    "a session of a project that does not exist": signed(
        KEY, role={"project_id": "nowhere", "project_rbac_roles": ["Admin"]}
    ),
    "a session of no project": signed(KEY, role={"project_rbac_roles": ["Admin"]}),
    "a role that is no list": signed(KEY, role={"project_id": "demo", "project_rbac_roles": 1}),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_SESSIONS.values(), ids=ATTACKS_ON_SESSIONS)
async def test_no_session_begins_with(world: World, attack: Callable[[World], str]) -> None:
    headers = {"Cookie": f"token={attack(world)}"}
    async with world.client() as browser:
        assert (await browser.get("/settings/project", headers=headers)).status_code == 303
        call = await browser.post(
            "/grpc.service.webservice.WebService/GetMe",
            content=b"\0\0\0\0\0",
            headers={**headers, "Content-Type": "application/grpc-web+proto"},
        )
    assert b"grpc-status:16" in call.content.lower().replace(b" ", b"")


async def test_a_session_of_upstream_is_valid(world: World) -> None:
    async with world.client() as browser:
        headers = {"Cookie": f"token={valid(world)}"}
        assert (await browser.get("/settings/project", headers=headers)).status_code == 200


@dataclass(frozen=True)
class KeyAttack:
    """A key of the attacker, and whether the request would change something."""

    key: Callable[[World], str]
    writes: bool = False


def swapped(world: World) -> str:
    """The id of one key with the secret of another."""
    id, _, _ = world.plane.api_key.partition(".")
    return f"{id}.{world.other_key.partition('.')[2]}"


ATTACKS_ON_API_KEYS: dict[str, KeyAttack] = {
    "no API key": KeyAttack(lambda _: ""),
    "the id of a key": KeyAttack(lambda world: world.plane.api_key.partition(".")[0]),
    "the id of a key and no secret": KeyAttack(
        lambda world: f"{world.plane.api_key.partition('.')[0]}."
    ),
    "the id of one key with the secret of another": KeyAttack(swapped),
    "a truncated API key": KeyAttack(lambda world: world.plane.api_key[:-1]),
    "a longer API key": KeyAttack(lambda world: f"{world.plane.api_key}a"),
    "an API key in capitals": KeyAttack(lambda world: world.plane.api_key.upper()),
    "the stored hash as the key": KeyAttack(lambda world: world.stored["hash"]),
    "the id of a key with its stored hash": KeyAttack(
        lambda world: f"{world.plane.api_key.partition('.')[0]}.{world.stored['hash']}"
    ),
    "the key of a piped as an API key": KeyAttack(lambda world: world.piped_key),
    "a session as an API key": KeyAttack(valid),
    "a read-only key that writes": KeyAttack(lambda world: world.read_only, writes=True),
    "a disabled API key": KeyAttack(lambda world: world.stored["disabled"]),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_API_KEYS.values(), ids=ATTACKS_ON_API_KEYS)
async def test_no_request_is_accepted_with(world: World, attack: KeyAttack) -> None:
    cases, admin = world.plane.cases, world.plane.admin
    disabled = await cases.api_keys.generate("old", APIKey.READ_WRITE, by=admin)
    assert await cases.credentials.api_key(disabled)
    await cases.api_keys.disable(disabled.partition(".")[0], by=admin)
    stored = await world.plane.running.stores.api_keys.get(world.plane.api_key.partition(".")[0])
    world.stored = {"hash": stored.key_hash, "disabled": disabled}
    async with world.client() as client:
        headers = {"Authorization": f"Bearer {attack.key(world)}".strip()}
        if attack.writes:
            event = {"name": "image", "data": "v1"}
            answer = await client.post("/api/v1/events", json=event, headers=headers)
        else:
            answer = await client.get(f"/api/v1/pipeds/{world.piped_id}", headers=headers)
    assert answer.status_code in (401, 403), answer.text


async def test_an_api_key_is_accepted(world: World) -> None:
    async with world.client() as client:
        headers = {"Authorization": f"Bearer {world.plane.api_key}"}
        answer = await client.get(f"/api/v1/pipeds/{world.piped_id}", headers=headers)
    assert answer.status_code == 200, answer.text


async def test_an_api_key_of_another_project_sees_nothing(world: World) -> None:
    async with world.client() as client:
        headers = {"Authorization": f"Bearer {world.other_key}"}
        answer = await client.get(f"/api/v1/pipeds/{world.piped_id}", headers=headers)
    # The code that upstream answers with, too.
    assert (answer.status_code, "piped" in answer.json()) == (400, False), answer.text


PipedAttack = Callable[[World], PipedToken]
ATTACKS_ON_PIPEDS: dict[str, PipedAttack] = {
    "the key of another piped": lambda w: PipedToken("demo", w.piped_id, w.other_piped[1]),
    "a piped of another project": lambda w: PipedToken("demo", *w.other_piped),
    "a project of another piped": lambda w: PipedToken("other", w.piped_id, w.piped_key),
    "a truncated piped key": lambda w: PipedToken("demo", w.piped_id, w.piped_key[:-1]),
    "a longer piped key": lambda w: PipedToken("demo", w.piped_id, f"{w.piped_key}a"),
    "a piped key with a newline": lambda w: PipedToken("demo", w.piped_id, f"{w.piped_key}\n"),
    "the stored hash as the piped key": lambda w: PipedToken("demo", w.piped_id, w.stored["hash"]),
    "an API key as a piped key": lambda w: PipedToken("demo", w.piped_id, w.plane.api_key),
    "a piped key that was rotated": lambda w: PipedToken("demo", w.piped_id, w.stored["old"]),
    "a disabled piped": lambda w: PipedToken("demo", w.stored["id"], w.stored["key"]),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_PIPEDS.values(), ids=ATTACKS_ON_PIPEDS)
async def test_no_piped_connects_with(world: World, attack: PipedAttack) -> None:
    cases, admin = world.plane.cases, world.plane.admin
    stored = (await world.plane.running.stores.pipeds.get(world.piped_id)).keys[0].hash
    old = world.piped_key
    assert await cases.credentials.piped(PipedToken("demo", world.piped_id, old))
    world.piped_key = await cases.pipeds.add_key(world.piped_id, by=admin)
    await cases.pipeds.delete_old_keys(world.piped_id, by=admin)
    disabled = await cases.pipeds.register("gone", "", by=admin)
    await cases.pipeds.disable(disabled.id, by=admin)
    world.stored = {"hash": stored, "old": old, "id": disabled.id, "key": disabled.key}
    with pytest.raises(PipecdError):
        await cases.credentials.piped(attack(world))
    assert await cases.credentials.piped(PipedToken("demo", world.piped_id, world.piped_key))
