# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""WAIT lets time pass before the next stage; the smallest plugin and a good first one to read."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from pipecd.plugins.wait.config import WaitOptions
from pipecd.sdk import Duration, Stage, StageContext, StagePlugin, StageResult

START_TIME = "startTime"
LOG_EVERY = 10.0


class WaitPlugin(StagePlugin):
    """Waits; a restart of piped does not start the wait anew."""

    stages = (Stage("WAIT", WaitOptions),)

    def __init__(self, now: Callable[[], float] = lambda: datetime.now(UTC).timestamp()) -> None:
        self._now = now

    async def execute(self, stage: StageContext) -> StageResult:
        duration = stage.options(WaitOptions).duration
        until = await self._begun(stage) + duration
        if (remaining := until - self._now()) > 0:
            stage.log.info(f"Waiting for {Duration(round(remaining, 1))}")
        while (remaining := until - self._now()) > 0:
            await asyncio.sleep(min(remaining, LOG_EVERY))
            if (remaining := until - self._now()) > 0:
                stage.log.info(f"{Duration(round(remaining))} left to wait")
        return StageResult.succeeded(f"Waited for {duration}")

    async def _begun(self, stage: StageContext) -> float:
        """When the wait began, perhaps in an earlier life of piped."""
        begun = await stage.metadata.get(START_TIME) or ""
        if begun.isdecimal():
            stage.log.info("Resuming the wait after a restart")
            return float(begun)
        now = self._now()
        await stage.metadata.put({START_TIME: str(int(now))})
        return now


PLUGIN = WaitPlugin
