# SPDX-License-Identifier: Apache-2.0
"""User sessions: the cookie `token`, a signed JWT in the format of upstream."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast

import jwt

from pipecd.model.errors import Unauthenticated

T = TypeVar("T")

ISSUER = "PipeCD"
ALGORITHM = "HS256"


@dataclass(frozen=True)
class Session:
    """A signed-in user with a project and roles; times are Unix seconds.

    The last three are claims of ours that upstream ignores, and that its sessions do not have:
    `via` is the sign-in method, `unique` makes two sessions of the same second different, and
    `issued_millis` is the exact time of issue.
    """

    subject: str
    project: str
    roles: tuple[str, ...]
    avatar_url: str
    issued_at: int
    expires_at: int
    via: str = ""
    unique: str = ""
    issued_millis: int = 0


def session_id(token: str) -> str:
    """The id of a session: the hash of the signed part of its token, whoever made the token.

    The signature itself is not hashed: its last base64 digit has several spellings.
    """
    return hashlib.sha256(token.rpartition(".")[0].encode()).hexdigest()


def sign(session: Session, key: bytes) -> str:
    """Returns the signed token; the key is the whole content of the encryption key file."""
    role = {"project_id": session.project, "project_rbac_roles": list(session.roles)}
    claims = {
        "iss": ISSUER,
        "sub": session.subject,
        "exp": session.expires_at,
        "nbf": session.issued_at,
        "iat": session.issued_at,
        "avatarUrl": session.avatar_url,
        "role": {name: value for name, value in role.items() if value},
    }
    if not session.avatar_url:
        del claims["avatarUrl"]
    own = {"via": session.via, "jti": session.unique, "iatMillis": session.issued_millis}
    claims |= {name: value for name, value in own.items() if value}
    payload = json.dumps(claims, separators=(",", ":"), ensure_ascii=False).encode()
    return jwt.PyJWS().encode(payload, key, algorithm=ALGORITHM, sort_headers=True)


def verify(token: str, key: bytes, now: datetime) -> Session:
    """Verifies a token that we or upstream signed and that is valid at `now`."""
    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=[ALGORITHM],
            issuer=ISSUER,
            # The times are compared below with `now`.
            options={
                "require": ["exp"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "verify_aud": False,
            },
        )
        return _session(claims, now.timestamp())
    except (jwt.InvalidTokenError, ValueError, TypeError) as e:
        raise Unauthenticated("Unauthenticated") from e


def _session(claims: Mapping[str, Any], now: float) -> Session:
    times: list[float] = []
    for name in ("exp", "nbf", "iat"):
        value = claims.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} is not a number")
        times.append(float(value))
    expires, starts, issued = times
    if now >= expires or now < starts or now < issued:
        raise ValueError("the session has expired or is not valid yet")
    role = cast("Mapping[str, Any]", _typed(claims.get("role", {}), dict))
    names = cast("list[Any]", _typed(role.get("project_rbac_roles", []), list))
    return Session(
        subject=_typed(claims.get("sub", ""), str),
        project=_typed(role.get("project_id", ""), str),
        roles=tuple(_typed(name, str) for name in names),
        avatar_url=_typed(claims.get("avatarUrl", ""), str),
        issued_at=int(issued),
        expires_at=int(expires),
        via=_typed(claims.get("via", ""), str),
        unique=_typed(claims.get("jti", ""), str),
        issued_millis=_typed(claims.get("iatMillis", 0), int),
    )


def _typed(value: object, expected: type[T]) -> T:
    if not isinstance(value, expected):
        raise TypeError(f"expected {expected.__name__}, found {type(value).__name__}")
    return value
