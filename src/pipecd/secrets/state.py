# SPDX-License-Identifier: Apache-2.0
"""The state of a sign-in through another site: proof that it began here, a short while ago."""

import base64
import hashlib
import hmac
from datetime import datetime, timedelta

from pipecd.model.clock import from_unix
from pipecd.model.errors import Unauthenticated, UserMistake

_VALID = timedelta(hours=24)
_AHEAD = timedelta(minutes=1)


def new_state(key: str, now: datetime) -> str:
    """The value for the cookie `state` and for the address of the provider."""
    if not key:
        raise UserMistake(
            "signing in through a provider needs a state key",
            hint="set spec.stateKey in the control plane configuration",
        )
    since_epoch = now - from_unix(0)
    milliseconds = -(-since_epoch // timedelta(milliseconds=1))
    return _token(key, milliseconds).encode().hex()


def check_state(state: str, key: str, *, cookie: str, now: datetime) -> None:
    """Refuses a state that is not ours, is too old, or is not that of this browser."""
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
    ours = hmac.compare_digest(_token(key, milliseconds).encode(), token.encode())
    if not ours or age >= _VALID or -age > _AHEAD:
        raise Unauthenticated("Unauthorized access")


def _token(key: str, milliseconds: int) -> str:
    # The two empty parts stand for a user and an action, which upstream does not fill in.
    digest = hmac.new(key.encode(), f"::{milliseconds}".encode(), hashlib.sha1).digest()
    signed = base64.urlsafe_b64encode(digest).decode().rstrip("=")
    return f"{signed}:{milliseconds}"
