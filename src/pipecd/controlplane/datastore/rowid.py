# SPDX-License-Identifier: Apache-2.0
"""The primary key of a document: its UUID with the time fields in front.

The bytes equal those of MySQL's `UUID_TO_BIN(x, true)`, so that dumps and orders are comparable.
"""

from pipecd.model.ids import row_uuid


def row_id(id: str) -> bytes:
    """The sixteen bytes under which the document with this id is stored."""
    plain = _uuid_bytes(id) or row_uuid(id).bytes
    return plain[6:8] + plain[4:6] + plain[0:4] + plain[8:]


def _uuid_bytes(id: str) -> bytes:
    """The bytes of a UUID as ids are made; nothing for any other text."""
    if len(id) != 36 or id[8] + id[13] + id[18] + id[23] != "----":
        return b""
    try:
        raw = bytes.fromhex(id.replace("-", ""))
    except ValueError:
        return b""
    # White space is taken for nothing.
    return raw if len(raw) == 16 else b""
