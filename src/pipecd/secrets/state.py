# SPDX-License-Identifier: Apache-2.0
"""The `state` of an SSO sign-in, which proves that this server started it recently."""

import base64
import hashlib
import hmac
from datetime import datetime, timedelta

from pipecd.model.clock import from_unix
from pipecd.model.errors import Unauthenticated, UserMistake

_MAX_AGE = timedelta(hours=24)
_MAX_CLOCK_SKEW = timedelta(minutes=1)


def new_state(key: str, now: datetime) -> str:
    """Returns the value of the `state` cookie and of the authorization URL."""
    if not key:
        raise UserMistake(
            "signing in through a provider needs a state key",
            hint="set spec.stateKey in the control plane configuration",
        )
    since_epoch = now - from_unix(0)
    milliseconds = -(-since_epoch // timedelta(milliseconds=1))
    return _token(key, milliseconds).encode().hex()


def check_state(state: str, key: str, *, cookie: str, now: datetime) -> None:
    """Raises Unauthenticated unless the state is ours, recent and that of the cookie."""
    if not key or not (state.isascii() and cookie.isascii()):
        raise Unauthenticated("Unauthorized access")
    if not hmac.compare_digest(state, cookie):
        raise Unauthenticated("Unauthorized access")
    try:
        token = bytes.fromhex(state).decode("ascii")
        milliseconds = int(token.rpartition(":")[2])
        age = now - (from_unix(0) + timedelta(milliseconds=milliseconds))
    except (ValueError, OverflowError) as e:
        raise Unauthenticated("Failed to parse state") from e
    is_ours = hmac.compare_digest(_token(key, milliseconds).encode(), token.encode())
    if not is_ours or age >= _MAX_AGE or -age > _MAX_CLOCK_SKEW:
        raise Unauthenticated("Unauthorized access")


def _token(key: str, milliseconds: int) -> str:
    # The two empty parts are a user and an action, which upstream leaves empty.
    digest = hmac.new(key.encode(), f"::{milliseconds}".encode(), hashlib.sha1).digest()
    signed = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return f"{signed}:{milliseconds}"
