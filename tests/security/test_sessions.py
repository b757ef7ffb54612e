# SPDX-License-Identifier: Apache-2.0
"""A session that has ended stays ended, only those who may can end one, and somebody can sign in."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from secrets import token_hex

import httpx2
import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.jobs.maintenance import delete_expired_sign_ins
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.clock import to_unix, utc_now
from pipecd.model.errors import AlreadyExists, Conflict, Unauthenticated
from pipecd.proto.model.project_pb2 import (
    Project,
    ProjectRBACConfig,
    ProjectRBACPolicy,
    ProjectRBACResource,
    ProjectSSOConfig,
)
from pipecd.secrets.session import Session, sign
from servers.control_plane import ServedControlPlane, start_control_plane

KEY = b"k" * 32
VERA = User("demo", "vera", ("Viewer",))
DEV = User("demo", "dave", ("dev",))
ALL_RIGHTS = ProjectRBACPolicy(
    resources=[ProjectRBACResource(type=ProjectRBACResource.ALL)], actions=[ProjectRBACPolicy.ALL]
)
READ_ONLY = ProjectRBACPolicy(
    resources=[ProjectRBACResource(type=ProjectRBACResource.ALL)], actions=[ProjectRBACPolicy.GET]
)


@pytest.fixture(scope="module")
async def plane(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServedControlPlane]:
    del anyio_backend
    async with start_control_plane(tmp_path_factory.mktemp("plane"), metrics=False) as plane:
        yield plane


@dataclass
class World:
    """A control plane and a project of its own for each test, which has single sign-on."""

    plane: ServedControlPlane
    cases: UseCases
    admin: User

    @property
    def site(self) -> str:
        return f"http://{self.plane.address}"

    def of_project(self, user: User) -> User:
        return replace(user, project=self.admin.project)

    def start_replica(self) -> None:
        """Goes on with another replica, which has nothing in memory."""
        running = self.plane.running
        self.cases = build_use_cases(running.stores, running.bus, address="", encryption_key=KEY)

    async def accepts(self, token: str) -> bool:
        """Whether the console and the use cases take the token for a session; they must agree."""
        async with httpx2.AsyncClient(base_url=self.site) as browser:
            page = await browser.get("/applications", headers={"Cookie": f"token={token}"})
        try:
            await self.cases.sessions.user(token)
        except Unauthenticated:
            assert page.status_code == 303
            return False
        assert page.status_code == 200
        return True

    async def password_session(self) -> str:
        project = self.admin.project
        return (await self.cases.sessions.sign_in(project, "admin", "hello-demo")).token

    def sso_session(self, user: User = VERA) -> str:
        return self.cases.sessions.issue(self.of_project(user))

    async def sign_out(self, token: str) -> None:
        async with httpx2.AsyncClient(base_url=self.site) as browser:
            answer = await browser.post("/auth/logout", headers={"Cookie": f"token={token}"})
        assert answer.status_code == 302


def upstream_session(user: User, *, issued: int, hours: int) -> str:
    """A token as upstream makes it."""
    expires = issued + hours * 3600
    return sign(Session(user.name, user.project, user.roles, "", issued, expires), KEY)


def oidc(**fields: str) -> ProjectSSOConfig:
    values = {"client_id": "id", "client_secret": "s", "issuer": "https://idp.example", **fields}
    return ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, oidc=ProjectSSOConfig.Oidc(**values))


@pytest.fixture
async def world(plane: ServedControlPlane) -> World:
    admin = User(f"demo-{token_hex(4)}", "admin", ("Admin",))
    await plane.cases.projects.add(admin.project, "", StaticAdmin("admin", "hello-demo"))
    await plane.cases.projects.set_sso(oidc(), by=admin)
    await plane.cases.roles.add("dev", [ALL_RIGHTS], by=admin)
    await plane.cases.roles.add_group("org/devs", "dev", by=admin)
    await plane.cases.roles.add_group("org/all", "Viewer", by=admin)
    return World(plane, plane.cases, admin)


async def sign_out(world: World, token: str) -> None:
    await world.sign_out(token)


async def sign_out_and_restart(world: World, token: str) -> None:
    await world.sign_out(token)
    world.start_replica()


async def sign_out_and_clean_up(world: World, token: str) -> None:
    await world.sign_out(token)
    stores = world.plane.running.stores
    await delete_expired_sign_ins(stores.sessions, stores.session_endings, stores.used_codes)
    world.start_replica()


async def end_vera(world: World, _token: str) -> None:
    await world.cases.sessions.end_of_user(VERA.name, by=world.admin)


async def end_long_name(world: World, _token: str) -> None:
    await world.cases.sessions.end_of_user("v" * 300, by=world.admin)


async def end_all(world: World, _token: str) -> None:
    await world.cases.sessions.end_all(by=world.admin)


async def change_password(world: World, _token: str) -> None:
    await world.cases.projects.set_static_admin("admin", "another", by=world.admin)


async def change_password_and_back(world: World, token: str) -> None:
    await change_password(world, token)
    await world.cases.projects.set_static_admin("admin", "hello-demo", by=world.admin)


async def disable_and_enable(world: World, _token: str) -> None:
    await world.cases.projects.disable_static_admin(by=world.admin)
    await world.cases.projects.enable_static_admin(by=world.admin)


async def reset_password(world: World, _token: str) -> None:
    await world.cases.projects.reset_admin(world.admin.project)


async def delete_role(world: World, _token: str) -> None:
    await world.cases.roles.delete("dev", by=world.admin)


async def delete_role_and_add_it(world: World, token: str) -> None:
    await delete_role(world, token)
    await world.cases.roles.add("dev", [ALL_RIGHTS], by=world.admin)


async def change_role(world: World, _token: str) -> None:
    await world.cases.roles.update("dev", [READ_ONLY], by=world.admin)


async def delete_group(world: World, _token: str) -> None:
    await world.cases.roles.delete_group("org/devs", by=world.admin)


async def change_legacy_team(world: World, _token: str) -> None:
    teams = ProjectRBACConfig(admin="org/admins", viewer="org/others")
    await world.cases.projects.set_legacy_teams(teams, by=world.admin)
    teams.viewer = ""
    await world.cases.projects.set_legacy_teams(teams, by=world.admin)


async def change_issuer(world: World, _token: str) -> None:
    await world.cases.projects.set_sso(oidc(issuer="https://new.example"), by=world.admin)


async def change_claim(world: World, _token: str) -> None:
    config = oidc(client_secret="", roles_claim_key="pipecd")
    await world.cases.projects.set_sso(config, by=world.admin)


async def remove_sso(world: World, _token: str) -> None:
    await world.cases.projects.remove_sso(by=world.admin)


async def share_a_provider(world: World, _token: str) -> None:
    def change(project: Project) -> None:
        project.shared_sso_name = "company"

    await world.cases.projects.change(change, by=world.admin)


async def nothing(_world: World, _token: str) -> None:
    """The session is too old as it is."""


Issue = Callable[[World], Awaitable[str]]
End = Callable[[World, str], Awaitable[None]]


@dataclass(frozen=True)
class Attack:
    """The use of a session that has ended; `alter` is what the attacker does to its token."""

    issue: Issue
    end: End
    alter: Callable[[str], str] = str
    was_valid: bool = True


async def by_password(world: World) -> str:
    return await world.password_session()


def by_sso(user: User) -> Issue:
    async def issue(world: World) -> str:
        return world.sso_session(user)

    return issue


def by_upstream(user: User, *, age_days: int = 0, hours: int = 24) -> Issue:
    async def issue(world: World) -> str:
        issued = to_unix(utc_now()) - 5 - age_days * 86_400
        return upstream_session(world.of_project(user), issued=issued, hours=hours)

    return issue


def respelled(token: str) -> str:
    """The same signature: the last digit of its base64 has bits that decoders ignore."""
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return token[:-1] + digits[digits.index(token[-1]) ^ 1]


ADMIN = User("demo", "admin", ("Admin",))
LONG_NAME = User("demo", "v" * 300, ("Viewer",))
ATTACKS: dict[str, Attack] = {
    "a copy of the cookie after signing out": Attack(by_password, sign_out),
    "a copy of the cookie of a provider's user after signing out": Attack(by_sso(VERA), sign_out),
    "a copy of upstream's cookie after signing out": Attack(by_upstream(VERA), sign_out),
    "a signature in another spelling": Attack(by_sso(VERA), sign_out, respelled),
    "upstream's cookie in another spelling": Attack(by_upstream(VERA), sign_out, respelled),
    "a padded signature": Attack(by_sso(VERA), sign_out, lambda token: f"{token}="),
    "an ended session after a restart": Attack(by_sso(VERA), sign_out_and_restart),
    "an ended session after the clean-up": Attack(by_sso(VERA), sign_out_and_clean_up),
    "a session of a user whose sessions an admin ended": Attack(by_sso(VERA), end_vera),
    "a session of upstream of such a user": Attack(by_upstream(VERA), end_vera),
    "a session of a user with a long name": Attack(by_sso(LONG_NAME), end_long_name),
    "a session after all were ended": Attack(by_sso(DEV), end_all),
    "a session of the static admin after all were ended": Attack(by_password, end_all),
    "a session of an old password": Attack(by_password, change_password),
    "a session of an old password that is set again": Attack(by_password, change_password_and_back),
    "upstream's session of an old password": Attack(by_upstream(ADMIN), change_password),
    "a session of a static admin that was disabled meanwhile": Attack(
        by_password, disable_and_enable
    ),
    "a session of a password that the operator reset": Attack(by_password, reset_password),
    "upstream's session of a password that was reset": Attack(by_upstream(ADMIN), reset_password),
    "a session with a deleted role": Attack(by_sso(DEV), delete_role),
    "a session with a role that was deleted and added": Attack(by_sso(DEV), delete_role_and_add_it),
    "upstream's session with a deleted role": Attack(by_upstream(DEV), delete_role_and_add_it),
    "a session with a changed role": Attack(by_sso(DEV), change_role),
    "a session with the role of a removed group": Attack(by_sso(DEV), delete_group),
    "a session with the role of a former team": Attack(by_sso(VERA), change_legacy_team),
    "a session of a former provider": Attack(by_sso(VERA), change_issuer),
    "upstream's session of a former provider": Attack(by_upstream(VERA), change_issuer),
    "a session with roles of a former claim": Attack(by_sso(VERA), change_claim),
    "a session of a provider that was removed": Attack(by_sso(VERA), remove_sso),
    "a session of a project's own provider": Attack(by_sso(VERA), share_a_provider),
    "a session of ten years in its second": Attack(
        by_upstream(VERA, age_days=370, hours=87_600), nothing, was_valid=False
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_an_ended_session_is_refused(world: World, attack: Attack) -> None:
    token = await attack.issue(world)
    if attack.was_valid:
        assert await world.accepts(token)
        assert await world.accepts(attack.alter(token)) or attack.alter(token) != token
    await attack.end(world, token)
    assert not await world.accepts(attack.alter(token))


@dataclass(frozen=True)
class Attempt:
    """A request by which somebody tries to end sessions that are not theirs to end."""

    path: str
    by: User | None = None
    fields: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    with_csrf: bool = True
    method: str = "POST"


VICTIM = ("username", VERA.name)
PATH = "/settings/project/sessions"
CROSS_SITE = (("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"))
ATTACKS_ON_OTHERS: dict[str, Attempt] = {
    "a viewer ends the sessions of a user": Attempt(
        f"{PATH}/user", User("demo", "eve", ("Viewer",)), (VICTIM,)
    ),
    "an editor ends all sessions": Attempt(f"{PATH}/all", User("demo", "eve", ("Editor",))),
    "the admin of another project ends the sessions of a user": Attempt(
        f"{PATH}/user", User("other", "eve", ("Admin",)), (VICTIM,)
    ),
    "the admin of another project ends all sessions": Attempt(
        f"{PATH}/all", User("other", "eve", ("Admin",))
    ),
    "a stranger ends all sessions": Attempt(f"{PATH}/all"),
    "a page of another site ends all sessions": Attempt(
        f"{PATH}/all", User("demo", "root", ("Admin",)), headers=CROSS_SITE
    ),
    "a form without a CSRF token ends all sessions": Attempt(
        f"{PATH}/all", User("demo", "root", ("Admin",)), with_csrf=False
    ),
    "a form of another site signs a user out": Attempt("/auth/logout", VERA, headers=CROSS_SITE),
    "a link of another site signs a user out": Attempt(
        "/auth/logout", VERA, headers=CROSS_SITE, method="GET"
    ),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_OTHERS.values(), ids=ATTACKS_ON_OTHERS)
async def test_nobody_ends_the_sessions_of_others(world: World, attack: Attempt) -> None:
    with suppress(AlreadyExists):
        await world.cases.projects.add("other")
    victim = world.sso_session(VERA)
    token = ""
    if attack.by == VERA:
        token = victim
    elif attack.by is not None:
        by = attack.by if attack.by.project == "other" else world.of_project(attack.by)
        token = world.cases.sessions.issue(by)
    async with httpx2.AsyncClient(base_url=world.site) as browser:
        cookie = {"Cookie": f"token={token}"}
        page = (await browser.get("/settings/project", headers=cookie)).text
        csrf = re.search(r'name="csrf" value="([0-9a-f]+)"', page)
        fields = dict(attack.fields)
        if attack.with_csrf and csrf:
            fields["csrf"] = csrf[1]
        headers = {**cookie, **dict(attack.headers)}
        if attack.method == "GET":
            await browser.get(attack.path, headers=headers)
        else:
            await browser.post(attack.path, data=fields, headers=headers)
    assert await world.accepts(victim)


async def disable_without_provider(world: World) -> None:
    await world.cases.projects.remove_sso(by=world.admin)
    await world.cases.projects.disable_static_admin(by=world.admin)


async def remove_provider_without_admin(world: World) -> None:
    await world.cases.projects.disable_static_admin(by=world.admin)
    await world.cases.projects.remove_sso(by=world.admin)


def github() -> ProjectSSOConfig:
    fields = ProjectSSOConfig.GitHub(client_id="id", client_secret="s")
    return ProjectSSOConfig(provider=ProjectSSOConfig.GITHUB, github=fields)


async def remove_last_group(world: World) -> None:
    await world.cases.projects.set_sso(github(), by=world.admin)
    await world.cases.projects.disable_static_admin(by=world.admin)
    for group in ("org/devs", "org/all"):
        await world.cases.roles.delete_group(group, by=world.admin)


async def change_to_provider_without_groups(world: World) -> None:
    for group in ("org/devs", "org/all"):
        await world.cases.roles.delete_group(group, by=world.admin)
    await world.cases.projects.disable_static_admin(by=world.admin)
    await world.cases.projects.set_sso(github(), by=world.admin)


ATTACKS_ON_THE_WAY_IN: dict[str, Callable[[World], Awaitable[None]]] = {
    "the static admin is disabled without single sign-on": disable_without_provider,
    "single sign-on is removed without a static admin": remove_provider_without_admin,
    "the last group of GitHub loses its role": remove_last_group,
    "GitHub is set up without groups": change_to_provider_without_groups,
}


@pytest.mark.parametrize("attack", ATTACKS_ON_THE_WAY_IN.values(), ids=ATTACKS_ON_THE_WAY_IN)
async def test_a_project_cannot_lose_every_way_to_sign_in(
    world: World, attack: Callable[[World], Awaitable[None]]
) -> None:
    with pytest.raises(Conflict, match="Nobody could sign in any more"):
        await attack(world)


async def test_the_password_that_the_operator_resets_is_valid(world: World) -> None:
    await world.cases.projects.disable_static_admin(by=world.admin)
    fresh = await world.cases.projects.reset_admin(world.admin.project)
    assert await world.cases.sessions.sign_in(world.admin.project, *fresh)


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(end_vera, id="her sessions were ended"),
        pytest.param(end_all, id="all sessions were ended"),
        pytest.param(change_issuer, id="the provider was changed"),
        pytest.param(change_legacy_team, id="her team was changed"),
    ],
)
async def test_a_user_signs_in_again_at_once_after(world: World, end: End) -> None:
    await end(world, "")
    assert await world.accepts(world.sso_session(VERA))


async def test_other_sessions_go_on(world: World) -> None:
    vera, twin, dev = (world.sso_session(user) for user in (VERA, VERA, DEV))
    admin = await world.password_session()
    await world.sign_out(vera)
    assert await world.accepts(twin)
    await end_vera(world, vera)
    await change_issuer_secret(world)
    assert not await world.accepts(twin)
    assert await world.accepts(dev)
    await delete_role(world, dev)
    await change_issuer(world, dev)
    assert await world.accepts(admin)


async def change_issuer_secret(world: World) -> None:
    config = oidc(client_secret="new")
    config.session_ttl = 5
    await world.cases.projects.set_sso(config, by=world.admin)


async def test_the_open_stream_of_an_ended_session_closes(world: World) -> None:
    token, other = world.sso_session(VERA), world.sso_session(DEV)
    async with AsyncExitStack() as stack, asyncio.timeout(10):

        async def open_stream(token: str) -> AsyncIterator[str]:
            browser = await stack.enter_async_context(httpx2.AsyncClient(base_url=world.site))
            headers = {"Cookie": f"token={token}"}
            stream = browser.stream("GET", "/_/stream?t=apps", headers=headers)
            return (await stack.enter_async_context(stream)).aiter_lines()

        streams = [await open_stream(token), await open_stream(other)]
        for lines in streams:
            assert await anext(lines) == "event: hello"
        await world.sign_out(token)
        received = [line async for line in streams[0]]
        assert received[-3:-1] == ["event: close", "data: signed-out"]
        await end_all(world, "")
        received = [line async for line in streams[1]]
        assert received[-3:-1] == ["event: close", "data: signed-out"]
