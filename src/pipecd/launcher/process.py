# SPDX-License-Identifier: Apache-2.0
"""A piped that the launcher has started, and what it reports of its start."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from pipecd.launcher.plan import LaunchSpec
from pipecd.model.errors import PipecdError
from pipecd.program import die_with_parent
from pipecd.program.atomic_write import write_private
from pipecd.program.handover import FLAG, Phase, PipedConnection, PipedReport, StartOrder
from pipecd.program.run import run

_STANDARD_ERROR = 2
_HELP_TIMEOUT = 20.0
# The last report of a process that has ended may arrive a moment after its exit.
_LAST_REPORT_SECONDS = 1.0


class LaunchFailed(PipecdError):
    """A piped that was started cannot take the place of the running one."""


async def can_stand_by(program: Sequence[str]) -> bool:
    """Whether a version of piped can be started beside a running one.

    Those of upstream, and old ones of ours, would begin to work at once.
    """
    try:
        async with asyncio.timeout(_HELP_TIMEOUT):
            finished = await run([*program, "--help"], cwd=Path.cwd())
    except (TimeoutError, PipecdError):
        return False
    return f"--{FLAG}" in finished.output


class PipedProcess:
    """One process of piped, from its start to its exit.

    Without a connection, which only versions that can stand by have, it reports nothing.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        config_file: Path,
        child: die_with_parent.ChildProcess,
        connection: PipedConnection | None,
    ) -> None:
        self.spec, self.config_file = spec, config_file
        self.exit = asyncio.create_task(child.wait(), name=f"piped {spec.version}")
        self._child, self._connection = child, connection
        self._reached = {phase: asyncio.Event() for phase in Phase}
        self._reports: dict[Phase, PipedReport] = {}
        self._reading: asyncio.Task[None] | None = None
        if connection is not None:
            self._reading = asyncio.create_task(self._read(connection))

    @classmethod
    async def start(
        cls,
        spec: LaunchSpec,
        program: Sequence[str],
        *arguments: str,
        config_file: Path,
        stands_by: bool,
    ) -> "PipedProcess":
        """Starts a piped, which dies with us; one that stands by does so until it gets an order.

        Its configuration is written to `config_file`, which is removed at its end.
        """
        await asyncio.to_thread(config_file.parent.mkdir, parents=True, exist_ok=True)
        # It may contain the key of the piped.
        await asyncio.to_thread(write_private, config_file, spec.config)
        connection = PipedConnection() if stands_by else None
        argv, descriptors = [*program, f"--config-file={config_file}", *arguments], list[int]()
        if connection is not None:
            argv.append(f"--{FLAG}={connection.descriptor}")
            descriptors.append(connection.descriptor)
        try:
            child = await die_with_parent.start(
                argv,
                # Relative paths in the configuration start there.
                cwd=Path.cwd(),
                env=None,
                output=_STANDARD_ERROR,
                descriptors=descriptors,
            )
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        finally:
            if connection is not None:
                connection.close_descriptor()
        return cls(spec, config_file, child, connection)

    @property
    def exit_code(self) -> int | None:
        return self.exit.result() if self.exit.done() else None

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended; it may be waiting for its order."""
        return not self.exit.done()

    @property
    def reports(self) -> bool:
        """Whether this version reports its phases."""
        return self._connection is not None

    def report(self, phase: Phase) -> PipedReport | None:
        """Returns what the piped has reported of a phase; None before it has reached it."""
        return self._reports.get(phase)

    def send_order(self, order: StartOrder) -> None:
        if self._connection is not None:
            self._connection.send_order(order)

    async def reached(self, phase: Phase) -> None:
        """Returns when the piped has reached a phase."""
        await self._reached[phase].wait()

    async def wait_for(self, phase: Phase, *, within: float) -> PipedReport:
        """Returns the report of a phase; raises LaunchFailed if the piped does not reach it."""
        reached = asyncio.create_task(self.reached(phase))
        try:
            await asyncio.wait(
                {reached, self.exit}, timeout=within, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            reached.cancel()
        if (report := self.report(phase)) is not None:
            return report
        version = self.spec.version
        if self.exit.done():
            raise LaunchFailed(f"piped {version} {await self.reason_of_exit()}")
        checking = self.report(Phase.CHECKING)
        during = f" while checking {checking.text}" if checking and phase is Phase.READY else ""
        raise LaunchFailed(f"piped {version} was not {phase} within {within:g}s{during}")

    async def reason_of_exit(self) -> str:
        """Returns why a piped that has ended did so, as far as it is known."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=_LAST_REPORT_SECONDS)
        if (failed := self.report(Phase.FAILED)) is not None:
            return f"failed: {failed.text}"
        return f"ended with exit code {self.exit_code}, see its log"

    async def end(self, *, grace: float) -> None:
        """Stops the piped if it runs; kills it after the grace period."""
        if not self.exit.done():
            await self._child.end(grace=grace)
        await asyncio.wait({self.exit})
        await asyncio.to_thread(self.config_file.unlink, missing_ok=True)
        if self._reading is not None:
            self._reading.cancel()
        if self._connection is not None:
            self._connection.close()

    async def _read(self, connection: PipedConnection) -> None:
        async with aclosing(connection.reports()) as reports:
            async for report in reports:
                self._reports[report.phase] = report
                self._reached[report.phase].set()
