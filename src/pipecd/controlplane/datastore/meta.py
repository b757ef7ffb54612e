# SPDX-License-Identifier: Apache-2.0
"""Values by name about the database itself, in the table `ExtMeta`.

A row is read before it is written, since engines count an update that changes nothing differently.
Of two transactions that add the same row the second one collides, and runs again.
"""

from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select, update

from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_META

if TYPE_CHECKING:
    from pipecd.controlplane.datastore.database import Transaction

_ROW = EXT_META.c.Name == param("name")
_READ = select(EXT_META.c.Value).where(_ROW)
_ADD = insert(EXT_META).values(Name=param("name"), Value=param("value"))
_REPLACE = update(EXT_META).where(_ROW).values(Value=param("value"))
_REMOVE = delete(EXT_META).where(_ROW)


def read_meta(transaction: "Transaction", name: str) -> str | None:
    """Returns the value; None if there is none."""
    rows = transaction.query(_READ, {"name": name})
    return str(rows[0][0]) if rows else None


def add_meta(transaction: "Transaction", name: str, value: str) -> None:
    """Adds the value unless there is one: the first one that is added stays."""
    if read_meta(transaction, name) is None:
        transaction.execute(_ADD, {"name": name, "value": value})


def write_meta(transaction: "Transaction", name: str, value: str) -> None:
    """Adds or replaces the value."""
    values: Values = {"name": name, "value": value}
    before = read_meta(transaction, name)
    if before is None:
        transaction.execute(_ADD, values)
    elif before != value:
        transaction.execute(_REPLACE, values)


def remove_meta(transaction: "Transaction", name: str) -> None:
    """Removes the value, if there is one."""
    transaction.execute(_REMOVE, {"name": name})
