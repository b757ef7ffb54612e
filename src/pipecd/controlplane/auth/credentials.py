# SPDX-License-Identifier: Apache-2.0
"""Whether a piped key or an API key is good.

A verdict is kept for a few seconds. It is dropped at once when the piped or key changes: by the use
case that changes it in this process, and by a signal everywhere else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from weakref import WeakValueDictionary

import structlog

from pipecd.controlplane.auth.proofs import Proofs
from pipecd.controlplane.auth.remembered import Remembered
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound, PipecdError, Unauthenticated
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.secrets import keys
from pipecd.wire.credentials import PipedToken

log = structlog.get_logger()

VERDICT_TTL = timedelta(seconds=10)
WRONG_KEYS_PER_MINUTE = 10
LAST_USED_KEY = "HASHKEY:PIPED:API_KEYS"


@dataclass(frozen=True)
class ProvenPiped(PipedCaller):
    """A piped together with the stored hash its key matched, so that a stream can ask again."""

    key_hash: str = field(default="", repr=False)


@dataclass(frozen=True)
class _Verdict:
    """Whose key it was, and the caller when the key was right."""

    id: str
    caller: ProvenPiped | ApiKeyCaller | None


class Credentials:
    """Checks the keys of pipeds and programs."""

    def __init__(
        self,
        stores: Stores,
        secret: bytes,
        *,
        config_projects: frozenset[str] = frozenset(),
        now: Now = utc_now,
    ) -> None:
        self._stores, self._config_projects, self._now = stores, config_projects, now
        self._proofs = Proofs(stores.cache, secret, keys.key_matches)
        self._verdicts: Remembered[_Verdict] = Remembered(VERDICT_TTL, now=now)
        self._wrong = Throttle(WRONG_KEYS_PER_MINUTE, now=now)
        self._flights: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._used_at: dict[str, int] = {}
        self._changes = 0

    async def piped(self, token: PipedToken) -> ProvenPiped:
        """The piped that presents this token, or Unauthenticated."""
        name = self._proofs.digest("piped", token.project, token.piped, token.key)
        verdict = await self._verdict(name, lambda: self._judge_piped(token))
        if not isinstance(verdict.caller, ProvenPiped):
            raise _refused()
        return verdict.caller

    async def api_key(self, key: str) -> ApiKeyCaller:
        """The program that presents this key, or Unauthenticated."""
        name = self._proofs.digest("api key", key)
        verdict = await self._verdict(name, lambda: self._judge_api_key(key))
        if not isinstance(verdict.caller, ApiKeyCaller):
            raise _refused()
        await self._record_use(verdict.id)
        return verdict.caller

    async def is_still_good(self, caller: PipedCaller) -> bool:
        """Whether a piped that proved its key earlier would be let in again."""
        try:
            piped = await self._stores.pipeds.get(caller.piped)
        except NotFound:
            return False
        return _may_enter(piped, caller.project) and (
            not isinstance(caller, ProvenPiped)
            or caller.key_hash in {key.hash for key in piped.keys}
        )

    def forget(self, id: str) -> None:
        """Drops what is known about the keys of a piped or about an API key."""
        self._changes += 1
        self._verdicts.forget(lambda verdict: verdict.id == id)

    def forget_everything(self) -> None:
        """Drops every verdict; the next calls read the store again."""
        self._changes += 1
        self._verdicts.clear()

    async def _verdict(self, name: str, judge: Callable[[], Awaitable[_Verdict]]) -> _Verdict:
        if (kept := self._verdicts.get(name)) is not None:
            return kept
        # One key is compared once, however many calls arrive with it at the same time.
        async with self._flights.setdefault(name, asyncio.Lock()):
            if (kept := self._verdicts.get(name)) is not None:
                return kept
            changes = self._changes
            verdict = await judge()
            # What was read before a change must not outlive it.
            if changes == self._changes:
                self._verdicts.put(name, verdict)
            return verdict

    async def _judge_piped(self, token: PipedToken) -> _Verdict:
        try:
            if token.project not in self._config_projects:
                await self._stores.projects.get(token.project)
            piped = await self._stores.pipeds.get(token.piped)
        except NotFound as e:
            raise _refused() from e
        if not _may_enter(piped, token.project):
            raise _refused()
        matched = await self._matching(token.piped, token.key, (key.hash for key in piped.keys))
        if matched is None:
            return _Verdict(token.piped, None)
        return _Verdict(token.piped, ProvenPiped(token.project, token.piped, matched))

    async def _judge_api_key(self, key: str) -> _Verdict:
        try:
            record = await self._stores.api_keys.get(keys.api_key_id(key))
        except NotFound as e:
            raise _refused() from e
        if record.disabled:
            raise _refused()
        if await self._matching(record.id, key, (record.key_hash,)) is None:
            return _Verdict(record.id, None)
        caller = ApiKeyCaller(
            project=record.project_id,
            key_id=record.id,
            name=record.name,
            may_write=record.role == APIKey.READ_WRITE,
        )
        return _Verdict(record.id, caller)

    async def _matching(self, id: str, key: str, hashes: Iterable[str]) -> str | None:
        candidates = tuple(hashes)
        for hashed in candidates:
            if await self._proofs.is_known(key, hashed):
                return hashed
        self._wrong.attempt(id, "Too many wrong keys were presented")
        for hashed in candidates:
            if await self._proofs.matches(key, hashed):
                self._wrong.succeeded(id)
                return hashed
        log.warning("wrong key presented", id=id)
        return None

    async def _record_use(self, id: str) -> None:
        now = to_unix(self._now())
        if self._used_at.get(id) == now:
            return
        self._used_at[id] = now
        try:
            await self._stores.cache.put_field(LAST_USED_KEY, id, str(now).encode())
        except PipecdError as e:
            # A cache that is away must not lock everybody out; only the time of use is lost.
            log.warning("last use of an api key not recorded", key=id, error=str(e))


def _may_enter(piped: Piped, project: str) -> bool:
    return piped.project_id == project and not piped.disabled


def _refused() -> Unauthenticated:
    return Unauthenticated("Unauthenticated")
