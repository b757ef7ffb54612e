# SPDX-License-Identifier: Apache-2.0
"""Pipeds: registered by people, described by themselves."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import (
    Access,
    check_project,
    commander,
    creator,
    found,
)
from pipecd.controlplane.usecases.commands import Commands
from pipecd.controlplane.usecases.piped_connections import Connections
from pipecd.controlplane.usecases.silence import Silence
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import Conflict, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.secrets import keys

_GET = Permission(Resource.PIPED, Action.GET)
_LIST = Permission(Resource.PIPED, Action.LIST)
_CREATE = Permission(Resource.PIPED, Action.CREATE)
_UPDATE = Permission(Resource.PIPED, Action.UPDATE)

MOST_KEYS = 2


class Registered(NamedTuple):
    """A new piped; the key is told this once and never again."""

    id: str
    key: str


class Sight(NamedTuple):
    """When a piped was last heard of, 0 for never, and the restart that it has yet to answer."""

    seen: int
    restart: str


class Pipeds:
    """The agents of a project."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        commands: Commands,
        credentials: Credentials,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._commands, self._credentials, self._now = commands, credentials, now
        self._connections = Connections(stores.cache, now)
        self.silence = Silence(stores, bus, now)

    async def register(self, name: str, description: str, *, by: UserOrApiKey) -> Registered:
        await self._access.require(by, _CREATE)
        if not name:
            raise UserMistake("a piped needs a name")
        key, stored = await self._new_key(by)
        piped = Piped(
            id=new_id(), name=name, desc=description, project_id=by.project, keys=[stored]
        )
        await self._stores.pipeds.add(piped)
        await self._signal(piped)
        return Registered(piped.id, key)

    async def listed(self, *, by: UserOrApiKey, enabled: bool | None = None) -> tuple[Piped, ...]:
        """The pipeds of the project, oldest first, with their connection status."""
        await self._access.require(by, _LIST)
        pipeds = await self._stores.pipeds.list(by.project, enabled=enabled)
        statuses = await self._connections.statuses()
        for piped in pipeds:
            piped.status = statuses.get(piped.id, Piped.OFFLINE)
        return tuple(redacted(piped) for piped in pipeds)

    async def get(self, id: str, *, by: UserOrApiKey) -> Piped:
        await self._access.require(by, _GET)
        piped = await self._access.piped(id, by=by)
        piped.status = await self._connections.status(id)
        return redacted(piped)

    async def sights(self, pipeds: Iterable[Piped], *, by: UserOrApiKey) -> Mapping[str, Sight]:
        """What is known of these pipeds, which the caller was given, beside their documents."""
        heard = await self._connections.heard()
        sights: dict[str, Sight] = {}
        for piped in pipeds:
            check_project(by, piped.project_id, "piped")
            waiting = await self._stores.commands.list_unhandled(piped.id)
            restarts = [command.id for command in waiting if command.HasField("restart_piped")]
            sights[piped.id] = Sight(heard.get(piped.id, 0), restarts[0] if restarts else "")
        return sights

    async def update(self, id: str, name: str, description: str, *, by: UserOrApiKey) -> None:
        def change(piped: Piped) -> None:
            piped.name, piped.desc = name, description

        await self._change(id, change, by)

    async def enable(self, id: str, *, by: UserOrApiKey) -> None:
        await self._change(id, lambda piped: _set_disabled(piped, disabled=False), by)

    async def disable(self, id: str, *, by: UserOrApiKey) -> None:
        """Locks the piped out at once."""
        await self._change(id, lambda piped: _set_disabled(piped, disabled=True), by)

    async def add_key(self, id: str, *, by: UserOrApiKey) -> str:
        """A second key beside the first, told this once."""
        await self._access.require(by, _UPDATE)
        await self._access.piped(id, by=by)
        key, stored = await self._new_key(by)

        def change(piped: Piped) -> None:
            if len(piped.keys) >= MOST_KEYS:
                raise Conflict(
                    f"piped {piped.name} has {MOST_KEYS} keys already", hint="delete the old one"
                )
            others = list(piped.keys)
            del piped.keys[:]
            piped.keys.extend([stored, *others])

        await self._change(id, change, by)
        return key

    async def drop_old_keys(self, id: str, *, by: UserOrApiKey) -> None:
        """Keeps the newest key only."""

        def change(piped: Piped) -> None:
            if len(piped.keys) < MOST_KEYS:
                return
            newest = max(piped.keys, key=lambda key: key.created_at)
            kept = PipedKey(hash=newest.hash, creator=newest.creator, created_at=newest.created_at)
            del piped.keys[:]
            piped.keys.append(kept)

        await self._change(id, change, by)

    async def desire_version(self, version: str, ids: Sequence[str], *, by: UserOrApiKey) -> None:
        """Asks the launchers of these pipeds to run that version."""

        def change(piped: Piped) -> None:
            piped.desired_version = version

        for id in ids:
            await self._change(id, change, by)

    async def restart(self, id: str, *, by: UserOrApiKey) -> str:
        """Asks a piped to start anew and returns the id of the command."""
        await self._access.require(by, _UPDATE)
        piped = await self._access.piped(id, by=by)
        command = Command(
            piped_id=piped.id,
            project_id=piped.project_id,
            commander=commander(by),
            type=Command.RESTART_PIPED,
            restart_piped=Command.RestartPiped(piped_id=piped.id),
        )
        given = await self._commands.add(command)
        # Pages that show the piped show that it is about to start anew.
        await self._bus.publish(Signal(Topic.PIPED, piped.id, piped.project_id))
        return given

    async def desired_version(self, *, by: PipedCaller) -> str:
        return (await self._own(by)).desired_version

    async def stat_reported(self, metrics: bytes, *, by: PipedCaller) -> None:
        """Keeps the metrics of a piped and thereby the proof that it is alive."""
        was = await self._connections.status(by.piped)
        await self._connections.report(by.piped, metrics)
        self.silence.heard(by.piped)
        if was != Piped.ONLINE:
            await self._bus.publish(Signal(Topic.PIPED, by.piped, by.project))

    async def meta_reported(self, meta: rpc.ReportPipedMetaRequest, *, by: PipedCaller) -> Piped:
        """Takes over what a piped says about itself when it starts."""
        now = to_unix(self._now())

        def change(piped: Piped) -> None:
            _replace_meta(piped, meta)
            piped.started_at = now

        piped = await found(self._stores.pipeds.update(by.piped, change), "Piped is not found")
        await self._signal(piped)
        return piped

    async def _own(self, by: PipedCaller) -> Piped:
        return await found(self._stores.pipeds.get(by.piped), "Piped is not found")

    async def _new_key(self, by: UserOrApiKey) -> tuple[str, PipedKey]:
        key = keys.new_piped_key()
        hashed = await asyncio.to_thread(keys.hash_key, key)
        stored = PipedKey(hash=hashed, creator=creator(by), created_at=to_unix(self._now()))
        return key, stored

    async def _change(self, id: str, change: Callable[[Piped], None], by: UserOrApiKey) -> None:
        await self._access.require(by, _UPDATE)
        await self._access.piped(id, by=by)
        await self._signal(await self._stores.pipeds.update(id, change))

    async def _signal(self, piped: Piped) -> None:
        self._credentials.invalidate(piped.id)
        await self._bus.publish(Signal(Topic.PIPED, piped.id, piped.project_id, piped.id))


def redacted(piped: Piped) -> Piped:
    """The piped without the hashes of its keys."""
    for key in piped.keys:
        key.hash = keys.REDACTED
    return piped


def _set_disabled(piped: Piped, *, disabled: bool) -> None:
    piped.disabled = disabled


def _replace_meta(piped: Piped, meta: rpc.ReportPipedMetaRequest) -> None:
    piped.version, piped.config = meta.version, meta.config
    for field in ("cloud_providers", "platform_providers", "plugins", "repositories"):
        piped.ClearField(field)
    piped.platform_providers.extend(
        Piped.PlatformProvider(name=old.name, type=old.type) for old in meta.cloud_providers
    )
    piped.platform_providers.extend(meta.platform_providers)
    piped.plugins.extend(meta.plugins)
    piped.repositories.extend(meta.repositories)
    if meta.HasField("secret_encryption"):
        piped.secret_encryption.CopyFrom(meta.secret_encryption)
    else:
        piped.ClearField("secret_encryption")
