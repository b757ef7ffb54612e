# SPDX-License-Identifier: Apache-2.0
"""Cursors of lists: the opaque text from which the next page continues.

The format is upstream's, so that a client can continue a list after a switch between the two:
base64 of a JSON object with the ordering fields of the last document, by their Go names, sorted.
"""

import base64
import json
from dataclasses import dataclass
from typing import cast

from pipecd.model.errors import UserMistake


@dataclass(frozen=True)
class Position:
    """The id of the last document of a page, and the value that the list is ordered by."""

    id: str
    value: int


def encode_cursor(position: Position, field: str) -> str:
    """The cursor after a document in a list ordered by `field`, then by id."""
    fields = {"Id": position.id, field: position.value}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(text.encode()).decode()


def decode_cursor(cursor: str, field: str) -> Position:
    """Decodes the cursor of a list ordered by `field`; UserMistake if it is not one."""
    try:
        fields = cast("dict[str, object]", json.loads(base64.b64decode(cursor, validate=True)))
        id, value = fields["Id"], fields[field]
    except (ValueError, RecursionError, TypeError, KeyError) as e:
        raise _not_a_cursor(cursor) from e
    # JSON can escape half of a surrogate pair, which is not valid text.
    if not isinstance(id, str) or id.encode(errors="replace").decode() != id:
        raise _not_a_cursor(cursor)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _not_a_cursor(cursor)
    # No engine can compare a column with a larger number; the comparison is false for NaN.
    if not abs(value) < 2**63 or value != int(value):
        raise _not_a_cursor(cursor)
    return Position(id, int(value))


def _not_a_cursor(cursor: str) -> UserMistake:
    shown = cursor if len(cursor) <= 60 else f"{cursor[:60]}…"
    return UserMistake(
        f"the cursor {shown!r} is not one of this list",
        hint="leave it empty to read from the beginning",
    )
