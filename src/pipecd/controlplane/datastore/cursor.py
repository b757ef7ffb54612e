# SPDX-License-Identifier: Apache-2.0
"""The opaque text with which a list goes on: where the last page ended.

The form is upstream's, so that a page asked of one implementation may be continued by the other:
base64 of a JSON object with the ordering fields of the last document, by their Go names, sorted.
"""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import cast

from pipecd.model.errors import UserMistake


@dataclass(frozen=True)
class Position:
    """The last document already given: its id and the value it is ordered by."""

    id: str
    value: int


def encode_cursor(position: Position, field: str) -> str:
    """The cursor after a document in a list ordered by `field`, then by id."""
    fields = {"Id": position.id, field: position.value}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(text.encode()).decode()


def decode_cursor(cursor: str, field: str) -> Position:
    """The position a cursor stands for; anything that is no cursor of such a list is refused."""
    try:
        fields: object = json.loads(base64.b64decode(cursor, validate=True))
    except (binascii.Error, ValueError, RecursionError) as e:
        raise _not_a_cursor(cursor) from e
    if not isinstance(fields, dict):
        raise _not_a_cursor(cursor)
    found = cast("dict[str, object]", fields)
    id, value = found.get("Id"), found.get(field)
    if not _is_text(id) or not _is_whole(value):
        raise _not_a_cursor(cursor)
    return Position(cast("str", id), int(cast("int | float", value)))


def _is_text(value: object) -> bool:
    """Half a surrogate pair can be written in JSON but is no text."""
    return isinstance(value, str) and value.encode(errors="replace").decode() == value


def _is_whole(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    # The greatest number a column of any engine can be compared with.
    return abs(value) < 2**63 and value == int(value)


def _not_a_cursor(cursor: str) -> UserMistake:
    shown = cursor if len(cursor) <= 60 else f"{cursor[:60]}…"
    return UserMistake(
        f"the cursor {shown!r} is not one of this list",
        hint="leave it empty to read from the beginning",
    )
