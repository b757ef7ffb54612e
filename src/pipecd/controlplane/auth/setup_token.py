# SPDX-License-Identifier: Apache-2.0
"""The token of the link with which the first project of an installation is created.

Every replica can verify it, and nothing is stored: it consists of the time at which it expires and
a signature by the encryption key. The first project makes it useless.
"""

import hmac
from datetime import datetime, timedelta
from hashlib import sha256

from pipecd.model.clock import to_unix

TTL = timedelta(hours=24)
_PURPOSE = b"pipecd first project\0"


def new_setup_token(encryption_key: bytes, now: datetime) -> str:
    expires_at = str(to_unix(now + TTL))
    return f"{expires_at}.{_signature(encryption_key, expires_at)}"


def is_signed_setup_token(token: str, encryption_key: bytes) -> bool:
    """Whether the token is one of this installation, also after it has expired."""
    expires_at, _, signature = token.partition(".")
    expected = _signature(encryption_key, expires_at)
    return hmac.compare_digest(signature.encode(), expected.encode())


def is_valid_setup_token(token: str, encryption_key: bytes, now: datetime) -> bool:
    if not is_signed_setup_token(token, encryption_key):
        return False
    return to_unix(now) < int(token.partition(".")[0])


def _signature(encryption_key: bytes, expires_at: str) -> str:
    return hmac.new(encryption_key, _PURPOSE + expires_at.encode(), sha256).hexdigest()
