# SPDX-License-Identifier: Apache-2.0
"""`pipectl session` against a control plane."""

import json
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.secrets.session import session_id
from servers.control_plane import StartControlPlane


async def is_signed_in(plane: Any, token: str) -> bool:
    try:
        await plane.cases.sessions.user(token)
    except Unauthenticated:
        return False
    return True


async def session_key(plane: Any) -> str:
    key = await plane.cases.api_keys.generate(
        "off-boarding", APIKey.READ_ONLY, may_manage_sessions=True, by=plane.admin
    )
    return str(key)


async def test_sessions_are_listed_and_ended(start_plane: StartControlPlane, typed_at: Any) -> None:
    async with start_plane() as plane:
        typed = typed_at(plane, await session_key(plane))
        begin = plane.cases.sessions.begin
        vera = User(plane.admin.project, "vera", ("Viewer", "dev"))
        olga = User(plane.admin.project, "olga", ("Editor",))
        lost, kept = await begin(vera), await begin(vera)
        of_olga = await begin(olga)

        code, out, _ = await typed("session list")
        assert code == 0
        # Sessions of the same millisecond have no order.
        assert sorted(s["username"] for s in json.loads(out)["sessions"]) == [
            "olga",
            "vera",
            "vera",
        ]
        table = (await typed("session list --username vera --output table"))[1].splitlines()
        assert table[0].split() == ["USER", "ROLES", "SIGNED", "IN", "WITH", "AGE", "EXPIRES", "ID"]
        assert table[1].startswith("vera  Viewer,dev  single sign-on  ")
        assert {line.split()[-1] for line in table[1:]} == {session_id(lost), session_id(kept)}
        names = (await typed("session list --output name"))[1].split()
        assert set(names) == {session_id(token) for token in (lost, kept, of_olga)}

        assert (await typed(f"session end --session-id {session_id(lost)}"))[0] == 0
        assert [await is_signed_in(plane, t) for t in (lost, kept, of_olga)] == [False, True, True]
        assert (await typed("session end --username vera"))[0] == 0
        assert [await is_signed_in(plane, t) for t in (kept, of_olga)] == [False, True]
        assert (await typed("session end --all"))[0] == 0
        assert not await is_signed_in(plane, of_olga)
        assert json.loads((await typed("session list"))[1]) == {}


async def test_an_unknown_session_is_an_error(
    start_plane: StartControlPlane, typed_at: Any
) -> None:
    async with start_plane() as plane:
        typed = typed_at(plane, await session_key(plane))
        code, _, err = await typed("session end --session-id gone")
        assert code == 1
        assert "Session is not found" in err


async def test_a_read_write_key_is_told_which_role_it_needs(
    start_plane: StartControlPlane, typed_at: Any
) -> None:
    async with start_plane() as plane:
        token = await plane.cases.sessions.begin(User(plane.admin.project, "vera", ("Viewer",)))
        for line in ("session list", "session end --all"):
            code, _, err = await typed_at(plane)(line)
            assert code == 1
            assert "MANAGE_SESSIONS" in err
        assert await is_signed_in(plane, token)


@pytest.mark.parametrize("flags", ["", "--all --username vera", "--session-id a --username vera"])
async def test_which_sessions_end_must_be_clear(
    start_plane: StartControlPlane, typed_at: Any, flags: str
) -> None:
    async with start_plane() as plane:
        token = await plane.cases.sessions.begin(User(plane.admin.project, "vera", ("Viewer",)))
        code, _, err = await typed_at(plane)(f"session end {flags}")
        assert code == 1
        assert "set one of --session-id, --username and --all" in err
        assert await is_signed_in(plane, token)
