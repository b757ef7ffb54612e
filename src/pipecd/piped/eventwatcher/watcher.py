# SPDX-License-Identifier: Apache-2.0
"""The event watcher: one inbox for all, one scribe for each repository."""

import asyncio
from collections.abc import Sequence

from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.eventwatcher.inbox import Inbox
from pipecd.piped.eventwatcher.scribe import Scribe


class EventWatcher:
    """Follows events; a repository that hangs holds up no other one."""

    def __init__(self, inbox: Inbox, scribes: Sequence[Scribe]) -> None:
        self._inbox, self._scribes = inbox, scribes

    @property
    def schedule(self) -> RefreshSchedule:
        """When it looks for events."""
        return self._inbox.schedule

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._inbox.run(), name="events")
            for scribe in self._scribes:
                tasks.create_task(scribe.run(), name=f"events of {scribe.repository_id}")
