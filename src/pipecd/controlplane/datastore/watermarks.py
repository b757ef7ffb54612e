# SPDX-License-Identifier: Apache-2.0
"""How far an index of ours has followed the documents, as times."""

from pipecd.controlplane.datastore.database import Transaction
from pipecd.controlplane.datastore.meta import read_meta, write_meta


def read_watermark(transaction: Transaction, *names: str) -> int | None:
    """Returns the first of the watermarks that exists."""
    for name in names:
        if (value := read_meta(transaction, name)) is not None:
            return int(value)
    return None


def write_watermark(transaction: Transaction, name: str, value: int) -> None:
    write_meta(transaction, name, str(value))
