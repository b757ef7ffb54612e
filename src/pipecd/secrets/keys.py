# SPDX-License-Identifier: Apache-2.0
"""Piped keys and API keys: how they are generated and hashed."""

import secrets
import string

import bcrypt

from pipecd.model.errors import Unauthenticated, UserMistake

_ALPHABET = string.ascii_lowercase + string.digits
COST = 10
# Shown in place of a hash or a secret.
REDACTED = "redacted"
# The limit of bcrypt; Go refuses to hash more, but compares the beginning of a longer key.
_BCRYPT_BYTES = 72


def new_piped_key() -> str:
    return new_secret(50)


def new_api_key(id: str) -> str:
    """Returns a key that starts with the id of its entity, so that one hash is compared."""
    return f"{id}.{new_secret(32)}"


def api_key_id(key: str) -> str:
    """Returns the id of an API key."""
    parts = key.split(".")
    if len(parts) != 2 or not all(parts):
        raise Unauthenticated("Unauthenticated")
    return parts[0]


def new_secret(length: int) -> str:
    """Returns a random text of lower-case letters and digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def hash_key(key: str) -> str:
    """Returns the hash of a key or password; takes about 50 ms of CPU, so call it in a thread."""
    raw = key.encode()
    if len(raw) > _BCRYPT_BYTES:
        raise UserMistake(
            f"the password or key has {len(raw)} bytes and may have {_BCRYPT_BYTES}",
            hint="choose a shorter one",
        )
    return bcrypt.hashpw(raw, bcrypt.gensalt(COST, prefix=b"2a")).decode()


def key_matches(key: str, hashed: str) -> bool:
    """Whether the key or password matches the hash; as slow as `hash_key`."""
    try:
        return bcrypt.checkpw(key.encode()[:_BCRYPT_BYTES], hashed.encode())
    except ValueError:
        # The stored value is no hash, for example `redacted`.
        return False
