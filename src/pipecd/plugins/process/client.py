# SPDX-License-Identifier: Apache-2.0
"""Talks to the supervisor of a directory, and starts it when there is none."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipecd.plugins.process.control import LONGEST_LINE
from pipecd.plugins.process.desired import DesiredApplication
from pipecd.plugins.process.instance import ApplicationStatus
from pipecd.plugins.process.json_codec import from_json, to_json
from pipecd.plugins.process.state_file import SupervisorDirectory, code_version
from pipecd.sdk import Unavailable, UserMistake
from pipecd.sdk.program import capture

_MODULE = "pipecd.plugins.process.supervisor_program"
_START_SECONDS = 30.0
_HELLO_SECONDS, _ANSWER_SECONDS = 10.0, 30.0
_ATTEMPTS, _AGAIN_SECONDS = 3, 0.1
# What a Python program needs, and what it must not get from a virtual environment of a user.
_SUPERVISOR_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")


class NotRunning(Unavailable):
    """There is no supervisor, or it ended before it answered."""


@dataclass(frozen=True)
class SupervisorClient:
    """The supervisor of one directory."""

    directory: SupervisorDirectory

    @classmethod
    def at(cls, path: Path) -> "SupervisorClient":
        """Returns the client for a directory."""
        return cls(SupervisorDirectory(path))

    async def ensure(self, *, upgrades: bool = False) -> None:
        """Starts the supervisor unless it runs; with `upgrades`, one with other code hands over."""
        running = await self._hello()
        if running is None:
            await self._start()
        elif upgrades and running.get("version") != code_version():
            await self._start("--take-over")

    async def is_running(self) -> bool:
        """Reports whether there is a supervisor."""
        return await self._hello() is not None

    async def configure(self, status_port: int, trusted_proxies: Sequence[str]) -> None:
        """Sets the port of the status page, and the networks whose claims the router believes."""
        settings = {"status_port": status_port, "trusted_proxies": list(trusted_proxies)}
        await self._retried({"request": "configure", **settings})

    async def apply(self, desired: DesiredApplication) -> None:
        """Stores what shall run of an application."""
        await self._retried({"request": "apply", "application": to_json(desired)})

    async def status(self, application_id: str) -> ApplicationStatus | None:
        """Returns what runs of an application."""
        every = await self.statuses()
        return next((each for each in every if each.desired.id == application_id), None)

    async def statuses(self) -> list[ApplicationStatus]:
        """Returns what runs."""
        return _statuses(await self._retried({"request": "status"}))

    async def watch(self) -> AsyncGenerator[list[ApplicationStatus]]:
        """Yields what runs, now and at every change, until the supervisor ends."""
        async with self._connection() as (reader, writer):
            writer.write(_line({"request": "watch"}))
            await writer.drain()
            while line := await reader.readline():
                yield _statuses(json.loads(line))

    async def shut_down(self, *, at_most: float = 120.0) -> None:
        """Ends all programs and the supervisor."""
        with suppress(NotRunning):
            await self._request({"request": "shut-down"}, at_most=at_most)

    async def _hello(self) -> dict[str, Any] | None:
        try:
            return await self._request({"request": "hello"}, at_most=_HELLO_SECONDS)
        except NotRunning:
            return None

    async def _start(self, *options: str) -> None:
        inherited = {name: os.environ[name] for name in _SUPERVISOR_VARIABLES if name in os.environ}
        argv = [sys.executable, "-P", "-m", _MODULE, str(self.directory.path), *options]
        done = await capture(argv, cwd=Path("/"), env=inherited, at_most=_START_SECONDS)
        if done.code:
            text = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise UserMistake(
                f"the supervisor of {self.directory.path} cannot start: {text}",
                hint="correct that, or choose another directory of the deploy target",
            )

    async def _retried(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request that may be repeated, also to the supervisor after one that ended."""
        for _ in range(_ATTEMPTS - 1):
            with suppress(NotRunning):
                return await self._request(request)
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.ensure()
        return await self._request(request)

    async def _request(
        self, request: Mapping[str, Any], *, at_most: float = _ANSWER_SECONDS
    ) -> dict[str, Any]:
        try:
            async with asyncio.timeout(at_most), self._connection() as (reader, writer):
                writer.write(_line(request))
                await writer.drain()
                line = await reader.readline()
        except TimeoutError as e:
            raise Unavailable(
                f"the supervisor of {self.directory.path} did not answer within {at_most:g}s; "
                f"if it hangs, kill the process that {self.directory.lock_file} names: programs go "
                "on, and the next supervisor finds them"
            ) from e
        except OSError as e:
            raise NotRunning(f"the supervisor of {self.directory.path} does not run") from e
        if not line:
            raise NotRunning("the supervisor ended before it answered")
        answer: dict[str, Any] = json.loads(line)
        if error := answer.get("error"):
            raise Unavailable(f"the supervisor refused: {error}")
        return answer

    @asynccontextmanager
    async def _connection(
        self,
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        opened = self.directory.connect()
        opened.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=opened, limit=LONGEST_LINE)
        try:
            yield reader, writer
        finally:
            writer.close()


def _line(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def _statuses(answer: Mapping[str, Any]) -> list[ApplicationStatus]:
    return [from_json(ApplicationStatus, each) for each in answer["applications"]]
