# SPDX-License-Identifier: Apache-2.0
"""Webhooks of a project: the secret its Git hosts sign with, and whom a push concerns."""

import base64
import json
import secrets
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.projects import SealedSecret
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access
from pipecd.controlplane.usecases.projects import check_id
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.model.giturl import remote_identity
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.secrets.keyfile import KeyFile
from pipecd.secrets.standardwebhook import PREFIX

log = structlog.get_logger()

_UPDATE = Permission(Resource.PROJECT, Action.UPDATE)

# How long an earlier secret is valid, so that the hooks of many repositories can be changed.
GRACE = timedelta(hours=24)
_SECRET_BYTES = 32
_LAST_SECONDS = timedelta(days=30).total_seconds()


@dataclass(frozen=True)
class Push:
    """A repository by all its remotes, and the branches that moved; None means any of them."""

    remotes: tuple[str, ...]
    branches: frozenset[str] | None = None

    def concerns(self, repository: ApplicationGitRepository) -> bool:
        """Whether a piped that watches this repository and branch has to look."""
        branch = repository.branch
        if branch and self.branches is not None and branch not in self.branches:
            return False
        watched = remote_identity(repository.remote)
        return any(watched.is_same(remote_identity(remote)) for remote in self.remotes)


@dataclass(frozen=True)
class Arrival:
    """The delivery that arrived last: when, of which host and repository, and how many it woke."""

    at: int
    host: str
    remote: str
    woken: int


@dataclass(frozen=True)
class WebhookSettings:
    """What an administrator needs to set up a webhook; `previous_until` is 0 without a grace."""

    secret: str = field(repr=False)
    created_at: int
    previous_until: int
    last: Arrival | None


class Webhooks:
    """What Git hosts tell about the repositories of a project."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        encryption_key: bytes,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._access, self._now = stores, bus, access, now
        self._encryption_key = encryption_key

    async def settings(self, *, by: UserOrApiKey) -> WebhookSettings | None:
        """The secret of the caller's project, if it has one; only for those who may change it."""
        await self._access.require(by, _UPDATE)
        sealed = await self._stores.webhook_secrets.get(by.project)
        if sealed is None:
            return None
        return WebhookSettings(
            secret=self._key_file().decrypt(sealed.current),
            created_at=sealed.created_at,
            previous_until=sealed.previous_until if self._is_in_grace(sealed) else 0,
            last=await self._last(by.project),
        )

    async def rotate(self, *, by: UserOrApiKey) -> None:
        """Makes a new secret; an earlier one stays valid for a day, but only the latest does."""
        await self._access.require(by, _UPDATE)
        fresh = PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        current = self._key_file().encrypt(fresh)
        now = self._now()

        def change(sealed: SealedSecret | None) -> SealedSecret:
            if sealed is None:
                return SealedSecret(current, to_unix(now))
            return SealedSecret(current, to_unix(now), sealed.current, to_unix(now + GRACE))

        await self._stores.webhook_secrets.update(by.project, change)

    async def remove(self, *, by: UserOrApiKey) -> None:
        """Turns webhooks of the project off, at once and with every secret."""
        await self._access.require(by, _UPDATE)
        await self._stores.webhook_secrets.remove(by.project)

    async def secrets_of(self, project: str) -> tuple[str, ...]:
        """Every secret that is valid now, for the door that checks signatures; none is no error."""
        try:
            check_id(project)
            sealed = await self._stores.webhook_secrets.get(project)
            return self._opened(sealed) if sealed else ()
        except UserMistake as e:
            # Whoever sends a delivery is not the one who can mend this, and is told nothing.
            log.warning("no secret for a webhook", project=project, error=str(e))
            return ()

    async def is_new(self, project: str, delivery: str, *, within: timedelta) -> bool:
        """Whether a delivery of this id was not seen yet; asked once for each of them."""
        key = f"webhook-delivery/{project}/{delivery}"
        try:
            if await self._stores.cache.get(key) is not None:
                return False
            await self._stores.cache.put(key, b"1", ttl_seconds=within.total_seconds())
        except PipecdError as e:
            # A push that is told twice costs a look; one that is not told costs a deployment.
            log.warning("deliveries of webhooks not remembered", project=project, error=str(e))
        return True

    async def pushed(self, project: str, push: Push, *, host: str) -> int:
        """Wakes the pipeds that watch the repository; how many of their repositories it was."""
        woken = 0
        for piped in await self._stores.pipeds.list(project, enabled=True):
            for repository in piped.repositories:
                if push.concerns(repository):
                    woken += 1
                    signal = Signal(Topic.REPOSITORY, repository.id, project, piped.id)
                    await self._bus.publish(signal)
        shown = push.remotes[0] if push.remotes else ""
        log.info("webhook received", project=project, host=host, remote=shown, woken=woken)
        await self._remember(project, Arrival(to_unix(self._now()), host, shown, woken))
        return woken

    def _opened(self, sealed: SealedSecret) -> tuple[str, ...]:
        in_use = [sealed.current, *([sealed.previous] if self._is_in_grace(sealed) else [])]
        return tuple(self._key_file().decrypt(secret) for secret in in_use)

    def _key_file(self) -> KeyFile:
        return KeyFile(self._encryption_key)

    def _is_in_grace(self, sealed: SealedSecret) -> bool:
        return bool(sealed.previous) and sealed.previous_until > to_unix(self._now())

    async def _remember(self, project: str, arrival: Arrival) -> None:
        kept = json.dumps([arrival.at, arrival.host, arrival.remote, arrival.woken]).encode()
        try:
            await self._stores.cache.put(_last_key(project), kept, ttl_seconds=_LAST_SECONDS)
        except PipecdError as e:
            log.warning("last webhook not remembered", project=project, error=str(e))

    async def _last(self, project: str) -> Arrival | None:
        try:
            kept = await self._stores.cache.get(_last_key(project))
        except PipecdError as e:
            log.warning("last webhook not known", project=project, error=str(e))
            return None
        return Arrival(*json.loads(kept)) if kept else None


def _last_key(project: str) -> str:
    return f"webhook-last/{project}"
