# SPDX-License-Identifier: Apache-2.0
"""The secrets of an SSO sign-in: its `state`, nonce and PKCE verifier.

The browser keeps a random secret in a cookie. The `state` in the authorization URL proves that this
server began the sign-in recently, for the browser with that cookie, and for what it is bound to:
the project and its provider. It is not the cookie: the provider and whoever reads the URL see it.
"""

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from pipecd.model.clock import from_unix, to_unix
from pipecd.model.errors import Unauthenticated, UserMistake

MAX_AGE = timedelta(minutes=30)
_MAX_CLOCK_SKEW = timedelta(minutes=1)
_COOKIE_BYTES = 32


@dataclass(frozen=True)
class SignInSecrets:
    """What one sign-in sends to its provider; `code_verifier` only with the code."""

    state: str
    nonce: str = field(repr=False)
    code_verifier: str = field(repr=False)

    @property
    def code_challenge(self) -> str:
        """The challenge of PKCE by the method S256."""
        digest = hashlib.sha256(self.code_verifier.encode()).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def new_cookie() -> str:
    """A secret for the browser in which a sign-in begins."""
    return secrets.token_urlsafe(_COOKIE_BYTES)


def begin_sign_in(key: str, cookie: str, bound_to: str, now: datetime) -> SignInSecrets:
    """The secrets of a sign-in that begins in the browser with this cookie."""
    if not key:
        raise UserMistake(
            "signing in through a provider needs a state key",
            hint="set spec.stateKey in the control plane configuration",
        )
    return _secrets(key, cookie, bound_to, to_unix(now))


def resume_sign_in(
    state: str, key: str, *, cookie: str, bound_to: str, now: datetime
) -> SignInSecrets:
    """The secrets of the sign-in with this state; Unauthenticated unless it began so, recently."""
    started = state.partition(".")[0]
    if not (key and cookie and started.isascii() and started.isdigit() and len(started) <= 12):
        raise Unauthenticated("Unauthorized access")
    expected = _secrets(key, cookie, bound_to, int(started))
    age = now - from_unix(int(started))
    is_ours = hmac.compare_digest(expected.state.encode(), state.encode())
    if not is_ours or age >= MAX_AGE or -age > _MAX_CLOCK_SKEW:
        raise Unauthenticated("Unauthorized access")
    return expected


def _secrets(key: str, cookie: str, bound_to: str, started: int) -> SignInSecrets:
    def derive(*parts: str) -> str:
        text = "".join(f"{len(part)}:{part}" for part in parts)
        return hmac.digest(key.encode(), text.encode(), "sha256").hex()

    state = f"{started}.{derive('state', cookie, bound_to, str(started))}"
    return SignInSecrets(state, derive("nonce", cookie, state), derive("verifier", cookie, state))
