# SPDX-License-Identifier: Apache-2.0
"""From which commit on changes count, for each application."""

import asyncio
from collections.abc import Container
from dataclasses import dataclass, replace

from pipecd.piped.planning.seen import SeenCommits
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentTrigger


@dataclass(frozen=True)
class Time:
    """When something was triggered, and when its commit was written.

    Seconds do not tell everything apart and clocks are set back, so that one alone is no proof.
    """

    triggered: int = 0
    written: int = 0

    def is_before(self, other: "Time") -> bool:
        """Whether nothing speaks against it that the other one came later."""
        return self.triggered <= other.triggered and self.written <= other.written


@dataclass(frozen=True)
class Baseline:
    """The deployment triggered last, and the commit that was last looked at since."""

    commit: str = ""
    deployment_id: str = ""
    at: Time = Time()


@dataclass(frozen=True)
class _Known:
    """What happened here; the control plane may still name the deployment before it as the last."""

    baseline: Baseline
    before: str

    def is_newer_than(self, stored: Baseline) -> bool:
        return stored.deployment_id == self.before or stored.at.is_before(self.baseline.at)


class Baselines:
    """What was triggered last: as the control plane knows it, and what happened here since."""

    def __init__(self, seen: SeenCommits) -> None:
        self._seen = seen
        self._known: dict[str, _Known] = {}
        self._is_read = asyncio.Event()

    async def load(self) -> None:
        """Reads what an earlier piped found not to matter."""
        await self._seen.load()
        self._is_read.set()

    async def read(self) -> None:
        """Waits until what an earlier piped knew is known here."""
        await self._is_read.wait()

    async def save(self, applications: Container[str]) -> None:
        """Keeps for the next piped what was found not to matter to these applications."""
        await self._seen.save(applications)

    def of(self, application: Application) -> Baseline:
        """The newer of what is known here and what the control plane says."""
        stored, known = _stored(application), self._known.get(application.id)
        newest = known.baseline if known and known.is_newer_than(stored) else stored
        since = self._seen.since(application.id, newest.deployment_id)
        return replace(newest, commit=since) if since else newest

    def seen(self, application: Application, commit: str) -> None:
        """A commit was found not to matter; later changes are compared with it."""
        self._seen.put(application.id, self.of(application).deployment_id, commit)

    def triggered(self, application: Application, deployment: Deployment) -> None:
        """A deployment was made just now."""
        before = _stored(application).deployment_id
        self._known[application.id] = _Known(_baseline(deployment.id, deployment.trigger), before)

    def found(
        self, application: Application, deployment: Deployment, *, after: str | None = None
    ) -> bool:
        """A deployment had been made before; whether it is a later one than was known.

        `after` is the deployment it is known to have followed, whatever the clock said.
        """
        last, at = self.of(application), _baseline(deployment.id, deployment.trigger).at
        follows = last.deployment_id == after or (last.at != at and last.at.is_before(at))
        is_later = follows and deployment.id != last.deployment_id
        if is_later:
            self.triggered(application, deployment)
        return is_later


def _stored(application: Application) -> Baseline:
    if not application.HasField("most_recently_triggered_deployment"):
        return Baseline()
    stored = application.most_recently_triggered_deployment
    return _baseline(stored.deployment_id, stored.trigger)


def _baseline(deployment_id: str, trigger: DeploymentTrigger) -> Baseline:
    commit = trigger.commit
    return Baseline(commit.hash, deployment_id, Time(trigger.timestamp, commit.created_at))
