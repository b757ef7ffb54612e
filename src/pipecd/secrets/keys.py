# SPDX-License-Identifier: Apache-2.0
"""Keys of pipeds and programs: how they are made, and how they are kept without being known."""

import secrets
import string

import bcrypt

from pipecd.model.errors import Unauthenticated, UserMistake

_ALPHABET = string.ascii_lowercase + string.digits
COST = 10
# What is shown in place of a hash or a secret.
REDACTED = "redacted"
# What bcrypt looks at; Go refuses to hash more, but compares the beginning of a longer key.
_LONGEST = 72


def new_piped_key() -> str:
    return new_secret(50)


def new_api_key(id: str) -> str:
    """A key that names its own entity, so that it can be found without trying every hash."""
    return f"{id}.{new_secret(32)}"


def api_key_id(key: str) -> str:
    """The id of the entity that an API key belongs to."""
    parts = key.split(".")
    if len(parts) != 2 or not all(parts):
        raise Unauthenticated("Unauthenticated")
    return parts[0]


def new_secret(length: int) -> str:
    """A random text of small letters and digits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def hash_key(key: str) -> str:
    """What is stored of a key or password; takes some 50 ms of a processor, so use a thread."""
    raw = key.encode()
    if len(raw) > _LONGEST:
        raise UserMistake(
            f"the password or key has {len(raw)} bytes and may have {_LONGEST}",
            hint="choose a shorter one",
        )
    return bcrypt.hashpw(raw, bcrypt.gensalt(COST, prefix=b"2a")).decode()


def key_matches(key: str, hashed: str) -> bool:
    """Whether this is the key or password; as slow as `hash_key`."""
    try:
        return bcrypt.checkpw(key.encode()[:_LONGEST], hashed.encode())
    except ValueError:
        # What is stored is no hash, for example the word that is shown in its place.
        return False
