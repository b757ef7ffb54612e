# SPDX-License-Identifier: Apache-2.0
"""Names of things: random UUIDs, and the UUID under which a row is stored."""

import re
import uuid

# The forms that Go reads as a UUID; Python would also take dashes in odd places.
_UUID = re.compile(
    r"(?:urn:uuid:)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\{[0-9a-f-]{36}\}|[0-9a-f]{32}",
    re.IGNORECASE,
)


def new_id() -> str:
    return str(uuid.uuid4())


def row_uuid(id: str) -> uuid.UUID:
    """The primary key of an entity: its id if that is a UUID, else a UUID derived from it."""
    if _UUID.fullmatch(id):
        return uuid.UUID(id)
    return uuid.uuid5(uuid.NAMESPACE_OID, id)
