# SPDX-License-Identifier: Apache-2.0
"""Session tokens that we and upstream read from each other."""

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest

from pipecd.model.clock import from_unix
from pipecd.model.errors import Unauthenticated
from pipecd.secrets.session import Session, sign, verify

VECTORS = Path(__file__).parent.parent / "spec" / "vectors"
KEY = (VECTORS / "encryption_key_file").read_bytes()
TOKENS = json.loads((VECTORS / "auth.json").read_text())["jwt"]["tokens"]
VALID = [token for token in TOKENS if token["valid"]]
NOW = from_unix(1_800_000_000)
ISSUED, EXPIRES = 1_700_000_000, 4_102_444_800
ADMIN = Session("hello-pipecd", "quickstart", ("Admin",), "", ISSUED, EXPIRES)
SESSIONS = {
    "static admin shape": ADMIN,
    "sso shape with avatar and two roles": Session(
        "octocat", "p1", ("Editor", "Ops"), "https://example.com/a.png", ISSUED, EXPIRES
    ),
    "no roles (role object keeps only project_id)": Session("x", "p1", (), "", ISSUED, EXPIRES),
}


@pytest.mark.parametrize("vector", VALID, ids=lambda v: v["note"])
def test_tokens_are_those_of_upstream_to_the_byte(vector: Any) -> None:
    assert sign(SESSIONS[vector["note"]], KEY) == vector["token"]


@pytest.mark.parametrize("vector", TOKENS, ids=lambda v: v["note"])
def test_tokens_of_upstream_are_judged_as_upstream_does(vector: Any) -> None:
    if vector["valid"]:
        assert verify(vector["token"], KEY, NOW) == SESSIONS[vector["note"]]
    else:
        with pytest.raises(Unauthenticated, match=r"^Unauthenticated$"):
            verify(vector["token"], KEY, NOW)


def test_all_vectors_are_used() -> None:
    assert len(TOKENS) == 8
    assert {v["note"] for v in VALID} == set(SESSIONS)


@pytest.mark.parametrize(
    ("second", "accepted"),
    [
        pytest.param(ISSUED - 1, False, id="before it was issued"),
        pytest.param(ISSUED, True, id="in the second it was issued"),
        pytest.param(EXPIRES - 1, True, id="in its last second"),
        pytest.param(EXPIRES, False, id="when it expires"),
    ],
)
def test_a_session_lasts_from_its_issue_to_its_expiry(second: int, accepted: bool) -> None:
    token = sign(ADMIN, KEY)
    if accepted:
        assert verify(token, KEY, from_unix(second)) == ADMIN
    else:
        with pytest.raises(Unauthenticated):
            verify(token, KEY, from_unix(second))


def test_names_of_any_script_survive() -> None:
    session = replace(ADMIN, subject="値 <b>&\"'", roles=("Rôle",))
    assert verify(sign(session, KEY), KEY, NOW) == session


def unsigned() -> str:
    header = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")
    return f"{header}.{sign(ADMIN, KEY).split('.')[1]}."


def claims(**changed: Any) -> str:
    claims: dict[str, Any] = {"iss": "PipeCD", "sub": "x", "exp": EXPIRES, "role": {}}
    return jwt.encode(claims | changed, KEY, algorithm="HS256")


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="nothing"),
        pytest.param("a.b.c", id="nonsense"),
        pytest.param("é.é.é", id="no ASCII"),
        pytest.param(unsigned(), id="no signature"),
        pytest.param(sign(ADMIN, KEY.strip()), id="the key file without its final newline"),
        pytest.param(sign(ADMIN, KEY)[:-2] + "AA", id="an altered signature"),
        pytest.param(claims(exp="soon"), id="a time that is no number"),
        pytest.param(claims(exp=True), id="a time that is a boolean"),
        pytest.param(claims(role="Admin"), id="a role that is no object"),
        pytest.param(claims(role={"project_rbac_roles": "Admin"}), id="roles that are no list"),
        pytest.param(claims(role={"project_rbac_roles": [1]}), id="a role name that is no text"),
        pytest.param(claims(role={"project_id": 1}), id="a project that is no text"),
        pytest.param(claims(avatarUrl=1), id="an avatar that is no text"),
    ],
)
def test_anything_else_is_refused(token: str) -> None:
    with pytest.raises(Unauthenticated, match=r"^Unauthenticated$"):
        verify(token, KEY, NOW)
