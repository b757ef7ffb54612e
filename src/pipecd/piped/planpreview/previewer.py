# SPDX-License-Identifier: Apache-2.0
"""Answers requests for plan previews: each once, some at a time, none for longer than asked."""

import asyncio
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.config.duration import Duration
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.document import to_json
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.planpreview.builder import Builder
from pipecd.piped.planpreview.metrics import PreviewMetrics
from pipecd.piped.planpreview.result import fit
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WAIT = 60.0
# What is ready in the last moment comes too late: the control plane has given up by then.
_IN_TIME = 0.95
# Clocks differ, so that a request counts as forgotten only some time after it should be answered.
_PATIENCE = 60.0


@dataclass(frozen=True, kw_only=True)
class Previewer:
    """Follows the commands that ask for a preview.

    A piped that stops leaves the ones at work unanswered, and the next one builds them anew.
    """

    commands: CommandCache
    builder: Builder
    workspace: Path
    workers: int
    within: Duration
    metrics: PreviewMetrics = field(default_factory=PreviewMetrics)
    now: Now = utc_now

    async def run(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)
        # Before these are known, nothing is known about what a change touches.
        await self.builder.applications.wait_until_loaded()
        await self.builder.baselines.read()
        watch, begun = self.commands.changes.watch(), set[str]()
        turns = asyncio.Semaphore(self.workers)
        async with asyncio.TaskGroup() as tasks:
            while True:
                for command in self.commands.of_kind(CommandKind.BUILD_PLAN_PREVIEW):
                    if command.id not in begun:
                        begun.add(command.id)
                        self.metrics.received()
                        answering = tasks.create_task(self._answer(command, turns))
                        # The mirror hides what was answered.
                        answering.add_done_callback(partial(_forget, begun, command.id))
                await watch.wait(_WAIT)

    @property
    def _place(self) -> Path:
        return self.workspace / "plan-previews"

    async def _answer(self, command: Command, turns: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with bound_contextvars(command=command.id):
            async with turns:
                result = await self._result(command, begun)
            status = CommandStatus.FAILED if result.error else CommandStatus.SUCCEEDED
            seconds = loop.time() - begun
            self.metrics.handled(is_success=not result.error, seconds=seconds)
            log.info("plan preview ended", seconds=round(seconds, 2), error=result.error)
            await self.commands.report(command, status, output=to_json(result).encode())

    async def _result(self, command: Command, begun: float) -> PlanPreviewCommandResult:
        result = PlanPreviewCommandResult(command_id=command.id, piped_id=command.piped_id)
        seconds = command.build_plan_preview.timeout
        within = Duration(seconds) if seconds > 0 else self.within
        try:
            self._check_age(command, within)
            result.results.extend(
                await self.builder.build(
                    command,
                    deadline=begun + within * _IN_TIME,
                    within=within,
                    into=self._place / command.id,
                )
            )
        except TimeoutError:
            result.error = f"there was no preview within {within}"
        except PipecdError as e:
            result.error = str(e)
        except OSError as e:
            result.error = e.strerror or str(e)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._place / command.id, ignore_errors=True)
        fit(result)
        return result

    def _check_age(self, command: Command, within: Duration) -> None:
        """Whoever asked while there was no piped has been told so long ago."""
        age = to_unix(self.now()) - command.created_at
        if age > within + _PATIENCE:
            raise Unavailable(
                f"the preview was requested {Duration(age)} ago and had {within}",
                hint="request it again",
            )


def _forget(begun: set[str], command_id: str, _: asyncio.Task[None]) -> None:
    begun.discard(command_id)
