# SPDX-License-Identifier: Apache-2.0
"""Numbers as protocol buffers write them, for tests that write messages by hand."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
