# SPDX-License-Identifier: Apache-2.0
"""Ids: UUIDs, and the UUID that is the primary key of a row."""

import re
import secrets
import uuid
from datetime import datetime

# The forms that Go reads as a UUID; Python would also take dashes in odd places.
_UUID = re.compile(
    r"(?:urn:uuid:)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\{[0-9a-f-]{36}\}|[0-9a-f]{32}",
    re.IGNORECASE,
)


def new_id() -> str:
    return str(uuid.uuid4())


def new_ordered_id(now: datetime) -> str:
    """Returns a UUID of version 7, which is greater than those of earlier microseconds."""
    milliseconds, microseconds = divmod(int(now.timestamp() * 1_000_000), 1000)
    # The bits after the milliseconds may hold a finer clock.
    time = (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | (microseconds << 2) << 64
    return str(uuid.UUID(int=time | 2 << 62 | secrets.randbits(62)))


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def row_uuid(id: str) -> uuid.UUID:
    """Returns the primary key of an entity: its id, or a UUID derived from it if it is none."""
    if is_uuid(id):
        return uuid.UUID(id)
    return uuid.uuid5(uuid.NAMESPACE_OID, id)
