# SPDX-License-Identifier: Apache-2.0
"""The limits of a document that every engine can hold.

Engines differ in what they refuse: PostgreSQL a zero byte, MySQL a long name, SQLite neither. The
strictest limit applies to all of them, so that a control plane can move from one engine to another
and every engine reports the same error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from operator import attrgetter
from typing import Any

from google.protobuf.message import Message
from sqlalchemy import Integer, String, Table

from pipecd.controlplane.datastore.expressions import FieldType, FromDocument
from pipecd.model.errors import UserMistake

# Half of the smallest default of max_allowed_packet among current MySQL and MariaDB servers.
MAX_BYTES = 8 * 1024 * 1024
MAX_INTEGER = 2**31 - 1
MAX_LABEL_LENGTH = 255

# A missing field of these types is null; the others have a default.
NULLABLE = (FieldType.TEXT, FieldType.NUMBER)

# An escaped backslash does not begin an escape sequence.
_ZERO_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True)
class ColumnLimit:
    """What the column of a document's field can hold."""

    column: str
    field: Callable[[Any], str | int]
    is_required: bool
    max_length: int = 0
    is_number: bool = False

    def check(self, document: Message) -> None:
        value = self.field(document)
        if isinstance(value, str):
            if self.max_length and len(value) > self.max_length:
                raise UserMistake(
                    f"the document cannot be stored because {self.column} is longer than "
                    f"{self.max_length} characters"
                )
        elif self.is_number and not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise UserMistake(
                f"the document cannot be stored because {self.column} is out of range: {value}"
            )
        if self.is_required and not value:
            raise UserMistake(f"the document cannot be stored because {self.column} is missing")


def check_limits(table: Table, document: Message, text: str, *, extra: str) -> None:
    """Refuses a document that some engine cannot hold.

    `text` is the JSON of the document, `extra` the field that upstream copies to `_extra`.
    """
    for limit in _column_limits(table, extra):
        limit.check(document)
    if "\\u0000" in text and _ZERO_BYTE.search(text):
        raise UserMistake(
            "the document cannot be stored because a text in it has a zero byte",
            hint="remove the byte",
        )
    # A character takes at most four bytes, so most texts need not be encoded to be measured.
    if len(text) > MAX_BYTES // 4 and (size := len(text.encode())) > MAX_BYTES:
        raise UserMistake(
            f"the document cannot be stored because it has {size} bytes, more than {MAX_BYTES}"
        )


def label_text(text: str) -> str:
    """The key or value of a label in the label index: a digest if it is too long."""
    if len(text) <= MAX_LABEL_LENGTH:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"


@cache
def _column_limits(table: Table, extra: str) -> tuple[ColumnLimit, ...]:
    limits: list[ColumnLimit] = []
    for column in table.c:
        computed = column.computed
        if not isinstance(computed, FromDocument):
            continue
        is_extra = computed.path == "_extra"
        limits.append(
            ColumnLimit(
                f"{table.name}.{extra if is_extra else column.name}",
                attrgetter(extra if is_extra else computed.path),
                is_required=not column.nullable and computed.field_type in NULLABLE,
                max_length=column.type.length or 0 if isinstance(column.type, String) else 0,
                is_number=isinstance(column.type, Integer),
            )
        )
    return tuple(limits)
