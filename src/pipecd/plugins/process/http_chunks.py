# SPDX-License-Identifier: Apache-2.0
"""Reads and writes chunked bodies; extensions and trailers are dropped."""

import re

from pipecd.plugins.process.http_head import Malformed

LAST_CHUNK = b"0\r\n\r\n"
_LONGEST_LINE = 1024
_LONGEST_TRAILER = 16 * 1024
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*")


def chunk(data: bytes) -> bytes:
    """Returns the data, which must not be empty, as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ChunkReader:
    """Reads one chunked body from pieces of any size."""

    def __init__(self) -> None:
        self.is_complete = False
        self._line = b""
        self._remaining = 0  # of the current chunk with the CRLF behind it
        self._in_trailer = False
        self._trailer = 0

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """Returns the body's part of the data, and what follows the complete body."""
        body: list[bytes] = []
        at = 0
        while at < len(data) and not self.is_complete:
            if self._remaining > 2:
                piece = data[at : at + self._remaining - 2]
                body.append(piece)
                self._remaining -= len(piece)
                at += len(piece)
            elif self._remaining:
                if data[at] != b"\n\r"[self._remaining - 1]:
                    raise Malformed(400, "a chunk is longer than its size")
                self._remaining -= 1
                at += 1
            else:
                at = self._read_line(data, at)
        return b"".join(body), data[at:]

    def _read_line(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        self._line += data[at : end + 1] if end >= 0 else data[at:]
        if len(self._line) > _LONGEST_LINE:
            raise Malformed(400, "a line between chunks is too long")
        if end < 0:
            return len(data)
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise Malformed(400, "a line between chunks ends without a carriage return")
        self._use_line(line[:-2])
        return end + 1

    def _use_line(self, line: bytes) -> None:
        if self._in_trailer:
            self._trailer += len(line)
            if not line:
                self.is_complete = True
            elif _TRAILER.fullmatch(line) is None or self._trailer > _LONGEST_TRAILER:
                raise Malformed(400, "the trailer of a chunked body is malformed")
            return
        size = _SIZE.fullmatch(line)
        if size is None:
            raise Malformed(400, "the size of a chunk is malformed")
        if length := int(size[1], 16):
            self._remaining = length + 2
        else:
            self._in_trailer = True
