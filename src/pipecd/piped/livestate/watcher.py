# SPDX-License-Identifier: Apache-2.0
"""Keeps an eye on one application: looks when something may have changed, tells what did."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pipecd.git.commit import Commit
from pipecd.model.application import SyncStatus
from pipecd.model.backoff import Backoff
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.piped.cache.changes import Watch
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import OutageLog
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.livestate.announce import Recoveries
from pipecd.piped.livestate.ground import Ground, Grounds
from pipecd.piped.livestate.look import Looking, Sight
from pipecd.piped.livestate.snapshot import snapshot_of, tidied
from pipecd.piped.reporting.sync_states import SyncState, SyncStates
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.proto.service.piped_pb2 import ReportApplicationLiveStateRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class Rhythm:
    """How long to wait for what, in seconds."""

    every: float = 60.0
    """Between looks that nobody asked for, as upstream has it."""
    net: float = 300.0
    """The same where plugins tell of changes by themselves."""
    busy: float = 10.0
    """Between looks at a platform that does not, while a deployment changes it."""
    gap: float = 0.3
    """Between two looks however often they are asked for: changes come in flocks."""
    grace: float = 1.0
    """For a commit to become a deployment, before it is called a difference."""
    again: float = 5.0
    """After the first failure; each further one doubles it."""
    doubt: float = 60.0
    """So long what was seen counts although looks fail."""
    whole: float = 1800.0
    """After that what runs is told again although it is the same."""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """What all watchers share."""

    api: ControlPlaneClient
    deployments: DeploymentCache
    heads: RepositoryHeads
    grounds: Grounds
    looking: Looking
    states: SyncStates
    recoveries: Recoveries
    now: Now = utc_now
    rhythm: Rhythm = field(default_factory=Rhythm)
    trouble: OutageLog = field(default_factory=lambda: OutageLog("live states"))
    chance: Callable[[float, float], float] = random.uniform


@dataclass(frozen=True)
class _Shipped:
    """What the control plane was told of, and when."""

    application: Application
    resources: tuple[ResourceState, ...]
    at: float


class Watcher:
    """The one who looks at an application; its looks are never two at a time."""

    def __init__(self, application: Application, tools: Tools) -> None:
        self.application, self._tools = application, tools
        self._watch = Watch()
        self._is_asked, self._next = True, 0.0
        self._commit = ""
        self._ground: Ground | None = None
        self._sight: Sight | None = None
        self._shipped: _Shipped | None = None
        self._failures, self._failing_since, self._error = 0, 0.0, ""
        self._is_told = False
        # So often the control plane could not be told of what runs.
        self._unheard = 0

    def ask(self) -> None:
        """Asks for a look as soon as possible."""
        self._is_asked = True
        self._watch.mark()

    def renew(self, application: Application) -> None:
        """The application is known by other facts now; those that decide what runs ask for a look.

        Only the head of the same repository is followed: for another one there is another watcher.
        """
        is_other = _deciding(application) != _deciding(self.application)
        self.application = application
        if is_other:
            self._commit = ""
            self.ask()

    async def run(self) -> None:
        self._tools.heads.changes_of(self.application.git_path.repo.id).add(self._watch)
        while True:
            try:
                has_looked = await self._round()
            except (PipecdError, OSError) as e:
                self._fail(e)
                has_looked = True
            if has_looked:
                self._next = asyncio.get_running_loop().time() + self._pause()
            await asyncio.sleep(self._tools.rhythm.gap)
            rest = self._next - asyncio.get_running_loop().time()
            if rest <= 0 or not await self._watch.wait(rest):
                self._is_asked = True

    async def _round(self) -> bool:
        """Looks if there is a reason to; whether the time to the next look begins anew."""
        head = self._tools.heads.of(self.application.git_path.repo.id).commit
        if head is None:
            return True
        if await self._has_moved(head):
            await self._watch.wait(self._tools.rhythm.grace if self._sight else 0)
            self._is_asked = True
        if not self._is_asked or self._ground is None:
            return False
        self._is_asked = False
        await self._look(self._ground)
        return True

    async def _has_moved(self, head: Commit) -> bool:
        """Whether what the application needs is another since the last look."""
        if head.hash == self._commit:
            return False
        before, self._ground = self._ground, None
        try:
            ground = await self._tools.grounds.at(self.application, head.hash)
        except NotFound as e:
            # A configuration that is not there is wrong.
            raise UserMistake(str(e)) from e
        self._commit = head.hash
        if before is not None and before.need == ground.need:
            # The older commit says the same, and what was made of it is of use.
            self._ground = before
            return False
        self._ground = ground
        return True

    async def _look(self, ground: Ground) -> None:
        deploying = self._tools.deployments.not_completed_of(self.application.id)
        sight = await self._tools.looking.look(self.application, ground)
        if sight.resources is None and (self._sight is None or self._sight.resources is not None):
            # Nobody tells what runs, so nobody needs a working copy any more.
            await self._tools.grounds.forget(self.application.id)
        self._sight, self._failures = sight, 0
        if self._is_told:
            log.info("live state is known again", application=self.application.id)
        self._error, self._is_told = "", False
        if sight.resources is not None:
            await self._ship(sight.resources)
        # What is seen amid a deployment is neither what was nor what will be.
        if not deploying and not self._tools.deployments.not_completed_of(self.application.id):
            self._tools.states.set_live(self.application, sight.verdict)

    async def _ship(self, resources: tuple[ResourceState, ...]) -> None:
        now, clock = to_unix(self._tools.now()), asyncio.get_running_loop().time()
        before = self._shipped
        tidy = tidied(resources, before.resources if before else (), now=now)
        if (
            before is not None
            and before.resources == tidy
            and _deciding(before.application) == _deciding(self.application)
            and clock < before.at + self._tools.rhythm.whole
        ):
            return
        snapshot = snapshot_of(self.application, tidy, now=now)
        try:
            await self._tools.api.report_application_live_state(
                ReportApplicationLiveStateRequest(snapshot=snapshot)
            )
        except PipecdError as e:
            self._tools.trouble.failed(e)
            self._unheard += 1
            return
        self._tools.trouble.succeeded()
        self._tools.recoveries.heard(self.application, snapshot.health_status)
        self._shipped, self._unheard = _Shipped(self.application, tidy, clock), 0

    def _fail(self, error: PipecdError | OSError) -> None:
        """Tells what is wrong: the user's mistakes at once, other trouble when it lasts."""
        now = asyncio.get_running_loop().time()
        if not self._error:
            self._failing_since = now
        self._failures += 1
        # What was made of the commit may be what is gone.
        self._is_asked, self._commit, self._ground = True, "", None
        is_mistake = isinstance(error, UserMistake)
        if self._error != str(error):
            self._error = str(error)
            # A mistake is told by those who keep the states, as others find it too.
            self._is_told |= not is_mistake
            tell = log.debug if is_mistake else log.warning
            tell("live state is not known", application=self.application.id, error=self._error)
        if is_mistake or not self._sight or now - self._failing_since >= self._tools.rhythm.doubt:
            self._sight = None
            status = SyncStatus.INVALID_CONFIG if is_mistake else SyncStatus.UNKNOWN
            verdict = SyncState.because(status, self._error)
            if not self._tools.deployments.not_completed_of(self.application.id):
                self._tools.states.set_live(self.application, verdict)

    def _pause(self) -> float:
        """Until the next look, unless somebody asks for one; not all come at the same time."""
        rhythm = self._tools.rhythm
        is_told = self._sight is not None and self._sight.is_told
        pause = rhythm.net if is_told else rhythm.every
        if not is_told and self._tools.deployments.not_completed_of(self.application.id):
            pause = min(pause, rhythm.busy)
        if failures := self._failures or self._unheard:
            pause = Backoff(rhythm.again, pause).after(failures)
        return self._tools.chance(0.8 * pause, 1.2 * pause)


def _deciding(application: Application) -> object:
    """The facts that decide what is asked about an application and how it is told."""
    targets = application.deploy_targets_by_plugin
    return (
        application.name,
        application.kind,
        application.git_path.SerializeToString(deterministic=True),
        application.platform_provider or application.cloud_provider,
        {plugin: tuple(each.deploy_targets) for plugin, each in targets.items()},
    )
