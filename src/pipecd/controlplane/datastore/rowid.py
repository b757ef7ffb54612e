# SPDX-License-Identifier: Apache-2.0
"""The primary key of a document: its UUID with the time fields in front.

The bytes equal those of MySQL's `UUID_TO_BIN(x, true)`, so that dumps and orders are comparable.
"""

from pipecd.model.ids import row_uuid


def row_id(id: str) -> bytes:
    """The sixteen bytes under which the document with this id is stored."""
    plain = row_uuid(id).bytes
    return plain[6:8] + plain[4:6] + plain[0:4] + plain[8:]
