# SPDX-License-Identifier: Apache-2.0
"""Persists undelivered notifications and recent keys in a file, for the next start of piped.

A piped that was killed sends undelivered notifications at its next start and does not repeat
those that it has sent. Nothing waits for the disk: a line survives a kill of the process at once,
and a power cut a moment later.
"""

import asyncio
import base64
import json
import os
from collections.abc import Sequence
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
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.program.atomic_write import write_atomic

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_KEYS = 10_000
_MAX_AGE = timedelta(days=1)
# The file is rewritten when it has grown by so much.
_REWRITE_AFTER_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class SpoolEntry:
    """An event and the receivers that it has not been delivered to yet."""

    event: NotificationEvent
    receivers: frozenset[str]
    id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=utc_now)


class Spool:
    """Pending notifications and recent keys; without a path they end with the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._pending: dict[str, SpoolEntry] = {}
        # In the order of their events, the latest last.
        self._keys: dict[str, None] = {}
        self._file: IO[bytes] | None = None
        self._grown = 0
        self._appended = asyncio.Event()

    @classmethod
    def open(cls, path: Path) -> "Spool":
        """Loads the file of an earlier piped."""
        spool = cls(path)
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            lines = []
        except OSError as e:
            log.warning("notification spool cannot be read", error=str(e))
            lines = []
        for line in lines:
            spool._load(line)
        oldest = utc_now() - _MAX_AGE
        spool._pending = {i: e for i, e in spool._pending.items() if e.created_at > oldest}
        spool._rewrite()
        return spool

    async def run(self) -> None:
        """Syncs appended lines to the disk, in batches."""
        while True:
            await self._appended.wait()
            self._appended.clear()
            if self._file is not None:
                # A duplicate, because the file may be closed in the meantime.
                await asyncio.to_thread(_sync, os.dup(self._file.fileno()))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def pending(self) -> tuple[SpoolEntry, ...]:
        """What has not been delivered, the oldest first."""
        return tuple(self._pending.values())

    def is_duplicate(self, key: str) -> bool:
        """Whether an event with this key was added recently."""
        return key in self._keys

    def add(self, entry: SpoolEntry) -> None:
        """Persists an event that is about to be delivered."""
        self._pending[entry.id] = entry
        self._remember((entry.event.key,))
        self._append(_encode(entry))

    def done(self, id_: str, receiver: str) -> None:
        """Records that an event was delivered to a receiver, or never will be."""
        self._remove(id_, receiver)
        self._append({"gone": id_, "receiver": receiver})

    def _remove(self, id_: str, receiver: str) -> None:
        entry = self._pending.pop(id_, None)
        if entry is not None and entry.receivers - {receiver}:
            self._pending[id_] = replace(entry, receivers=entry.receivers - {receiver})

    def _remember(self, keys: Sequence[str]) -> None:
        self._keys.update(dict.fromkeys(key for key in keys if key))
        while len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    def _load(self, line: bytes) -> None:
        """Applies a line of the file; a piped that was killed may have left half of one."""
        try:
            record: dict[str, Any] = json.loads(line)
            if "keys" in record:
                self._remember(record["keys"])
            elif "gone" in record:
                self._remove(record["gone"], record["receiver"])
            else:
                entry = _decode(record)
                self._pending[entry.id] = entry
                self._remember((entry.event.key,))
        except (ValueError, KeyError, TypeError, DecodeError) as e:
            log.warning("invalid line in the notification spool, skipped", error=str(e))

    def _append(self, record: dict[str, Any]) -> None:
        if self._file is None:
            return
        line = _encode_line(record)
        try:
            self._file.write(line)
        except OSError as e:
            self._disable(e)
            return
        self._appended.set()
        self._grown += len(line)
        if self._grown > _REWRITE_AFTER_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        """Drops delivered entries; the next rewrite waits until they outweigh the others."""
        if self._path is None:
            return
        self.close()
        lines = [_encode_line({"keys": list(self._keys)})]
        lines += [_encode_line(_encode(entry)) for entry in self.pending]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._path, b"".join(lines))
            self._file = self._path.open("ab", buffering=0)
        except OSError as e:
            self._disable(e)
        self._grown = min(0, _REWRITE_AFTER_BYTES - sum(map(len, lines)))

    def _disable(self, error: OSError) -> None:
        log.warning(
            "notification spool cannot be written, a restart may lose notifications",
            error=str(error),
        )
        self.close()


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as e:
        log.warning(
            "notification spool cannot be synced, a power cut may lose notifications",
            error=str(e),
        )
    finally:
        os.close(descriptor)


def _encode_line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def _encode(entry: SpoolEntry) -> dict[str, Any]:
    event = entry.event
    return {
        "id": entry.id,
        "told_at": entry.created_at.isoformat(),
        "receivers": sorted(entry.receivers),
        "kind": event.type.name,
        "key": event.key,
        "type": event.metadata.DESCRIPTOR.full_name,
        "facts": base64.b64encode(event.metadata.SerializeToString()).decode(),
    }


def _decode(record: dict[str, Any]) -> SpoolEntry:
    message = GetMessageClass(descriptor_pool.Default().FindMessageTypeByName(record["type"]))
    metadata = message.FromString(base64.b64decode(record["facts"]))
    return SpoolEntry(
        event=NotificationEvent(EventType[record["kind"]], metadata, record["key"]),
        receivers=frozenset(record["receivers"]),
        id=record["id"],
        created_at=datetime.fromisoformat(record["told_at"]),
    )
