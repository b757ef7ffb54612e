# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers: which of two deployments or events is the newer one, whatever clocks say.

Each application numbers its deployments and each project its events, in the order in which the
control plane stores them. Documents from before these tables existed have no number and are older
than any that has one.
"""

from collections.abc import Iterable

from sqlalchemy import insert, select, update

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.expressions import param
from pipecd.controlplane.datastore.schema import EXT_DOCUMENT_SEQUENCE, EXT_SEQUENCE
from pipecd.model.errors import Conflict

_IDS_PER_QUERY = 50
_MAX_LISTED = 1000

_LAST = select(EXT_SEQUENCE.c.LastSequence, EXT_SEQUENCE.c.LastDocumentId).where(
    EXT_SEQUENCE.c.Scope == param("scope")
)
_LAST_LOCKED = _LAST.with_for_update()
_BEGIN = insert(EXT_SEQUENCE).values(
    Scope=param("scope"), LastSequence=param("sequence"), LastDocumentId=param("id")
)
_ADVANCE = (
    update(EXT_SEQUENCE)
    .where(EXT_SEQUENCE.c.Scope == param("scope"))
    .values(LastSequence=param("sequence"), LastDocumentId=param("id"))
)
_NUMBER = insert(EXT_DOCUMENT_SEQUENCE).values(
    Kind=param("kind"),
    DocumentId=param("id"),
    Scope=param("scope"),
    DocumentSequence=param("sequence"),
)
_NUMBERS = select(EXT_DOCUMENT_SEQUENCE.c.DocumentId, EXT_DOCUMENT_SEQUENCE.c.DocumentSequence)
_OF_IDS = _NUMBERS.where(
    EXT_DOCUMENT_SEQUENCE.c.Kind == param("kind"),
    EXT_DOCUMENT_SEQUENCE.c.DocumentId.in_([param(f"id_{i}") for i in range(_IDS_PER_QUERY)]),
)
_AFTER = (
    _NUMBERS.where(
        EXT_DOCUMENT_SEQUENCE.c.Scope == param("scope"),
        EXT_DOCUMENT_SEQUENCE.c.DocumentSequence > param("after"),
    )
    .order_by(EXT_DOCUMENT_SEQUENCE.c.DocumentSequence)
    .limit(_MAX_LISTED)
)


def number_document(
    transaction: Transaction, kind: str, scope: str, id: str, *, follows: str | None = None
) -> int:
    """Gives a document the next number of its scope, and returns it; `kind` names its table.

    With `follows` it raises Conflict unless that document is the last one of the scope; any
    document may be the first.
    """
    sequence = 1
    values: dict[str, str | int] = {"kind": kind, "scope": scope, "id": id, "sequence": sequence}
    if rows := transaction.query(_LAST_LOCKED, {"scope": scope}):
        last_sequence, last_id = rows[0]
        if follows is not None and follows != last_id:
            raise Conflict(
                f"{id} was decided after {follows or 'none'}, but {last_id} has been stored since"
            )
        values["sequence"] = sequence = last_sequence + 1
        transaction.execute(_ADVANCE, values)
    else:
        # A concurrent first document is a Duplicate, after which the transaction is retried.
        transaction.execute(_BEGIN, values)
    transaction.execute(_NUMBER, values)
    return sequence


async def last_of(database: Database, scope: str) -> tuple[int, str]:
    """Returns the number and the id of the last document of a scope, 0 and empty if none is."""
    rows = await database.lookup(_LAST, {"scope": scope})
    return (rows[0][0], rows[0][1]) if rows else (0, "")


async def sequences_of(database: Database, kind: str, ids: Iterable[str]) -> dict[str, int]:
    """Returns the numbers of those of the documents that have one."""
    unique = list(dict.fromkeys(ids))
    numbers: dict[str, int] = {}
    for start in range(0, len(unique), _IDS_PER_QUERY):
        batch = unique[start : start + _IDS_PER_QUERY]
        # The list is padded with its last id, so that one statement serves all lengths.
        values = {f"id_{i}": batch[min(i, len(batch) - 1)] for i in range(_IDS_PER_QUERY)}
        values["kind"] = kind
        numbers |= dict(await database.query(_OF_IDS, values))
    return numbers


async def documents_after(database: Database, scope: str, sequence: int) -> dict[str, int]:
    """Returns the documents of a scope with a greater number, in order; at most a thousand."""
    rows = await database.query(_AFTER, {"scope": scope, "after": sequence})
    return dict(rows)
