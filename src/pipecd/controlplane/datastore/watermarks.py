# SPDX-License-Identifier: Apache-2.0
"""How far an index of ours has followed the documents: times in the table `ExtMeta`."""

from sqlalchemy import insert, select, update

from pipecd.controlplane.datastore.database import Transaction
from pipecd.controlplane.datastore.expressions import Values, param
from pipecd.controlplane.datastore.schema import EXT_META

_READ = select(EXT_META.c.Value).where(EXT_META.c.Name == param("name"))
_ADD = insert(EXT_META).values(Name=param("name"), Value=param("value"))
_MOVE = update(EXT_META).where(EXT_META.c.Name == param("name")).values(Value=param("value"))


def read_watermark(transaction: Transaction, *names: str) -> int | None:
    """Returns the first of the watermarks that exists."""
    for name in names:
        if rows := transaction.query(_READ, {"name": name}):
            return int(rows[0][0])
    return None


def write_watermark(transaction: Transaction, name: str, value: int) -> None:
    values: Values = {"name": name, "value": str(value)}
    if not transaction.execute(_MOVE, values):
        transaction.execute(_ADD, values)
