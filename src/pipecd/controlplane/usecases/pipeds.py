# SPDX-License-Identifier: Apache-2.0
"""Pipeds: registration, keys, versions, restarts, their reports, and secrets encrypted for them."""

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
    operator_name,
    or_not_found,
)
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.controlplane.usecases.piped_connections import OfflineDetector, PipedConnections
from pipecd.controlplane.usecases.settings_log import RecordedChange, log_change
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import Conflict, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped, PipedKey
from pipecd.proto.service import piped_pb2 as rpc
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure
from pipecd.secrets import keys
from pipecd.secrets.binding import Binding
from pipecd.secrets.encrypter import EncryptedSecret, encrypt_for_piped

_GET = Permission(Resource.PIPED, Action.GET)
_LIST = Permission(Resource.PIPED, Action.LIST)
_CREATE = Permission(Resource.PIPED, Action.CREATE)
_UPDATE = Permission(Resource.PIPED, Action.UPDATE)
_UPDATE_APPLICATION = Permission(Resource.APPLICATION, Action.UPDATE)

MAX_KEYS = 2
_MAX_PLUGIN_FAILURES, _MAX_NAME_LENGTH, _MAX_REASON_LENGTH = 200, 255, 4096


class RegisteredPiped(NamedTuple):
    """A new piped; its key cannot be read again."""

    id: str
    key: str


class PipedActivity(NamedTuple):
    """The time of a piped's last report, 0 for never, and its unhandled restart command."""

    last_seen: int
    restart_command: str
    failing_plugins: int = 0
    """How many plugins it cannot use, or not with every deploy target."""


class PipedUseCases:
    """Registers and changes pipeds, and stores what they report about themselves."""

    def __init__(
        self,
        stores: Stores,
        bus: Bus,
        access: Access,
        commands: CommandUseCases,
        credentials: Credentials,
        now: Now = utc_now,
    ) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._commands, self._credentials, self._now = commands, credentials, now
        self._connections = PipedConnections(stores.cache, now)
        self.offline_detector = OfflineDetector(stores, bus, now)

    async def register(self, name: str, description: str, *, by: UserOrApiKey) -> RegisteredPiped:
        await self._access.require(by, _CREATE)
        if not name:
            raise UserMistake("a piped needs a name")
        key, stored = await self._new_key(by)
        piped = Piped(
            id=new_id(), name=name, desc=description, project_id=by.project, keys=[stored]
        )
        await self._stores.pipeds.add(piped)
        await self._signal(piped)
        log_change("piped registered", by=by, piped=piped.id)
        return RegisteredPiped(piped.id, key)

    async def list(self, *, by: UserOrApiKey, enabled: bool | None = None) -> tuple[Piped, ...]:
        """The pipeds of the project, oldest first, with their connection status."""
        await self._access.require(by, _LIST)
        pipeds = await self._stores.pipeds.list(by.project, enabled=enabled)
        statuses = await self._connections.statuses()
        for piped in pipeds:
            piped.status = statuses.get(piped.id, Piped.OFFLINE)
        return tuple(redacted(piped) for piped in pipeds)

    async def has_upstream(self, *, by: UserOrApiKey) -> bool:
        """Whether a piped of the project is upstream's: it has reported, but holds no lease.

        Every role may know, as the answer decides which versions are offered at all.
        """
        pipeds = await self._stores.pipeds.list(by.project, enabled=True)
        ours = await self._stores.piped_leases.holders()
        return any(piped.version and piped.id not in ours for piped in pipeds)

    async def get(self, id: str, *, by: UserOrApiKey) -> Piped:
        await self._access.require(by, _GET)
        piped = await self._access.piped(id, by=by)
        piped.status = await self._connections.status(id)
        return redacted(piped)

    async def activity(
        self, pipeds: Iterable[Piped], *, by: UserOrApiKey
    ) -> Mapping[str, PipedActivity]:
        """The activity of these pipeds, by id."""
        last_reports = await self._connections.last_reports()
        failing = await self._stores.plugin_failures.counts()
        activity: dict[str, PipedActivity] = {}
        for piped in pipeds:
            check_project(by, piped.project_id, "piped")
            unhandled = await self._stores.commands.list_unhandled(piped.id)
            restarts = [command.id for command in unhandled if command.HasField("restart_piped")]
            last_seen = last_reports.get(piped.id, 0)
            activity[piped.id] = PipedActivity(
                last_seen, restarts[0] if restarts else "", failing.get(piped.id, 0)
            )
        return activity

    async def update(self, id: str, name: str, description: str, *, by: UserOrApiKey) -> None:
        def change(piped: Piped) -> None:
            piped.name, piped.desc = name, description

        await self._change(id, change, by)

    async def enable(self, id: str, *, by: UserOrApiKey) -> None:
        await self._change(id, lambda piped: _set_disabled(piped, disabled=False), by)

    async def disable(self, id: str, *, by: UserOrApiKey) -> None:
        """Rejects the piped's calls at once."""
        await self._change(id, lambda piped: _set_disabled(piped, disabled=True), by)

    async def add_key(self, id: str, *, by: UserOrApiKey) -> str:
        """Adds a second key and returns it; it cannot be read again."""
        await self._access.require(by, _UPDATE)
        await self._access.piped(id, by=by)
        key, stored = await self._new_key(by)

        def change(piped: Piped) -> None:
            if len(piped.keys) >= MAX_KEYS:
                raise Conflict(
                    f"piped {piped.name} has {MAX_KEYS} keys already", hint="delete the old one"
                )
            others = list(piped.keys)
            del piped.keys[:]
            piped.keys.extend([stored, *others])

        await self._change(id, change, by)
        return key

    async def delete_old_keys(self, id: str, *, by: UserOrApiKey) -> None:
        """Deletes all keys but the newest."""

        def change(piped: Piped) -> None:
            if len(piped.keys) < MAX_KEYS:
                return
            newest = max(piped.keys, key=lambda key: key.created_at)
            copy = PipedKey(hash=newest.hash, creator=newest.creator, created_at=newest.created_at)
            del piped.keys[:]
            piped.keys.append(copy)

        await self._change(id, change, by)

    async def set_desired_version(
        self, version: str, ids: Sequence[str], *, by: UserOrApiKey
    ) -> None:
        """Sets the version that the launchers of these pipeds run."""

        def change(piped: Piped) -> None:
            piped.desired_version = version

        for id in ids:
            await self._change(id, change, by)

    async def restart(self, id: str, *, by: UserOrApiKey) -> str:
        """Requests the restart of a piped and returns the id of the command."""
        await self._access.require(by, _UPDATE)
        piped = await self._access.piped(id, by=by)
        command = Command(
            piped_id=piped.id,
            project_id=piped.project_id,
            commander=operator_name(by),
            type=Command.RESTART_PIPED,
            restart_piped=Command.RestartPiped(piped_id=piped.id),
        )
        command_id = await self._commands.add(command)
        # Pages that show the piped show the pending restart.
        await self._bus.publish(Signal(Topic.PIPED, piped.id, piped.project_id))
        return command_id

    async def desired_version(self, *, by: PipedCaller) -> str:
        piped = await or_not_found(self._stores.pipeds.get(by.piped), "Piped is not found")
        return piped.desired_version

    async def report_stat(self, metrics: bytes, *, by: PipedCaller) -> None:
        """Stores the metrics of a piped, which also shows that it is online."""
        previous = await self._connections.status(by.piped)
        await self._connections.report(by.piped, metrics)
        self.offline_detector.reported(by.piped)
        if previous != Piped.ONLINE:
            await self._bus.publish(Signal(Topic.PIPED, by.piped, by.project))

    async def report_meta(self, meta: rpc.ReportPipedMetaRequest, *, by: PipedCaller) -> Piped:
        """Stores what a piped reports when it starts."""
        now = to_unix(self._now())

        def change(piped: Piped) -> None:
            piped.version, piped.config, piped.started_at = meta.version, meta.config, now
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

        piped = await or_not_found(
            self._stores.pipeds.update(by.piped, change), "Piped is not found"
        )
        if await self._stores.plugin_failures.list(by.piped):
            # They were those of an earlier process.
            await self._stores.plugin_failures.replace(by.piped, ())
        await self._signal(piped)
        return piped

    async def report_plugin_failures(
        self, failures: Sequence[PluginFailure], *, by: PipedCaller
    ) -> None:
        """Stores which plugins and deploy targets a piped runs without."""
        limited = [
            PluginFailure(
                plugin=each.plugin[:_MAX_NAME_LENGTH],
                target=each.target[:_MAX_NAME_LENGTH],
                reason=each.reason[:_MAX_REASON_LENGTH],
                since=each.since,
            )
            for each in failures[:_MAX_PLUGIN_FAILURES]
        ]
        await self._stores.plugin_failures.replace(by.piped, limited)
        await self._bus.publish(Signal(Topic.PIPED, by.piped, by.project))

    async def plugin_failures(self, id: str, *, by: UserOrApiKey) -> tuple[PluginFailure, ...]:
        """The plugins and deploy targets that a piped runs without."""
        await self._access.require(by, _GET)
        await self._access.piped(id, by=by)
        return await self._stores.plugin_failures.list(id)

    async def unusable(
        self, pipeds: Iterable[Piped], *, by: UserOrApiKey
    ) -> Mapping[str, tuple[PluginFailure, ...]]:
        """What these pipeds run without, by id; only of those that run without something."""
        failing = await self._stores.plugin_failures.counts()
        unusable: dict[str, tuple[PluginFailure, ...]] = {}
        for piped in pipeds:
            check_project(by, piped.project_id, "piped")
            if piped.id in failing:
                unusable[piped.id] = await self._stores.plugin_failures.list(piped.id)
        return unusable

    async def _new_key(self, by: UserOrApiKey) -> tuple[str, PipedKey]:
        key = keys.new_piped_key()
        hashed = await asyncio.to_thread(keys.hash_key, key)
        stored = PipedKey(hash=hashed, creator=by.name, created_at=to_unix(self._now()))
        return key, stored

    async def _change(self, id: str, change: Callable[[Piped], None], by: UserOrApiKey) -> None:
        await self._access.require(by, _UPDATE)
        await self._access.piped(id, by=by)
        recorded = RecordedChange(change)
        await self._signal(await self._stores.pipeds.update(id, recorded))
        if recorded.fields:
            log_change("piped changed", by=by, piped=id, settings=recorded.fields)

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


class Encryption:
    """Encrypts secrets with the public keys that pipeds report."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def encrypt(
        self, piped_id: str, plaintext: str, *, base64_encoding: bool = False, by: UserOrApiKey
    ) -> str:
        """The encrypted text, in the form of upstream.

        With `base64_encoding` the plaintext is base64-encoded first.
        """
        # Encryption reveals and changes nothing, so a read-only API key may do it.
        await self._access.scope(by, _UPDATE_APPLICATION, writes=False)
        piped = await self._access.piped(piped_id, by=by)
        return encrypt_for_piped(piped, plaintext, base64_encoding=base64_encoding).text

    async def encrypt_for_application(
        self,
        application_id: str,
        plaintext: str,
        *,
        base64_encoding: bool = False,
        by: UserOrApiKey,
    ) -> EncryptedSecret:
        """A secret that only this application decrypts, if its piped knows bound secrets."""
        application = await self._access.application(
            application_id, by=by, permission=_UPDATE_APPLICATION, writes=False
        )
        if not plaintext:
            raise UserMistake("the secret is empty")
        piped = await self._access.piped(application.piped_id, by=by)
        binding = Binding.of_application(application)
        return encrypt_for_piped(piped, plaintext, binding=binding, base64_encoding=base64_encoding)
