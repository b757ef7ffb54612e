# SPDX-License-Identifier: Apache-2.0
"""The primary key of a document: its UUID with the time fields in front.

The bytes equal those of MySQL's `UUID_TO_BIN(x, true)`, so that dumps and orders are comparable.
"""

from pipecd.model.ids import row_uuid


def row_id(id: str) -> bytes:
    """The primary key of the document with this id, 16 bytes."""
    # Most ids are UUIDs in the usual form, for which this is faster than `uuid.UUID`.
    is_uuid = len(id) == 36 and id[8] + id[13] + id[18] + id[23] == "----"
    try:
        plain = bytes.fromhex(id.replace("-", "")) if is_uuid else b""
    except ValueError:
        plain = b""
    # `fromhex` skips white space, so the result may be too short.
    if len(plain) != 16:
        plain = row_uuid(id).bytes
    return plain[6:8] + plain[4:6] + plain[0:4] + plain[8:]
