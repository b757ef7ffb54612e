# SPDX-License-Identifier: Apache-2.0
"""Webhooks of Git hosts: the signing secrets of a project, and the pipeds a push wakes."""

import base64
import json
import secrets
from dataclasses import astuple, dataclass, field
from datetime import timedelta

import structlog

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.projects import EncryptedSecret
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

# How long the previous secret stays valid, so that many repositories can be updated.
ROTATION_GRACE = timedelta(hours=24)
_SECRET_BYTES = 32
_LAST_DELIVERY_TTL_SECONDS = timedelta(days=30).total_seconds()


@dataclass(frozen=True)
class Push:
    """The remotes of a repository and the pushed branches; None means any branch."""

    remotes: tuple[str, ...]
    branches: frozenset[str] | None = None

    def matches(self, repository: ApplicationGitRepository) -> bool:
        """Whether the push changed the branch that a piped watches in this repository."""
        branch = repository.branch
        if branch and self.branches is not None and branch not in self.branches:
            return False
        watched = remote_identity(repository.remote)
        return any(watched.is_same(remote_identity(remote)) for remote in self.remotes)


@dataclass(frozen=True)
class WebhookDelivery:
    """A received delivery: when, from which host, for which remote, and how many it woke."""

    at: int
    host: str
    remote: str
    woken: int


@dataclass(frozen=True)
class WebhookSettings:
    """The webhook settings of a project; `previous_until` is 0 without a previous secret.

    `secret` is None if it was encrypted with another encryption key.
    """

    secret: str | None = field(repr=False)
    created_at: int
    previous_until: int
    last: WebhookDelivery | None


class Webhooks:
    """Manages webhook secrets and wakes pipeds on pushes."""

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
        """The settings of the caller's project, if webhooks are enabled; needs project:update."""
        await self._access.require(by, _UPDATE)
        encrypted = await self._stores.webhook_secrets.get(by.project)
        if encrypted is None:
            return None
        content = None
        try:
            content = await self._stores.cache.get(_last_key(by.project))
        except PipecdError as e:
            log.warning("last webhook delivery not readable", project=by.project, error=str(e))
        return WebhookSettings(
            secret=self._decrypted(by.project, encrypted.current),
            created_at=encrypted.created_at,
            previous_until=encrypted.previous_until if self._is_in_grace(encrypted) else 0,
            last=WebhookDelivery(*json.loads(content)) if content else None,
        )

    async def rotate(self, *, by: UserOrApiKey) -> None:
        """Creates a new secret; only the one before it stays valid for a day."""
        await self._access.require(by, _UPDATE)
        fresh = PREFIX + base64.b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()
        current = self._key_file().encrypt(fresh)
        now = self._now()

        def change(encrypted: EncryptedSecret | None) -> EncryptedSecret:
            if encrypted is None:
                return EncryptedSecret(current, to_unix(now))
            return EncryptedSecret(
                current, to_unix(now), encrypted.current, to_unix(now + ROTATION_GRACE)
            )

        await self._stores.webhook_secrets.update(by.project, change)

    async def remove(self, *, by: UserOrApiKey) -> None:
        """Disables the webhooks of the project and deletes all secrets."""
        await self._access.require(by, _UPDATE)
        await self._stores.webhook_secrets.remove(by.project)

    async def secrets_of(self, project: str) -> tuple[str, ...]:
        """The currently valid secrets; empty if the project has none."""
        try:
            check_id(project)
            encrypted = await self._stores.webhook_secrets.get(project)
            if encrypted is None:
                return ()
            valid = [
                encrypted.current,
                *([encrypted.previous] if self._is_in_grace(encrypted) else []),
            ]
        except UserMistake:
            # An invalid id; the sender is told the same as of a project without a secret.
            return ()
        # The sender cannot fix an unreadable one; an error would reveal that the project exists.
        decrypted = [self._decrypted(project, secret) for secret in valid]
        return tuple(secret for secret in decrypted if secret is not None)

    async def is_new(self, project: str, delivery: str, *, within: timedelta) -> bool:
        """Whether this delivery id is new; marks it as seen."""
        key = f"webhook-delivery/{project}/{delivery}"
        try:
            if await self._stores.cache.get(key) is not None:
                return False
            await self._stores.cache.put(key, b"1", ttl_seconds=within.total_seconds())
        except PipecdError as e:
            # A repeated delivery only costs a poll; a lost one would delay a deployment.
            log.warning("webhook delivery id not cached", project=project, error=str(e))
        return True

    async def pushed(self, project: str, push: Push, *, host: str) -> int:
        """Wakes the pipeds that watch the pushed branch; returns the number of wake-ups."""
        woken = 0
        for piped in await self._stores.pipeds.list(project, enabled=True):
            for repository in piped.repositories:
                if push.matches(repository):
                    woken += 1
                    signal = Signal(Topic.REPOSITORY, repository.id, project, piped.id)
                    await self._bus.publish(signal)
        shown = push.remotes[0] if push.remotes else ""
        log.info("webhook received", project=project, host=host, remote=shown, woken=woken)
        delivery = WebhookDelivery(to_unix(self._now()), host, shown, woken)
        try:
            await self._stores.cache.put(
                _last_key(project),
                json.dumps(astuple(delivery)).encode(),
                ttl_seconds=_LAST_DELIVERY_TTL_SECONDS,
            )
        except PipecdError as e:
            log.warning("last webhook delivery not cached", project=project, error=str(e))
        return woken

    def _decrypted(self, project: str, secret: str) -> str | None:
        try:
            return self._key_file().decrypt(secret)
        except UserMistake as e:
            log.warning("webhook secret not readable", project=project, error=str(e))
            return None

    def _key_file(self) -> KeyFile:
        return KeyFile(self._encryption_key)

    def _is_in_grace(self, encrypted: EncryptedSecret) -> bool:
        return bool(encrypted.previous) and encrypted.previous_until > to_unix(self._now())


def _last_key(project: str) -> str:
    return f"webhook-last/{project}"
