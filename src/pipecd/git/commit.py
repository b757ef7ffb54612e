# SPDX-License-Identifier: Apache-2.0
"""A commit as deployments need it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from pipecd.model.clock import from_unix

# Fields are divided by NUL, which no part of a commit can contain.
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
    """Reads what `git log --format=LOG_FORMAT` printed for one commit."""
    hash_, author, created_at, subject, body = (
        output.decode("utf-8", "replace").rstrip("\n").split("\0", 4)
    )
    return Commit(
        hash=hash_,
        author=author,
        message=subject,
        body=body.strip(),
        created_at=_moment(created_at),
        trailers=_trailers(body),
    )


def _moment(seconds: str) -> datetime:
    try:
        return from_unix(int(seconds))
    except (ValueError, OverflowError, OSError):
        # A commit can claim any date; one that no calendar knows counts as the oldest.
        return from_unix(0)


def _trailers(body: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for line in body.splitlines():
        if match := _TRAILER.match(line):
            found.setdefault(match[1], match[2])
    return MappingProxyType(found)
