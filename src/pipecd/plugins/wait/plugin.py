# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""The plugin `wait`: the stage WAIT pauses the pipeline. The smallest plugin, to be read first."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from pipecd.plugins.wait.config import WaitOptions
from pipecd.sdk import Duration, Stage, StageContext, StagePlugin, StageResult

START_TIME = "startTime"
LOG_INTERVAL = 10.0


class WaitPlugin(StagePlugin):
    """Waits for a duration; a restart of piped does not restart the wait."""

    stages = (Stage("WAIT", WaitOptions),)

    def __init__(self, now: Callable[[], float] = lambda: datetime.now(UTC).timestamp()) -> None:
        self._now = now

    async def execute(self, stage: StageContext) -> StageResult:
        duration = stage.options(WaitOptions).duration
        saved = await stage.metadata.get(START_TIME) or ""
        if saved.isdecimal():
            stage.log.info("Resuming the wait after a restart")
            start = float(saved)
        else:
            start = self._now()
            await stage.metadata.put({START_TIME: str(int(start))})
        end = start + duration
        if (remaining := end - self._now()) > 0:
            stage.log.info(f"Waiting for {Duration(round(remaining, 1))}")
        while (remaining := end - self._now()) > 0:
            await asyncio.sleep(min(remaining, LOG_INTERVAL))
            if (remaining := end - self._now()) > 0:
                stage.log.info(f"{Duration(round(remaining))} left to wait")
        return StageResult.succeeded(f"Waited for {duration}")


PLUGIN = WaitPlugin
