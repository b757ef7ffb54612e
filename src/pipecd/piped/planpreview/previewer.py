# SPDX-License-Identifier: Apache-2.0
"""Handles BUILD_PLAN_PREVIEW commands, several at a time, each within its timeout."""

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram
from structlog.contextvars import bound_contextvars

from pipecd.config.units import Duration
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.document import to_json
from pipecd.model.errors import PipecdError
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.planpreview.builder import PreviewBuilder
from pipecd.piped.planpreview.result import truncate
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_POLL_INTERVAL = 60.0
# The result has to reach the control plane before that gives up.
_SHARE_OF_TIMEOUT = 0.95
# Clocks differ: a command counts as expired only this many seconds after its timeout.
_MAX_CLOCK_SKEW = 60.0

_METRIC_PREFIX = "plan_preview_command"
_METRIC_BUCKETS = (1, 10, 30, 60, 120, 300, 600)


class PreviewMetrics:
    """Counts plan preview commands, under upstream's metric names."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._received = Counter(
            f"{_METRIC_PREFIX}_received_total", "Plan preview commands received.", registry=registry
        )
        self._handled = Counter(
            f"{_METRIC_PREFIX}_handled_total",
            "Plan preview commands handled.",
            ("status",),
            registry=registry,
        )
        self._seconds = Histogram(
            f"{_METRIC_PREFIX}_handling_seconds",
            "How long plan preview commands took.",
            ("status",),
            buckets=_METRIC_BUCKETS,
            registry=registry,
        )

    def received(self) -> None:
        self._received.inc()

    def handled(self, *, is_success: bool, seconds: float) -> None:
        status = "success" if is_success else "failure"
        self._handled.labels(status).inc()
        self._seconds.labels(status).observe(seconds)


@dataclass(frozen=True, kw_only=True)
class Previewer:
    """Handles the commands that request a preview.

    When piped stops, the commands in progress stay unhandled and the next process builds them.
    """

    commands: CommandCache
    builder: PreviewBuilder
    workspace: Path
    workers: int
    default_timeout: Duration
    metrics: PreviewMetrics = field(default_factory=PreviewMetrics)
    now: Now = utc_now

    async def run(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)
        # Without these it is unknown which applications a change triggers.
        await self.builder.applications.wait_until_loaded()
        await self.builder.baselines.wait_loaded()
        watch, in_progress = self.commands.changes.watch(), set[str]()
        workers = asyncio.Semaphore(self.workers)
        async with asyncio.TaskGroup() as tasks:
            while True:
                for command in self.commands.of_kind(CommandKind.BUILD_PLAN_PREVIEW):
                    if command.id not in in_progress:
                        in_progress.add(command.id)
                        self.metrics.received()
                        tasks.create_task(self._handle(command, workers, in_progress))
                await watch.wait(_POLL_INTERVAL)

    @property
    def _directory(self) -> Path:
        return self.workspace / "plan-previews"

    async def _handle(
        self, command: Command, workers: asyncio.Semaphore, in_progress: set[str]
    ) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with bound_contextvars(command=command.id):
            async with workers:
                result = await self._build(command, started)
            status = CommandStatus.FAILED if result.error else CommandStatus.SUCCEEDED
            seconds = loop.time() - started
            self.metrics.handled(is_success=not result.error, seconds=seconds)
            log.info("plan preview completed", seconds=round(seconds, 2), error=result.error)
            await self.commands.report(command, status, output=to_json(result).encode())
        # From now on the cache of commands hides it.
        in_progress.discard(command.id)

    async def _build(self, command: Command, started: float) -> PlanPreviewCommandResult:
        result = PlanPreviewCommandResult(command_id=command.id, piped_id=command.piped_id)
        seconds = command.build_plan_preview.timeout
        timeout = Duration(seconds) if seconds > 0 else self.default_timeout
        age = to_unix(self.now()) - command.created_at
        if age > timeout + _MAX_CLOCK_SKEW:
            # It expired before this piped started.
            result.error = (
                f"the preview was requested {Duration(age)} ago and had {timeout}; request it again"
            )
            return result
        try:
            result.results.extend(
                await self.builder.build(
                    command,
                    deadline=started + timeout * _SHARE_OF_TIMEOUT,
                    time_limit=timeout,
                    into=self._directory / command.id,
                )
            )
        except TimeoutError:
            result.error = f"there was no preview within {timeout}"
        except PipecdError as e:
            result.error = str(e)
        except OSError as e:
            result.error = e.strerror or str(e)
        finally:
            await asyncio.to_thread(shutil.rmtree, self._directory / command.id, ignore_errors=True)
        truncate(result)
        return result
