# SPDX-License-Identifier: Apache-2.0
"""Worker processes that evaluate the content of repositories, with limits.

A template, a document or an expression that somebody pushed may hang, fill the memory or crash the
interpreter. In a worker it costs that worker: the process is killed, the call fails with the limit
that was exceeded, and the next call gets a new process. Workers get no secrets but their arguments.
"""

import asyncio
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple, cast

import structlog

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.program import group
from pipecd.program.broken_inputs import BrokenInputs
from pipecd.program.limits import MEBIBYTE, LimitExceeded, cpu_seconds, memory_text, output_text
from pipecd.program.worker_process import LENGTH

log: structlog.stdlib.BoundLogger = structlog.get_logger()

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# Importing Python's own modules takes long on a busy machine.
_START_SECONDS = 60.0
_IDLE_SECONDS = 60.0
# What takes longer is recorded before it ends, in case the whole process ends with it.
_LONG_SECONDS = 0.2
# Parsing a larger reply would hold up the event loop.
_LARGE = MEBIBYTE
# No setting raises the limits of workers.
_SIMPLIFY = "simplify it"


@dataclass(frozen=True)
class WorkerLimits:
    """The most that one call may take; `memory` and `output` are in bytes."""

    seconds: float = 30.0
    memory: int = 512 * MEBIBYTE
    output: int = 32 * MEBIBYTE


class _Died(Exception):
    """The worker process ended during a call."""


class WorkerPool:
    """Up to `size` workers, which start when they are needed and end when they are idle.

    `broken` are the inputs that exceeded a limit before, and are refused.
    """

    def __init__(
        self,
        limits: WorkerLimits | None = None,
        *,
        size: int = 4,
        broken: BrokenInputs | None = None,
    ) -> None:
        self._limits = limits or WorkerLimits()
        self.broken = broken or BrokenInputs()
        self._turns = asyncio.Semaphore(size)
        self._idle: list[_Worker] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_closed = True
        while self._idle:
            self._end(self._idle[-1])
        await asyncio.gather(*self._ending)

    async def run(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        """Calls a function of a module in a worker; arguments and result are what JSON can hold.

        Raises the UserMistake that the function raises, or `LimitExceeded`. The same call is then
        refused at once for a day.
        """
        name = getattr(function, "__name__", "")
        request = json.dumps([function.__module__, name, arguments]).encode()
        digest = hashlib.sha256(request).hexdigest()
        with self.broken.guard(digest):
            async with self._turns:
                reply = await self._recorded(digest, request)
        match reply:
            case {"value": value}:
                return cast("T", value)
            case {"mistake": [str(message), str(hint)]}:
                raise UserMistake(message, hint=hint)
            case {"failure": failure}:
                where = reply.get("where")
                log.error("worker failed", function=name, error=failure, where=where)
                raise UserMistake(f"it cannot be evaluated: {failure}")
            case _:
                raise Unavailable("a worker process replied with something else than a result")

    async def _recorded(self, digest: str, request: bytes) -> dict[str, Any]:
        """Calls, and records the call while it takes long."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_LONG_SECONDS, self.broken.started, digest)
        try:
            return await self._call(request)
        finally:
            timer.cancel()
            self.broken.finished(digest)

    async def _call(self, request: bytes) -> dict[str, Any]:
        try:
            return await self._call_once(request)
        except _Died:
            # Something else may have killed it, such as an operator or a full machine.
            with suppress(_Died):
                return await self._call_once(request)
        raise LimitExceeded("it crashed the worker process that evaluated it", hint=_SIMPLIFY)

    async def _call_once(self, request: bytes) -> dict[str, Any]:
        worker = self._idle.pop() if self._idle else await _Worker.start(self._limits)
        worker.stop_idling()
        is_reusable = False
        try:
            reply = await worker.call(request)
            exceeded = reply.get("exceeded")
            is_reusable = exceeded is None
            if exceeded:
                raise LimitExceeded(_texts(self._limits)[exceeded], hint=_SIMPLIFY)
            return reply
        finally:
            if is_reusable and not self._is_closed:
                self._idle.append(worker)
                worker.idle(self._end)
            else:
                await worker.kill()

    def _end(self, worker: "_Worker") -> None:
        """Ends an idle worker."""
        self._idle.remove(worker)
        task = asyncio.get_running_loop().create_task(worker.kill())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


def _texts(limits: WorkerLimits) -> dict[str, str]:
    """The limits by their names in replies, as errors describe them."""
    return {
        "time": f"it takes longer than the time limit of {limits.seconds:g}s",
        "memory": f"it needs more than {memory_text(limits.memory)}",
        "output": f"its result exceeds {output_text(limits.output)}",
        "depth": "it is nested too deeply",
    }


class _Worker:
    """One worker process, which evaluates one call at a time."""

    def __init__(self, process: asyncio.subprocess.Process, limits: WorkerLimits) -> None:
        self._process, self._limits = process, limits
        self._idle_timer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, limits: WorkerLimits) -> "_Worker":
        # The numbers of a configuration are printed with their units.
        numbers = (str(float(limits.seconds)), str(int(limits.memory)), str(limits.output))
        process = await group.start(
            [sys.executable, "-s", "-P", "-m", "pipecd.program.worker_process", *numbers],
            cwd=Path("/"),
            env=_environment(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        worker = cls(process, limits)
        try:
            async with asyncio.timeout(_START_SECONDS):
                await worker._read()
        except (TimeoutError, _Died) as e:
            await worker.kill()
            raise Unavailable("a worker process could not be started") from e
        except BaseException:
            await worker.kill()
            raise
        return worker

    async def call(self, request: bytes) -> dict[str, Any]:
        """Returns the reply, which is `exceeded` for a limit."""
        used_before = self._cpu_seconds()
        try:
            async with asyncio.timeout(self._limits.seconds):
                stdin = self._process.stdin
                assert stdin is not None  # noqa: S101
                stdin.write(LENGTH.pack(len(request)) + request)
                await stdin.drain()
                reply = await self._read()
        except TimeoutError:
            used = self._cpu_seconds() - used_before
            if used < self._limits.seconds / 10:
                # On an overloaded machine a harmless input takes long, too; it must not be refused.
                raise Unavailable(
                    f"a worker process got {used:.1f}s of a processor in {self._limits.seconds:g}s",
                    hint="the machine of piped is overloaded",
                ) from None
            return {"exceeded": "time"}
        except OSError as e:
            raise _Died from e
        if reply is None:
            return {"exceeded": "output"}
        parsed: Any = (
            await asyncio.to_thread(json.loads, reply) if len(reply) > _LARGE else json.loads(reply)
        )
        return parsed

    async def _read(self) -> bytes | None:
        """Returns a reply, or None if it is too long."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101
        try:
            (length,) = LENGTH.unpack(await stdout.readexactly(LENGTH.size))
            return None if length > self._limits.output else await stdout.readexactly(length)
        except asyncio.IncompleteReadError as e:
            raise _Died from e

    def _cpu_seconds(self) -> float:
        """Returns the processor time that the process has used, infinity where it is not known."""
        try:
            return cpu_seconds(self._process.pid)
        except OSError:
            return math.inf

    def idle(self, end: Callable[["_Worker"], None]) -> None:
        """Calls `end` when the worker has had nothing to do for a while."""
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(_IDLE_SECONDS, end, self)

    def stop_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    async def kill(self) -> None:
        """Ends the process at once."""
        self.stop_idling()
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


def _environment() -> dict[str, str]:
    """The environment of a worker: where its modules are, and nothing of ours."""
    return {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        # Each arena of a thread would reserve address space, which is limited.
        "MALLOC_ARENA_MAX": "1",
        "LC_ALL": "C.UTF-8",
    }
