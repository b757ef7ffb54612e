# SPDX-License-Identifier: Apache-2.0
"""Persists undelivered notifications and recent keys in a file, for the next start of piped.

A piped that was killed sends undelivered notifications at its next start and does not repeat
those that it has sent. Nothing waits for the disk: a line survives a kill of the process at once,
and a power cut a moment later.
"""

import asyncio
import base64
import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO

import pydantic_core
import structlog
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from pydantic import AwareDatetime, BaseModel, ConfigDict, TypeAdapter

from pipecd.model.clock import utc_now
from pipecd.model.ids import new_id
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.piped.state_file import StateFile
from pipecd.proto.model import notification_pb2

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_KEYS = 10_000
_MAX_AGE = timedelta(days=1)
# The file is rewritten when it has grown by so much.
_REWRITE_AFTER_BYTES = 4 * 1024 * 1024
# After a failed write, in seconds.
_RETRY_AFTER = 5.0


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
        self._state = path and StateFile(path, "a restart may lose notifications")
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
        if spool._state is not None:
            content = spool._state.read(bytes) or b""
            try:
                spool._load(content)
            except ValueError as e:
                spool._state.set_aside(e)
        oldest = utc_now() - _MAX_AGE
        spool._pending = {i: e for i, e in spool._pending.items() if e.created_at > oldest}
        spool._rewrite()
        return spool

    async def run(self) -> None:
        """Syncs appended lines to the disk, in batches."""
        while True:
            try:
                # While the file cannot be written, it is tried again without a new notification.
                is_failing = self._state is not None and self._file is None
                async with asyncio.timeout(_RETRY_AFTER if is_failing else None):
                    await self._appended.wait()
            except TimeoutError:
                self._rewrite()
            self._appended.clear()
            if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
                # The file was removed; what is appended to it would be lost with the process.
                self._rewrite()
            if self._file is not None:
                # A duplicate, because the file may be closed in the meantime.
                await asyncio.to_thread(_sync, os.dup(self._file.fileno()))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def is_persistent(self) -> bool:
        """Whether events that are added now survive the process."""
        return self._file is not None

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
        self._append(_Delivered(gone=id_, receiver=receiver))

    def _remove(self, id_: str, receiver: str) -> None:
        if (entry := self._pending.get(id_)) is None:
            return
        if remaining := entry.receivers - {receiver}:
            # At its place, because a restarted piped delivers in this order.
            self._pending[id_] = replace(entry, receivers=remaining)
        else:
            del self._pending[id_]

    def _remember(self, keys: Sequence[str]) -> None:
        self._keys.update(dict.fromkeys(key for key in keys if key))
        while len(self._keys) > _MAX_KEYS:
            del self._keys[next(iter(self._keys))]

    def _load(self, content: bytes) -> None:
        """Applies every valid line; raises ValueError if there are others.

        A killed piped may have left half of the last line, which is no error.
        """
        *lines, last = content.split(b"\n")
        if last:
            with suppress(ValueError):
                pydantic_core.from_json(last)
                lines.append(last)
        invalid: list[str] = []
        for number, line in enumerate(lines, start=1):
            try:
                match _RECORD.validate_json(line):
                    case _Keys(keys=keys):
                        self._remember(keys)
                    case _Delivered(gone=id_, receiver=receiver):
                        self._remove(id_, receiver)
                    case _Queued() as record:
                        entry = _decode(record)
                        self._pending[entry.id] = entry
                        self._remember((entry.event.key,))
            except (ValueError, KeyError, DecodeError) as e:
                invalid.append(f"line {number}: {e}")
        if invalid:
            raise ValueError("; ".join(invalid[:3]))

    def _append(self, record: "_Keys | _Delivered | _Queued") -> None:
        if self._file is None or self._state is None:
            return
        line = _encode_line(record)
        error = None
        try:
            if self._file.write(line) < len(line):
                # The disk is full after a part of the line.
                error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as e:
            error = e
        if error is not None:
            self._state.failed(error)
            self.close()
            # `run` writes the whole file again.
            self._appended.set()
            return
        self._appended.set()
        self._grown += len(line)
        if self._grown > _REWRITE_AFTER_BYTES:
            self._rewrite()

    def _rewrite(self) -> None:
        """Drops delivered entries; the next rewrite waits until they outweigh the others."""
        if self._state is None:
            return
        self.close()
        lines = [_encode_line(_Keys(keys=list(self._keys)))]
        lines += [_encode_line(_encode(entry)) for entry in self.pending]
        if self._state.write(b"".join(lines)):
            try:
                self._file = self._state.path.open("ab", buffering=0)
            except OSError as e:
                self._state.failed(e)
        self._grown = min(0, _REWRITE_AFTER_BYTES - sum(map(len, lines)))


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


class _Record(BaseModel):
    """A line of the file."""

    model_config = ConfigDict(strict=True)


class _Keys(_Record):
    """The keys of recent events, in the first line."""

    keys: list[str]


class _Delivered(_Record):
    """An event was delivered to a receiver, or never will be."""

    gone: str
    receiver: str


class _Queued(_Record):
    """An event was queued for receivers."""

    id: str
    told_at: AwareDatetime
    receivers: list[str]
    kind: str
    key: str
    type: str
    facts: str


_RECORD = TypeAdapter[_Keys | _Delivered | _Queued](_Keys | _Delivered | _Queued)


def _encode_line(record: _Record) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _encode(entry: SpoolEntry) -> _Queued:
    event = entry.event
    return _Queued(
        id=entry.id,
        told_at=entry.created_at,
        receivers=sorted(entry.receivers),
        kind=event.type.name,
        key=event.key,
        type=event.metadata.DESCRIPTOR.full_name,
        facts=base64.b64encode(event.metadata.SerializeToString()).decode(),
    )


def _decode(record: _Queued) -> SpoolEntry:
    # Only messages about notifications, whatever the file names.
    package, _, name = record.type.rpartition(".")
    messages = notification_pb2.DESCRIPTOR
    if package != messages.package:
        raise ValueError(f"{record.type} is no notification")
    message = GetMessageClass(messages.message_types_by_name[name])
    metadata = message.FromString(base64.b64decode(record.facts))
    return SpoolEntry(
        event=NotificationEvent(EventType[record.kind], metadata, record.key),
        receivers=frozenset(record.receivers),
        id=record.id,
        created_at=record.told_at,
    )
