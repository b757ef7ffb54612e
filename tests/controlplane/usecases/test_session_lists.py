# SPDX-License-Identifier: Apache-2.0
"""Which sessions are listed, for whom, and how one of them is ended."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from pipecd.controlplane.auth.subject import ApiKeyCaller, User
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases import sessions as sessions_module
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.controlplane.usecases.sessions import ActiveSession, ActiveUser, users_of
from pipecd.model.errors import Denied, NotFound, Unauthenticated
from pipecd.secrets.session import session_id
from servers.control_plane import start_control_plane

ADMIN = User("shop", "admin", ("Admin",))
VERA = User("shop", "vera", ("Viewer",))
RIVAL = User("bank", "vera", ("Admin",))
KEY = ApiKeyCaller("shop", "key-1", "ci", may_write=False, may_manage_sessions=True)


@pytest.fixture
async def cases(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[UseCases]:
    async with start_control_plane(tmp_path_factory.mktemp("plane"), metrics=False) as plane:
        for project in ("shop", "bank"):
            await plane.cases.projects.add(project, "", StaticAdmin("admin", "hello"))
        yield plane.cases


async def listed(cases: UseCases, *, user: str = "") -> list[str]:
    return [session.user for session in (await cases.sessions.list(user=user, by=ADMIN)).sessions]


async def test_sessions_of_the_own_project_are_listed_newest_first(cases: UseCases) -> None:
    token = (await cases.sessions.sign_in("shop", "admin", "hello")).token
    await cases.sessions.begin(VERA, timedelta(hours=1))
    await cases.sessions.begin(RIVAL)
    vera, admin = (await cases.sessions.list(by=KEY)).sessions
    assert (vera.user, vera.roles, vera.is_sso) == ("vera", ("Viewer",), True)
    assert vera.expires_at - vera.signed_in_at == 3600
    assert (admin.id, admin.user, admin.is_sso) == (session_id(token), "admin", False)
    assert await listed(cases, user="vera") == ["vera"]
    assert await listed(cases, user="nobody") == []


async def test_what_ends_a_session_removes_it_from_the_list(cases: UseCases) -> None:
    signed_in = await cases.sessions.sign_in("shop", "admin", "hello")
    tokens = [await cases.sessions.begin(VERA) for _ in range(3)]
    await cases.sessions.end(tokens[0])
    assert await listed(cases) == ["vera", "vera", "admin"]
    await cases.projects.set_static_admin("admin", "another", by=signed_in.user)
    assert await listed(cases) == ["vera", "vera"]
    await cases.sessions.end_of_user("vera", by=ADMIN)
    assert await listed(cases) == []


async def test_one_session_is_ended_and_others_of_the_user_stay(cases: UseCases) -> None:
    lost, kept = [await cases.sessions.begin(VERA) for _ in range(2)]
    await cases.sessions.end_one(session_id(lost), by=KEY)
    with pytest.raises(Unauthenticated):
        await cases.sessions.user(lost)
    assert await cases.sessions.user(kept) == VERA
    assert await listed(cases) == ["vera"]


async def test_the_session_of_another_project_is_not_found(cases: UseCases) -> None:
    token = await cases.sessions.begin(RIVAL)
    with pytest.raises(NotFound):
        await cases.sessions.end_one(session_id(token), by=ADMIN)
    assert await cases.sessions.user(token) == RIVAL


@pytest.mark.parametrize(
    "by",
    [
        pytest.param(VERA, id="a viewer"),
        pytest.param(User("shop", "eve", ("Editor",)), id="an editor"),
        pytest.param(ApiKeyCaller("shop", "k", "ci", may_write=False), id="a key that reads"),
        pytest.param(ApiKeyCaller("shop", "k", "ci", may_write=True), id="a key that writes"),
        pytest.param(
            ApiKeyCaller("shop", "k", "ci", may_write=True, may_approve=True),
            id="a key that approves",
        ),
    ],
)
async def test_sessions_are_neither_shown_to_nor_ended_by(
    cases: UseCases, by: User | ApiKeyCaller
) -> None:
    token = await cases.sessions.begin(ADMIN)
    with pytest.raises(Denied):
        await cases.sessions.list(by=by)
    with pytest.raises(Denied):
        await cases.sessions.end_one(session_id(token), by=by)
    assert await cases.sessions.user(token) == ADMIN


async def test_a_longer_list_says_that_there_is_more(
    cases: UseCases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "MAX_LISTED", 2)
    for _ in range(2):
        await cases.sessions.begin(VERA)
    assert not (await cases.sessions.list(by=ADMIN)).has_more
    await cases.sessions.begin(VERA)
    found = await cases.sessions.list(by=ADMIN)
    assert (len(found.sessions), found.has_more) == (2, True)


async def test_the_last_use_of_a_session_is_listed(cases: UseCases) -> None:
    unused = await cases.sessions.begin(VERA)
    used = await cases.sessions.begin(ADMIN)
    await cases.sessions.user(used)
    sessions = {each.id: each for each in (await cases.sessions.list(by=ADMIN)).sessions}
    seen = sessions[session_id(used)]
    assert 0 <= seen.last_seen_at - seen.signed_in_at < 60
    assert sessions[session_id(unused)].last_seen_at == 0


def test_a_user_was_last_seen_with_any_of_their_sessions() -> None:
    newest = ActiveSession("b", "vera", ("dev",), True, 9, 99, last_seen_at=10)
    oldest = ActiveSession("a", "vera", ("dev",), True, 7, 99, last_seen_at=20)
    (user,) = users_of([newest, oldest])
    assert (user.last_seen_at, user.sessions) == (20, 2)


def test_users_are_in_the_order_of_their_last_sign_in() -> None:
    def session(user: str, at: int, role: str, *, is_sso: bool = True) -> ActiveSession:
        return ActiveSession(f"{user}{at}", user, (role,), is_sso, at, at + 10)

    sessions = [
        session("vera", 9, "dev"),
        session("admin", 8, "Admin", is_sso=False),
        session("vera", 7, "Viewer"),
    ]
    assert users_of(sessions) == (
        ActiveUser("vera", ("dev",), is_sso=True, last_signed_in_at=9, sessions=2),
        ActiveUser("admin", ("Admin",), is_sso=False, last_signed_in_at=8, sessions=1),
    )
