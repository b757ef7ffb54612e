# SPDX-License-Identifier: Apache-2.0
"""What a document must be like for every engine to hold it.

Engines differ in what they refuse: PostgreSQL a zero byte, MySQL a long name, SQLite neither. The
narrowest of them decides for all, so that a control plane can move from one to another and a
mistake is reported the same way everywhere.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from google.protobuf.message import Message
from sqlalchemy import Column, Integer, String, Table

from pipecd.controlplane.datastore.expressions import FromDocument
from pipecd.model.errors import UserMistake

# The smallest packet that the servers of today are set up for is twice as long.
MAX_BYTES = 8 * 1024 * 1024
MAX_INTEGER = 2**31 - 1
MAX_LABEL_LENGTH = 255

# A backslash that is itself escaped begins no escape.
_ZERO_BYTE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True)
class ColumnLimit:
    """The column that takes a field of the document, and what it can hold."""

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

    `text` is its stored form, `extra` the field of which upstream keeps a copy.
    """
    for rule in _column_limits(table, extra):
        rule.check(document)
    if "\\u0000" in text and _ZERO_BYTE.search(text):
        raise UserMistake(
            "the document cannot be stored because a text in it has a zero byte",
            hint="remove the byte",
        )
    # A character has four bytes at most.
    if len(text) > MAX_BYTES // 4 and (size := len(text.encode())) > MAX_BYTES:
        raise UserMistake(
            f"the document cannot be stored because it has {size} bytes, more than {MAX_BYTES}"
        )


def label_text(text: str) -> str:
    """A key or value of a label as the label index has it: a digest for what is too long."""
    if len(text) <= MAX_LABEL_LENGTH:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"


@cache
def _column_limits(table: Table, extra: str) -> tuple[ColumnLimit, ...]:
    computed = ((c, c.computed) for c in table.c)
    return tuple(_column_limit(c, e, extra) for c, e in computed if isinstance(e, FromDocument))


def _column_limit(column: Column[Any], computed: FromDocument, extra: str) -> ColumnLimit:
    is_extra = computed.path == "_extra"
    # Expressions with a default never give null.
    is_required = not column.nullable and computed.reads.value.endswith("or null")
    max_length = column.type.length or 0 if isinstance(column.type, String) else 0
    return ColumnLimit(
        f"{column.table.name}.{extra if is_extra else column.name}",
        _field(extra if is_extra else computed.path),
        is_required,
        max_length,
        isinstance(column.type, Integer),
    )


def _field(path: str) -> Callable[[Any], str | int]:
    names = path.split(".")

    def read(document: Any) -> str | int:
        for name in names:
            document = getattr(document, name)
        return document

    return read
