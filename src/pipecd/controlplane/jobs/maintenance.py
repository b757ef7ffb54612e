# SPDX-License-Identifier: Apache-2.0
"""Periodic maintenance: times out commands, deletes old data, stores the last use of API keys."""

from dataclasses import replace
from datetime import timedelta
from pathlib import PurePosixPath

from pipecd.controlplane.auth.credentials import LAST_USED_KEY
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.cache import Cache
from pipecd.controlplane.datastore.deployments import Commands
from pipecd.controlplane.datastore.projects import ApiKeys
from pipecd.controlplane.datastore.sign_ins import SessionEndings, SessionRecords, UsedCodes
from pipecd.controlplane.datastore.verified_keys import VerifiedKeyDigests
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.usecases.commands import signals_of
from pipecd.controlplane.usecases.piped_connections import STATS_KEY
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.document import from_json
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.command_pb2 import COMMAND_TIMEOUT, Command
from pipecd.proto.model.piped_pb2 import PipedStat

COMMAND_TIMEOUT_AFTER = timedelta(hours=24)
PIPED_STATS_RETENTION = timedelta(hours=24)
COMMAND_OUTPUT_RETENTION = timedelta(hours=48)
COMMAND_OUTPUT_PREFIX = "command-output/"


async def time_out_commands(commands: Commands, bus: Bus, *, now: Now = utc_now) -> int:
    """Marks commands as timed out that no piped handled within a day; returns their number."""
    moment = now()

    def time_out(command: Command) -> None:
        # A piped may have reported its result since the list was read; that result stays.
        if command.status == CommandStatus.NOT_HANDLED_YET:
            command.status = COMMAND_TIMEOUT
            command.metadata.clear()
            command.handled_at = to_unix(moment)

    unhandled = await commands.list_unhandled_before(to_unix(moment - COMMAND_TIMEOUT_AFTER))
    for command in unhandled:
        await commands.update(command.id, time_out)
        for signal in signals_of(command):
            # The piped must not start the command any more.
            await bus.publish(replace(signal, piped=command.piped_id))
    return len(unhandled)


async def delete_stale_stats(cache: Cache, *, now: Now = utc_now) -> int:
    """Deletes the last stats of pipeds that are offline for a day; returns their number.

    Unreadable stats are deleted too.
    """
    oldest = to_unix(now() - PIPED_STATS_RETENTION)
    stale: list[str] = []
    for piped, stat in (await cache.fields(STATS_KEY)).items():
        try:
            reported_at = from_json(stat, PipedStat).timestamp
        except ValueError:
            reported_at = 0
        if reported_at < oldest:
            stale.append(piped)
    for piped in stale:
        await cache.delete_field(STATS_KEY, piped)
    return len(stale)


async def delete_old_outputs(files: Files, commands: Commands, *, now: Now = utc_now) -> int:
    """Deletes the outputs of commands that were handled two days ago or are unknown.

    Returns their number.
    """
    oldest = to_unix(now() - COMMAND_OUTPUT_RETENTION)
    paths = {PurePosixPath(path).stem: path for path in await files.list(COMMAND_OUTPUT_PREFIX)}
    stored = await commands.get_many(tuple(paths))
    old: list[str] = []
    for id, path in paths.items():
        command = stored.get(id)
        # The output is stored a moment before its command is marked as handled.
        if command is None or (command.handled_at or command.created_at) < oldest:
            old.append(path)
    for path in old:
        await files.delete(path)
    return len(old)


async def store_key_uses(cache: Cache, api_keys: ApiKeys) -> int:
    """Copies when API keys were last used from the cache to the datastore; returns their number."""
    cached = await cache.fields(LAST_USED_KEY)
    used = {id: int(at) for id, at in cached.items() if at.isdigit()}
    keys = await api_keys.get_many(tuple(used))
    newer = {
        id: used[id] for id, key in keys.items() if not key.disabled and key.last_used_at < used[id]
    }
    for id, at in newer.items():

        def set_last_used(key: APIKey, at: int = at) -> None:
            key.last_used_at = max(key.last_used_at, at)

        await api_keys.update(id, set_last_used, touch=False)
    return len(newer)


async def delete_expired_sign_ins(
    sessions: SessionRecords, endings: SessionEndings, codes: UsedCodes, *, now: Now = utc_now
) -> int:
    """Deletes expired sessions, their endings and authorization codes; returns their number."""
    moment = to_unix(now())
    return (
        await sessions.delete_expired(moment)
        + await endings.delete_expired(moment)
        + await codes.delete_expired(moment)
    )


async def delete_expired_keys(digests: VerifiedKeyDigests, *, now: Now = utc_now) -> int:
    """Deletes digests of keys that were not looked up for long; returns their number."""
    return await digests.delete_expired(to_unix(now()))
