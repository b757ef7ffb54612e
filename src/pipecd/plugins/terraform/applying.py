# SPDX-License-Identifier: Apache-2.0
"""The applies of piped, which run to their end when piped is killed.

To end Terraform in the middle of an operation may leave resources that no state knows. So an apply
outlives piped, and the next stage of the application waits for it. A record on disk has the id of
its run, by which its process is found.
"""

import asyncio
import json
import os
import pwd
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from pipecd.plugins.terraform.apply_process import (
    ApplyProcess,
    process_names,
    running_applies,
)
from pipecd.plugins.terraform.state_lock import StateLock, UnfinishedApply
from pipecd.sdk import Duration, Unavailable

Log: TypeAlias = Callable[[str], None]
FindProcesses: TypeAlias = Callable[[], tuple[ApplyProcess, ...] | None]

_POLL_INTERVAL = 0.5
_LOG_INTERVAL = 60.0


@dataclass(frozen=True)
class ApplyRecords:
    """Files about the applies that run, which are there after a kill, too."""

    directory: Path
    longest_wait: float = 3600.0
    """How long a stage waits for the apply of a killed piped, in seconds."""
    longest_lock_wait: float = 600.0
    """How long it waits for applies that may hold the lock of the state."""
    grace: float = 18.0
    _opened_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """An apply without an end was killed with the former process of piped, or still runs."""

    async def unfinished(self, application_id: str) -> UnfinishedApply | None:
        """Returns the last apply of an application if it did not end by itself."""
        try:
            text = await asyncio.to_thread(self._file(application_id).read_bytes)
            read: Any = json.loads(text)
            return UnfinishedApply(
                who=str(read["who"]),
                started_at=datetime.fromisoformat(read["started"]),
                ended_at=datetime.fromisoformat(read.get("ended") or self._opened_at.isoformat()),
                run=str(read.get("run", "")),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def wait_for_former(self, application_id: str, log: Log) -> None:
        """Waits until the apply that a killed piped has left running has ended.

        Cancelling the wait ends that apply as it ends one of our own.
        """
        left = await self.unfinished(application_id)
        if left is None or not left.run:
            return

        def find() -> tuple[ApplyProcess, ...]:
            return tuple(
                each
                for each in running_applies() or ()
                if each.run == left.run or (each.is_ending and left.may_be(each))
            )

        running = await asyncio.to_thread(find)
        if not running:
            return
        since = left.started_at.strftime("%H:%M:%S UTC")
        what = f"the apply that piped began at {since} before it was killed"
        log(f"{_sentence(what)} still runs ({process_names(running)}): waiting until it ends")
        try:
            remaining = await _wait(find, log, what, self.longest_wait)
        except asyncio.CancelledError:
            await self._end(running, find)
            raise
        finally:
            _write(self._file(application_id), _record(left.who, left.started_at, left.run, _now()))
        if remaining:
            pid = remaining[0].pid
            raise Unavailable(
                f"{what} still runs after {Duration(self.longest_wait)} "
                f"({process_names(remaining)})",
                hint=f"wait until it ends and deploy again, or stop it with `kill -INT {pid}`",
            )
        log("It has ended")

    async def has_no_holder(self, lock: StateLock) -> bool:
        """Reports whether certainly no process runs that may have taken a lock of this machine."""
        return await asyncio.to_thread(_holders, lock) == ()

    async def holders_ended(self, lock: StateLock, log: Log) -> bool:
        """Waits until no process runs that may have taken a lock of this machine.

        Returns False if some run on, or if that is not known.
        """
        if not (holders := await asyncio.to_thread(_holders, lock)):
            return holders is not None
        what = "an apply of this machine that may have locked the state"
        log(f"{_sentence(what)} still runs ({process_names(holders)}): waiting until it ends")
        return await _wait(lambda: _holders(lock), log, what, self.longest_lock_wait) == ()

    @asynccontextmanager
    async def applying(
        self, application_id: str, *, after: UnfinishedApply | None
    ) -> AsyncIterator[str]:
        """Records an apply while it runs, and yields the id of its run.

        One that is cancelled may be killed in the end. The lock of an apply that it follows may
        still be there when it is killed itself.
        """
        who, run = _who(), uuid.uuid4().hex
        is_same = after is not None and after.who == who
        started_at = after.started_at if after is not None and is_same else _now()
        file = self._file(application_id)
        await asyncio.to_thread(_write, file, _record(who, started_at, run))
        try:
            yield run
        except BaseException:
            _write(file, _record(who, started_at, run, _now()))
            raise
        await asyncio.to_thread(file.unlink, missing_ok=True)

    async def _end(self, running: tuple[ApplyProcess, ...], find: FindProcesses) -> None:
        for process in running:
            process.interrupt()
        for process in await _wait(find, lambda _: None, "", self.grace) or ():
            process.kill()

    def _file(self, application_id: str) -> Path:
        return self.directory / f"{application_id}.json"


def _holders(lock: StateLock) -> tuple[ApplyProcess, ...] | None:
    """Returns the processes that may have taken a lock; None if that is not known."""
    running = running_applies()
    return None if running is None else lock.possible_holders(running)


async def _wait(
    find: FindProcesses, log: Log, what: str, longest: float
) -> tuple[ApplyProcess, ...] | None:
    """Waits until no process is found; returns those that are left after the longest time."""
    loop = asyncio.get_running_loop()
    began = logged = loop.time()
    # No event reports the end of a process that is not our child.
    while (found := await asyncio.to_thread(find)) and loop.time() - began < longest:
        if loop.time() - logged >= _LOG_INTERVAL:
            logged = loop.time()
            waited = Duration(round(logged - began))
            log(f"Waiting for {waited} until {what} ends ({process_names(found)})")
        await asyncio.sleep(_POLL_INTERVAL)
    return found


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _record(
    who: str, started_at: datetime, run: str, ended_at: datetime | None = None
) -> dict[str, str]:
    record = {"who": who, "started": started_at.isoformat(), "run": run}
    return record if ended_at is None else {**record, "ended": ended_at.isoformat()}


def _write(file: Path, record: dict[str, str]) -> None:
    file.parent.mkdir(exist_ok=True, mode=0o700)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(record))
    new.replace(file)


def _now() -> datetime:
    return datetime.now(UTC)


def _who() -> str:
    """Returns this user and machine in the way of Terraform."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = os.environ.get("USER", "")
    return f"{user}@{socket.gethostname()}"
