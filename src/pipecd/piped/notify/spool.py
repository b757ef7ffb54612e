# SPDX-License-Identifier: Apache-2.0
"""What is on its way to receivers, and what was told lately, in a file that outlives piped.

A piped that is killed sends the rest at its next start, and does not tell again what it told
before it could report it. Nobody waits for the disk: a line outlives a kill at once, and a power
cut a moment later.
"""

import asyncio
import base64
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any

import structlog
from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from pipecd.model.clock import utc_now
from pipecd.model.ids import new_id
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.program.atomic_write import write_atomic

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MOST_KEYS = 10_000
_OLDEST = timedelta(days=1)
# The file is written anew when it has grown by so much.
_MOST_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """A notice and the receivers that have not got it yet."""

    notice: Notice
    receivers: frozenset[str]
    id: str = field(default_factory=new_id)
    told_at: datetime = field(default_factory=utc_now)


class Spool:
    """The file, and what is in it; without a path it is forgotten with the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._waiting: dict[str, Entry] = {}
        # In the order they were told, the latest last.
        self._keys: dict[str, None] = {}
        self._file: IO[bytes] | None = None
        self._grown = 0
        self._appended = asyncio.Event()

    @classmethod
    def open(cls, path: Path) -> "Spool":
        """Reads what an earlier piped left."""
        spool = cls(path)
        for line in _lines(path):
            spool._take(line)
        too_old = utc_now() - _OLDEST
        spool._waiting = {i: e for i, e in spool._waiting.items() if e.told_at > too_old}
        spool._rewrite()
        return spool

    async def run(self) -> None:
        """Brings what was added to the disk, however much that is at a time."""
        while True:
            await self._appended.wait()
            self._appended.clear()
            if self._file is not None:
                # It may be closed meanwhile.
                await asyncio.to_thread(_sync, os.dup(self._file.fileno()))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """What has not been delivered, the oldest first."""
        return tuple(self._waiting.values())

    def knows(self, key: str) -> bool:
        """Whether that was told lately."""
        return key in self._keys

    def add(self, entry: Entry) -> None:
        """A notice is on its way."""
        self._waiting[entry.id] = entry
        self._remember((entry.notice.key,))
        self._append(_written(entry))

    def gone(self, id_: str, receiver: str) -> None:
        """A receiver got the notice, or never will."""
        self._remove(id_, receiver)
        self._append({"gone": id_, "receiver": receiver})

    def _remove(self, id_: str, receiver: str) -> None:
        entry = self._waiting.pop(id_, None)
        if entry is not None and entry.receivers - {receiver}:
            self._waiting[id_] = replace(entry, receivers=entry.receivers - {receiver})

    def _remember(self, keys: Sequence[str]) -> None:
        self._keys.update(dict.fromkeys(key for key in keys if key))
        while len(self._keys) > _MOST_KEYS:
            del self._keys[next(iter(self._keys))]

    def _take(self, line: bytes) -> None:
        """Believes a line of the file; a piped that was killed may have left half of one."""
        try:
            said: dict[str, Any] = json.loads(line)
            if "keys" in said:
                self._remember(said["keys"])
            elif "gone" in said:
                self._remove(said["gone"], said["receiver"])
            else:
                entry = _read(said)
                self._waiting[entry.id] = entry
                self._remember((entry.notice.key,))
        except (ValueError, KeyError, TypeError, DecodeError) as e:
            log.warning("a line of the kept notifications cannot be read", error=str(e))

    def _append(self, said: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = _line(said)
        try:
            self._file.write(line)
        except OSError as e:
            self._do_without(e)
            return
        self._appended.set()
        self._grown += len(line)
        if self._grown > _MOST_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        """Leaves out what is over; a later rewrite waits until there is more of that than of it."""
        if self._path is None:
            return
        self.close()
        kept = [_line({"keys": list(self._keys)}), *(_line(_written(e)) for e in self.waiting)]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, b"".join(kept))
            self._file = self._path.open("ab", buffering=0)
        except OSError as e:
            self._do_without(e)
        self._grown = min(0, _MOST_BYTES - sum(map(len, kept)))

    def _do_without(self, error: OSError) -> None:
        log.warning("notifications are not kept, a restart may lose some", error=str(error))
        self.close()


def _sync(opened: int) -> None:
    try:
        os.fsync(opened)
    except OSError as e:
        log.warning("notifications may be lost by a power cut", error=str(e))
    finally:
        os.close(opened)


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from path.read_bytes().splitlines()
    except FileNotFoundError:
        return
    except OSError as e:
        log.warning("kept notifications cannot be read", error=str(e))


def _line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"


def _written(entry: Entry) -> dict[str, Any]:
    notice = entry.notice
    return {
        "id": entry.id,
        "told_at": entry.told_at.isoformat(),
        "receivers": sorted(entry.receivers),
        "kind": notice.kind.name,
        "key": notice.key,
        "type": notice.facts.DESCRIPTOR.full_name,
        "facts": base64.b64encode(notice.facts.SerializeToString()).decode(),
    }


def _read(said: dict[str, Any]) -> Entry:
    message = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(said["type"]))
    facts = message.FromString(base64.b64decode(said["facts"]))
    return Entry(
        notice=Notice(NoticeKind[said["kind"]], facts, said["key"]),
        receivers=frozenset(said["receivers"]),
        id=said["id"],
        told_at=datetime.fromisoformat(said["told_at"]),
    )
