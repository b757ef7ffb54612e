# SPDX-License-Identifier: Apache-2.0
"""A commit: hash, author, message, date and trailers."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from pipecd.model.clock import from_unix

# Fields are separated by NUL, which no part of a commit can contain.
LOG_FORMAT = "%H%x00%an%x00%at%x00%s%x00%b"

_TRAILER = re.compile(r"^([A-Za-z0-9][A-Za-z0-9-]*):[ \t]*(.*?)\s*$")


@dataclass(frozen=True)
class Commit:
    """One commit; `message` is its subject line, `trailers` the `Key: value` lines of its body."""

    hash: str
    author: str
    message: str
    body: str
    created_at: datetime
    trailers: Mapping[str, str]


def parse_commit(output: bytes) -> Commit:
    """Parses what `git log --format=LOG_FORMAT` printed for one commit."""
    hash_, author, seconds, subject, body = (
        output.decode("utf-8", "replace").rstrip("\n").split("\0", 4)
    )
    try:
        created_at = from_unix(int(seconds))
    except (ValueError, OverflowError, OSError):
        # A commit can claim any date; one outside of the calendar counts as the oldest.
        created_at = from_unix(0)
    trailers: dict[str, str] = {}
    for line in body.splitlines():
        if match := _TRAILER.match(line):
            trailers.setdefault(match[1], match[2])
    return Commit(
        hash=hash_,
        author=author,
        message=subject,
        body=body.strip(),
        created_at=created_at,
        trailers=MappingProxyType(trailers),
    )
