# SPDX-License-Identifier: Apache-2.0
"""An API key does what its role says: it administers nothing, and few keys manage sessions."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex

import httpx2
import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.api_keys import (
    MANAGE_SESSIONS,
    READ_ONLY,
    READ_WRITE,
    READ_WRITE_APPROVE,
    KeyRole,
)
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import AlreadyExists, Denied, Unauthenticated, UserMistake
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.project_pb2 import (
    ProjectRBACConfig,
    ProjectRBACPolicy,
    ProjectRBACResource,
    ProjectSSOConfig,
)
from pipecd.secrets.session import session_id
from servers.control_plane import ServedControlPlane, start_control_plane

REST = "/api/v1/sessions"
RIVAL = User("other", "eve", ("Admin",))


@pytest.fixture(scope="module")
async def plane(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServedControlPlane]:
    del anyio_backend
    async with start_control_plane(tmp_path_factory.mktemp("plane"), metrics=False) as plane:
        yield plane


@dataclass(frozen=True)
class World:
    """A control plane, and a project of its own for each test."""

    plane: ServedControlPlane
    admin: User

    @property
    def cases(self) -> UseCases:
        return self.plane.cases

    @property
    def site(self) -> str:
        return f"http://{self.plane.address}"

    async def key(self, role: KeyRole, by: User | None = None) -> str:
        return await self.cases.api_keys.generate("ci", **role._asdict(), by=by or self.admin)

    async def session(self) -> str:
        return await self.cases.sessions.begin(User(self.admin.project, "vera", ("Viewer",)))

    async def accepts(self, token: str) -> bool:
        try:
            await self.cases.sessions.user(token)
        except Unauthenticated:
            return False
        return True

    async def settings(self) -> tuple[object, ...]:
        stores, project = self.plane.running.stores, self.admin.project
        keys = await stores.api_keys.list(project)
        return await stores.projects.get(project), keys, await stores.session_keys.granted(project)


@pytest.fixture
async def world(plane: ServedControlPlane) -> World:
    admin = User(f"demo-{token_hex(4)}", "admin", ("Admin",))
    await plane.cases.projects.add(admin.project, "", StaticAdmin("admin", "hello-demo"))
    with suppress(AlreadyExists):
        await plane.cases.projects.add(RIVAL.project)
    return World(plane, admin)


@dataclass(frozen=True)
class Attempt:
    """A request with an API key that may not see or end the sessions of the project."""

    method: str
    path: str
    role: KeyRole = READ_WRITE
    is_foreign: bool = False


def foreign(method: str, path: str) -> Attempt:
    return Attempt(method, path, MANAGE_SESSIONS, is_foreign=True)


ONE, OF_USER, ALL = f"{REST}/{{id}}", f"{REST}/end-of-user", f"{REST}/end-all"
LIST_OF_USER = f"{REST}?username=vera"
ATTACKS_ON_SESSIONS: dict[str, Attempt] = {
    "a read-only key lists sessions": Attempt("GET", REST, READ_ONLY),
    "a read-only key ends a session": Attempt("DELETE", ONE, READ_ONLY),
    "a read-only key ends the sessions of a user": Attempt("POST", OF_USER, READ_ONLY),
    "a read-only key ends all sessions": Attempt("POST", ALL, READ_ONLY),
    "a read-write key lists sessions": Attempt("GET", REST),
    "a read-write key lists the sessions of a user": Attempt("GET", LIST_OF_USER),
    "a read-write key ends a session": Attempt("DELETE", ONE),
    "a read-write key ends the sessions of a user": Attempt("POST", OF_USER),
    "a read-write key ends all sessions": Attempt("POST", ALL),
    "a key that approves lists sessions": Attempt("GET", REST, READ_WRITE_APPROVE),
    "a key that approves ends all sessions": Attempt("POST", ALL, READ_WRITE_APPROVE),
    "a key for sessions of another project lists sessions": foreign("GET", REST),
    "a key for sessions of another project lists those of a user": foreign("GET", LIST_OF_USER),
    "a key for sessions of another project ends a session": foreign("DELETE", ONE),
    "a key for sessions of another project ends those of a user": foreign("POST", OF_USER),
    "a key for sessions of another project ends all sessions": foreign("POST", ALL),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_SESSIONS.values(), ids=ATTACKS_ON_SESSIONS)
async def test_a_key_neither_sees_nor_ends_sessions(world: World, attack: Attempt) -> None:
    victim = await world.session()
    key = await world.key(attack.role, RIVAL if attack.is_foreign else None)
    async with httpx2.AsyncClient(base_url=world.site) as client:
        answer = await client.request(
            attack.method,
            attack.path.format(id=session_id(victim)),
            headers={"Authorization": f"Bearer {key}"},
            json={"username": "vera"} if attack.path == OF_USER else None,
        )
    assert answer.status_code in ((200, 404) if attack.is_foreign else (403,))
    assert session_id(victim) not in answer.text
    assert await world.accepts(victim)


GITHUB = ProjectSSOConfig(
    provider=ProjectSSOConfig.GITHUB,
    github=ProjectSSOConfig.GitHub(client_id="id", client_secret="s"),
)
EVERYTHING = ProjectRBACPolicy(
    resources=[ProjectRBACResource(type=ProjectRBACResource.ALL)], actions=[ProjectRBACPolicy.ALL]
)
Call = Callable[[UseCases, ApiKeyCaller], Awaitable[object]]
# No RPC offers these to keys today; the use cases refuse them whatever API calls them.
ATTACKS_ON_THE_PROJECT: dict[str, Call] = {
    "a key reads the settings": lambda cases, key: cases.projects.get(by=key),
    "a key sets the password": lambda cases, key: cases.projects.set_static_admin(
        "eve", "password", by=key
    ),
    "a key disables the static admin": lambda cases, key: cases.projects.disable_static_admin(
        by=key
    ),
    "a key sets the provider of sign-in": lambda cases, key: cases.projects.set_sso(GITHUB, by=key),
    "a key removes single sign-on": lambda cases, key: cases.projects.remove_sso(by=key),
    "a key sets the teams": lambda cases, key: cases.projects.set_legacy_teams(
        ProjectRBACConfig(admin="evil"), by=key
    ),
    "a key adds a role": lambda cases, key: cases.roles.add("evil", [EVERYTHING], by=key),
    "a key gives a group a role": lambda cases, key: cases.roles.add_group(
        "org/evil", "Admin", by=key
    ),
    "a key lists the keys": lambda cases, key: cases.api_keys.list(by=key),
    "a key generates a key": lambda cases, key: cases.api_keys.generate(
        "k", APIKey.READ_WRITE, by=key
    ),
    "a key disables itself": lambda cases, key: cases.api_keys.disable(key.key_id, by=key),
    "a key gives itself a role": lambda cases, key: cases.api_keys.set_role(
        key.key_id, **MANAGE_SESSIONS._asdict(), by=key
    ),
    "a key replaces the secret of webhooks": lambda cases, key: cases.webhooks.rotate(by=key),
    "a key removes the secret of webhooks": lambda cases, key: cases.webhooks.remove(by=key),
}


@pytest.mark.parametrize(
    "role",
    [
        pytest.param(READ_WRITE, id="by a read-write key"),
        pytest.param(READ_WRITE_APPROVE, id="by a key that approves"),
        pytest.param(MANAGE_SESSIONS, id="by a key for sessions"),
    ],
)
@pytest.mark.parametrize("attack", ATTACKS_ON_THE_PROJECT.values(), ids=ATTACKS_ON_THE_PROJECT)
async def test_a_key_administers_nothing(world: World, attack: Call, role: KeyRole) -> None:
    caller = await world.cases.api_keys.verify(await world.key(role))
    before = await world.settings()
    with pytest.raises(Denied):
        await attack(world.cases, caller)
    assert await world.settings() == before


async def test_who_may_only_generate_keys_generates_none_for_sessions(world: World) -> None:
    keys = ProjectRBACResource(type=ProjectRBACResource.API_KEY)
    policy = ProjectRBACPolicy(resources=[keys], actions=[ProjectRBACPolicy.CREATE])
    await world.cases.roles.add("key-maker", [policy], by=world.admin)
    maker = User(world.admin.project, "eve", ("key-maker",))
    assert await world.key(READ_ONLY, maker)
    with pytest.raises(Denied):
        await world.key(MANAGE_SESSIONS, maker)


async def test_a_key_that_writes_cannot_manage_sessions(world: World) -> None:
    both = KeyRole(APIKey.READ_WRITE, may_manage_sessions=True)
    with pytest.raises(UserMistake, match="a key that writes cannot manage sessions"):
        await world.key(both)


async def test_a_key_for_sessions_lists_and_ends_them_until_its_role_changes(world: World) -> None:
    lost, kept = await world.session(), await world.session()
    key = await world.key(MANAGE_SESSIONS)
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx2.AsyncClient(base_url=world.site, headers=headers) as client:
        listed = (await client.get(REST)).json()["sessions"]
        assert {each["id"] for each in listed} == {session_id(lost), session_id(kept)}
        assert (await client.delete(ONE.format(id=session_id(lost)))).status_code == 200
        assert (await world.accepts(lost), await world.accepts(kept)) == (False, True)
        ended = await client.post(OF_USER, json={"username": "vera"})
        assert ended.status_code == 200
        assert not await world.accepts(kept)
        id = key.partition(".")[0]
        await world.cases.api_keys.set_role(id, APIKey.READ_ONLY, by=world.admin)
        refused = await client.get(REST)
    assert refused.status_code == 403
    assert "MANAGE_SESSIONS" in refused.text
