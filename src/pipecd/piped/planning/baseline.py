# SPDX-License-Identifier: Apache-2.0
"""The commit that each application was last triggered for, and whether a new head deploys it.

Pushes and plan previews use the same `CommitTrigger`, so that they cannot disagree.
"""

import asyncio
import json
from collections.abc import Container
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from pipecd.config.application import ApplicationSpec
from pipecd.git.mirror import Mirror
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import NotFound, PipecdError
from pipecd.piped.plan import reason
from pipecd.piped.source.configs import ConfigResult
from pipecd.piped.state_file import StateFile
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentTrigger

# Matching more paths than this would hold up the event loop.
_MANY_FILES = 500
_IGNORED_COMMITS = TypeAdapter(dict[str, tuple[str, str]], config=ConfigDict(strict=True))


class IgnoredCommits:
    """The last commit that did not trigger each application, and its deployment before; on disk.

    Without them, a restarted piped would evaluate ignored commits again together with later ones,
    and `ignores` of the former could veto the latter. That is all that a lost file causes.
    """

    def __init__(self, file: Path) -> None:
        self._file = StateFile(file, "a restart may evaluate ignored commits again")
        self._ignored: dict[str, tuple[str, str]] = {}
        self._saved: dict[str, tuple[str, str]] = {}
        self._saving = asyncio.Lock()

    def since(self, application_id: str, deployment_id: str) -> str:
        """Returns the commit that was ignored since this deployment, or an empty string."""
        last, commit = self._ignored.get(application_id, ("", ""))
        return commit if last == deployment_id else ""

    def put(self, application_id: str, deployment_id: str, commit: str) -> None:
        self._ignored[application_id] = deployment_id, commit

    async def load(self) -> None:
        """Reads the file of an earlier process; a missing or invalid one is not an error."""
        loaded = await asyncio.to_thread(self._file.read, _IGNORED_COMMITS.validate_json)
        if loaded is not None:
            self._ignored = {**loaded, **self._ignored}
            self._saved = loaded

    async def save(self, applications: Container[str]) -> None:
        """Writes the file if it changed, without applications that no longer exist."""
        async with self._saving:
            self._ignored = {id: each for id, each in self._ignored.items() if id in applications}
            if self._ignored == self._saved:
                return
            content = dict(self._ignored)
            if await asyncio.to_thread(self._file.write, json.dumps(content).encode()):
                self._saved = content


@dataclass(frozen=True)
class Baseline:
    """The deployment triggered last, and the commit that was last triggered or ignored."""

    commit: str = ""
    deployment_id: str = ""
    triggered_at: int = 0


class Baselines:
    """The baseline of each application: of the control plane, and of this process since."""

    def __init__(self, ignored: IgnoredCommits) -> None:
        self._ignored = ignored
        self._local: dict[str, Baseline] = {}
        # By application the deployments that are earlier than the local baseline: the control plane
        # may still return one of them as the last.
        self._earlier: dict[str, set[str]] = {}
        self._is_loaded = asyncio.Event()

    async def load(self) -> None:
        """Loads the commits that an earlier process ignored."""
        await self._ignored.load()
        self._is_loaded.set()

    async def wait_loaded(self) -> None:
        """Waits until `load` has ended."""
        await self._is_loaded.wait()

    async def save(self, applications: Container[str]) -> None:
        """Saves the ignored commits of these applications."""
        await self._ignored.save(applications)

    def of(self, application: Application) -> Baseline:
        """Returns the newer of the local baseline and that of the control plane."""
        newest, local = _stored_baseline(application), self._local.get(application.id)
        if local is not None and newest.deployment_id in self._earlier[application.id]:
            newest = local
        ignored = self._ignored.since(application.id, newest.deployment_id)
        return replace(newest, commit=ignored) if ignored else newest

    def ignore(self, application: Application, commit: str) -> None:
        """Records that a commit did not trigger; later heads are compared with it."""
        self._ignored.put(application.id, self.of(application).deployment_id, commit)

    def record(self, application: Application, deployment: Deployment) -> None:
        """Records a deployment as the last one of its application."""
        last = self.of(application).deployment_id
        stored = _stored_baseline(application).deployment_id
        self._earlier.setdefault(application.id, set()).update((last, stored))
        self._local[application.id] = _baseline(deployment.id, deployment.trigger)

    def adopt(
        self, application: Application, deployment: Deployment, *, after: str | None = None
    ) -> bool:
        """Records a deployment that existed before, if it is later; returns whether it is.

        `after` is the deployment that it is known to follow, whatever the clock was.
        """
        last = self.of(application)
        follows = (
            last.deployment_id == after or deployment.trigger.timestamp > last.triggered_at
        ) and deployment.id not in self._earlier.get(application.id, ())
        is_later = follows and deployment.id != last.deployment_id
        if is_later:
            self.record(application, deployment)
        return is_later


def _stored_baseline(application: Application) -> Baseline:
    if not application.HasField("most_recently_triggered_deployment"):
        return Baseline()
    stored = application.most_recently_triggered_deployment
    return _baseline(stored.deployment_id, stored.trigger)


def _baseline(deployment_id: str, trigger: DeploymentTrigger) -> Baseline:
    return Baseline(trigger.commit.hash, deployment_id, trigger.timestamp)


@dataclass
class CommitTrigger:
    """Decides for many applications whether one head of their repository deploys them."""

    baselines: Baselines
    mirror: Mirror
    head: str
    _changed: dict[str, tuple[str, ...] | None] = field(
        default_factory=dict[str, "tuple[str, ...] | None"]
    )
    """The changed files since each baseline commit; None if that commit no longer exists."""
    _comparing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def decide(self, application: Application, spec: ApplicationSpec) -> reason.Decision:
        """Decides on the changes between the baseline of an application and the head."""
        rule, last = spec.trigger.on_commit, self.baselines.of(application).commit
        changed: tuple[str, ...] | None = ()
        if reason.needs_changed_files(rule, last=last, head=self.head):
            # Most applications have the same baseline, whose changes are read once.
            async with self._comparing:
                if last not in self._changed:
                    self._changed[last] = await self._changed_since(last)
            changed = self._changed[last]
        facts = reason.CommitFacts(application.git_path.path, last, self.head, changed)
        if changed and len(changed) > _MANY_FILES:
            return await asyncio.to_thread(reason.on_commit, rule, facts)
        return reason.on_commit(rule, facts)

    async def _changed_since(self, last: str) -> tuple[str, ...] | None:
        try:
            await self.mirror.clone.ensure_commit(last)
            return await self.mirror.objects.changed_files(last, self.head)
        except NotFound:
            return None


def invalid_config(application: Application, config: ConfigResult) -> str:
    """Returns why the configuration of an application cannot be deployed, or an empty string."""
    if isinstance(config, PipecdError):
        return str(config)
    try:
        registered = ApplicationKind(application.kind)
    except ValueError:
        return ""
    has_provider = bool(application.platform_provider or application.cloud_provider)
    return reason.invalid_kind(config.application_kind, registered, has_provider=has_provider)
