# SPDX-License-Identifier: Apache-2.0
"""The supervisors of all deploy targets, kept running and watched for changes."""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from pipecd.plugins.process.client import SupervisorClient
from pipecd.plugins.process.config import ProcessTarget
from pipecd.plugins.process.instance import ApplicationStatus
from pipecd.plugins.process.livestate import has_changed
from pipecd.sdk import Backoff, DeployTarget, PipecdError

logger = structlog.get_logger()

_BACKOFF = Backoff(0.1, 30.0)


class Supervisors:
    """Starts the supervisor of a deploy target when it is needed first, and again if it ends.

    A target on which something was deployed has a state file, so its supervisor is also started
    with the plugin: after a restart of the machine its programs run again.
    """

    def __init__(self, directory: Path, on_change: Callable[[Collection[str]], None]) -> None:
        self._directory, self._on_change = directory, on_change
        self._watches: dict[Path, asyncio.Task[None]] = {}
        self._statuses: dict[str, ApplicationStatus] = {}
        self._locks: dict[Path, asyncio.Lock] = {}
        self._upgraded = set[Path]()

    def client(self, target: DeployTarget) -> SupervisorClient:
        """Returns the client of a deploy target, which may not run."""
        directory = target.settings(ProcessTarget).directory
        return SupervisorClient.at(Path(directory) if directory else self._directory / target.name)

    def resume(self, target: DeployTarget) -> None:
        """Watches a target on which something was deployed."""
        client = self.client(target)
        if client.directory.state_file.exists():
            self._watch(client, target)

    async def running(self, target: DeployTarget) -> SupervisorClient:
        """Returns the client of a target whose supervisor runs."""
        client = self.client(target)
        await self._ensure(client, target)
        self._watch(client, target)
        return client

    async def close(self) -> None:
        """Ends the watches; supervisors and programs go on."""
        tasks = [*self._watches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ensure(self, client: SupervisorClient, target: DeployTarget) -> None:
        path = client.directory.path
        async with self._locks.setdefault(path, asyncio.Lock()):
            # Only once: while a piped is upgraded, the old one must not take the supervisor back.
            await client.ensure(upgrades=path not in self._upgraded)
            self._upgraded.add(path)
            settings = target.settings(ProcessTarget)
            await client.configure(settings.status_port, settings.trusted_proxies)

    def _watch(self, client: SupervisorClient, target: DeployTarget) -> None:
        path = client.directory.path
        if path not in self._watches or self._watches[path].done():
            self._watches[path] = asyncio.create_task(self._follow(client, target))

    async def _follow(self, client: SupervisorClient, target: DeployTarget) -> None:
        failures = 0
        while True:
            try:
                await self._ensure(client, target)
                async for statuses in client.watch():
                    failures = 0
                    self._compare(statuses)
            except (OSError, PipecdError) as e:
                logger.warning("the supervisor cannot be watched", target=target.name, error=str(e))
            # It ended, or another one takes over.
            failures += 1
            await asyncio.sleep(_BACKOFF.after(failures))

    def _compare(self, statuses: list[ApplicationStatus]) -> None:
        changed = [
            each.desired.id
            for each in statuses
            if has_changed(self._statuses.get(each.desired.id), each)
        ]
        self._statuses |= {each.desired.id: each for each in statuses}
        if changed:
            self._on_change(changed)
