# SPDX-License-Identifier: Apache-2.0
"""Whether an ID token is one that the provider made for this sign-in, just now."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import jwt

from pipecd.model.errors import Unauthenticated

# Only signatures with a key pair: a shared secret would let everyone who knows it sign.
_ALGORITHMS = frozenset(
    f"{family}{size}" for family in ("RS", "PS", "ES") for size in (256, 384, 512)
) | {"EdDSA"}
_USUAL = ("RS256",)
# How far the clocks of the provider and of this machine may be apart.
_SKEW_SECONDS = 60


@dataclass(frozen=True)
class Expected:
    """What an ID token must say; `keys` and `algorithms` are those that the provider publishes."""

    issuer: str
    audience: str
    nonce: str = field(repr=False)
    keys: Any
    algorithms: tuple[str, ...]
    now: datetime


def verified_claims(token: str, expected: Expected) -> Mapping[str, Any]:
    """The claims of a token that is signed, meant for us and valid now."""
    allowed = [name for name in expected.algorithms or _USUAL if name in _ALGORITHMS]
    try:
        claims = jwt.decode(
            token,
            _key_of(token, expected.keys),
            algorithms=allowed,
            issuer=expected.issuer,
            audience=expected.audience,
            # The times are compared below with the clock that was handed in.
            options={
                "require": ["exp", "iss", "aud", "sub"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWTError, ValueError, TypeError) as e:
        raise Unauthenticated(f"the ID token of the provider is not valid: {e}") from e
    _check_purpose(claims, expected)
    _check_time(claims, expected.now.timestamp())
    return claims


def _key_of(token: str, keys: Any) -> Any:
    """The published key that the token names; a token that names none needs that there is one."""
    if not isinstance(keys, dict):
        raise jwt.PyJWKSetError("the provider publishes no keys")
    found = jwt.PyJWKSet.from_dict(cast("dict[str, Any]", keys)).keys
    name = jwt.get_unverified_header(token).get("kid")
    matching = [
        key for key in found if name in (None, key.key_id) and key.public_key_use in (None, "sig")
    ]
    if len(matching) != 1:
        raise jwt.PyJWKSetError("its key is not one that the provider publishes")
    return matching[0].key


def _check_purpose(claims: Mapping[str, Any], expected: Expected) -> None:
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), expected.nonce.encode()):
        raise Unauthenticated("the ID token belongs to another sign-in")
    if claims.get("azp", expected.audience) != expected.audience:
        raise Unauthenticated("the ID token was made for another program")


def _check_time(claims: Mapping[str, Any], now: float) -> None:
    ends, begins, made = (claims.get(name, now) for name in ("exp", "nbf", "iat"))
    for moment in (ends, begins, made):
        if isinstance(moment, bool) or not isinstance(moment, int | float):
            raise Unauthenticated("the ID token has a time that is no number")
    if now >= ends + _SKEW_SECONDS:
        raise Unauthenticated("the ID token is too old")
    if now < max(begins, made) - _SKEW_SECONDS:
        raise Unauthenticated("the ID token is from the future; check the clock of this machine")
