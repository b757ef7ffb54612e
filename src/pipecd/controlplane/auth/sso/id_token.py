# SPDX-License-Identifier: Apache-2.0
"""Verifies that an ID token was issued by the provider, for this sign-in, just now."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import jwt

from pipecd.model.errors import Unauthenticated

# Asymmetric signatures only: with a shared secret, everyone who can verify could also sign.
_ALGORITHMS = frozenset(
    f"{family}{size}" for family in ("RS", "PS", "ES") for size in (256, 384, 512)
) | {"EdDSA"}
_DEFAULT_ALGORITHMS = ("RS256",)
_HINT = "check the client ID and the issuer, and how the provider signs ID tokens of this client"
_CLOCK_HINT = "compare the clocks of the control plane and of the provider"
# The largest accepted difference between the clocks of the provider and of this machine.
_CLOCK_SKEW_SECONDS = 60


class UnknownSigningKey(Unauthenticated):
    """None of the given keys made the signature; the provider may publish newer ones."""


@dataclass(frozen=True)
class ExpectedToken:
    """What an ID token must contain; `algorithms` are those that the provider publishes."""

    issuer: str
    audience: str
    nonce: str = field(repr=False)
    algorithms: tuple[str, ...]
    now: datetime


def verified_claims(token: str, keys: Any, expected: ExpectedToken) -> Mapping[str, Any]:
    """The claims of a token that one of the keys (JWKS) signed and that is valid now."""
    allowed = [name for name in expected.algorithms or _DEFAULT_ALGORITHMS if name in _ALGORITHMS]
    try:
        claims = jwt.decode(
            token,
            _signing_key(token, keys),
            algorithms=allowed,
            issuer=expected.issuer,
            audience=expected.audience,
            # The times are checked below against the given clock.
            options={
                "require": ["exp", "iss", "aud", "sub"],
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
            },
        )
    except (jwt.PyJWKSetError, jwt.InvalidSignatureError) as e:
        raise UnknownSigningKey(
            f"the ID token of the provider is not valid: {e}",
            hint="check the token endpoint: it must be that of the issuer, whose keys are used",
        ) from e
    except (jwt.PyJWTError, ValueError, TypeError) as e:
        raise Unauthenticated(f"the ID token of the provider is not valid: {e}", hint=_HINT) from e
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), expected.nonce.encode()):
        raise Unauthenticated("the ID token belongs to another sign-in", hint=_HINT)
    if claims.get("azp", expected.audience) != expected.audience:
        raise Unauthenticated("the ID token was issued to another client", hint=_HINT)
    now = expected.now.timestamp()
    expires_at, not_before, issued_at = (claims.get(name, now) for name in ("exp", "nbf", "iat"))
    for moment in (expires_at, not_before, issued_at):
        if isinstance(moment, bool) or not isinstance(moment, int | float):
            raise Unauthenticated("a time in the ID token is not a number", hint=_HINT)
    if now >= expires_at + _CLOCK_SKEW_SECONDS:
        raise Unauthenticated("the ID token has expired", hint=_CLOCK_HINT)
    if now < max(not_before, issued_at) - _CLOCK_SKEW_SECONDS:
        raise Unauthenticated(
            "the ID token is not valid yet; check the clock of this machine", hint=_CLOCK_HINT
        )
    return claims


def _signing_key(token: str, keys: Any) -> Any:
    """The key with the token's `kid`; a token without one needs a set of exactly one key."""
    if not isinstance(keys, dict):
        raise jwt.PyJWKSetError("the provider publishes no keys")
    key_set = jwt.PyJWKSet.from_dict(cast("dict[str, Any]", keys)).keys
    kid = jwt.get_unverified_header(token).get("kid")
    matching = [
        key for key in key_set if kid in (None, key.key_id) and key.public_key_use in (None, "sig")
    ]
    if len(matching) != 1:
        raise jwt.PyJWKSetError("its key is not one that the provider publishes")
    return matching[0].key
