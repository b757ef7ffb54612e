# SPDX-License-Identifier: Apache-2.0
"""Authentication of pipeds and API keys.

A result is cached for a few seconds. It is invalidated at once when the piped or key changes: by
the use case that changes it in this process, and by a signal on the bus in every other replica.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.auth.subject import ApiKeyCaller, PipedCaller
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.auth.verified_keys import VerifiedKeys
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.clock import Now, seconds_clock, to_unix, utc_now
from pipecd.model.errors import NotFound, PipecdError, Unauthenticated
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.secrets import keys
from pipecd.wire.credentials import PipedToken

log = structlog.get_logger()

RESULT_TTL_SECONDS = 10.0
MAX_RESULTS = 10_000
MAX_WRONG_KEYS_PER_MINUTE = 10
LAST_USED_KEY = "HASHKEY:PIPED:API_KEYS"

# Returns the client of a call; it is needed only for keys that are not known to be right.
Source = Callable[[], str]


def unknown_source() -> str:
    """The source of calls that come from no address."""
    return ""


@dataclass(frozen=True)
class AuthenticatedPiped(PipedCaller):
    """A piped and the stored hash its key matched, so that an open stream can be checked again."""

    key_hash: str = field(default="", repr=False)


@dataclass(frozen=True)
class _Result:
    """The id of the piped or API key, and the caller if the key was right."""

    id: str
    caller: AuthenticatedPiped | ApiKeyCaller | None


class Credentials:
    """Authenticates pipeds and API keys."""

    def __init__(
        self,
        stores: Stores,
        secret: bytes,
        *,
        config_projects: frozenset[str] = frozenset(),
        now: Now = utc_now,
    ) -> None:
        self._stores, self._config_projects, self._now = stores, config_projects, now
        self._verified = VerifiedKeys(stores.verified_keys, secret, keys.key_matches, now=now)
        self._results = LruCache[str, _Result](
            MAX_RESULTS, ttl=RESULT_TTL_SECONDS, clock=seconds_clock(now)
        )
        self._wrong_keys = Throttle(MAX_WRONG_KEYS_PER_MINUTE, now=now)
        self._last_used: dict[str, int] = {}

    async def piped(self, token: PipedToken, source: Source = unknown_source) -> AuthenticatedPiped:
        """The piped with this token; Unauthenticated if it is wrong or the piped is disabled.

        Wrong keys are counted by id and `source`, so that nobody locks out another client.
        """
        name = self._verified.digest("piped", token.project, token.piped, token.key)
        result = await self._results.get_or_load(name, lambda: self._check_piped(token, source))
        if not isinstance(result.caller, AuthenticatedPiped):
            raise _unauthenticated()
        return result.caller

    async def api_key(self, key: str, source: Source = unknown_source) -> ApiKeyCaller:
        """The caller with this API key; Unauthenticated if the key is wrong or disabled."""
        name = self._verified.digest("api key", key)
        result = await self._results.get_or_load(name, lambda: self._check_api_key(key, source))
        if not isinstance(result.caller, ApiKeyCaller):
            raise _unauthenticated()
        now = to_unix(self._now())
        if self._last_used.get(result.id) != now:
            self._last_used[result.id] = now
            try:
                await self._stores.cache.put_field(LAST_USED_KEY, result.id, str(now).encode())
            except PipecdError as e:
                # Only the time of the last use is lost.
                log.warning("last use of the API key not recorded", key=result.id, error=str(e))
        return result.caller

    async def is_still_valid(self, caller: PipedCaller) -> bool:
        """Whether a piped that authenticated earlier is still enabled and still has this key."""
        try:
            piped = await self._stores.pipeds.get(caller.piped)
        except NotFound:
            return False
        return _is_usable(piped, caller.project) and (
            not isinstance(caller, AuthenticatedPiped)
            or caller.key_hash in {key.hash for key in piped.keys}
        )

    def invalidate(self, id: str) -> None:
        """Drops the cached results of a piped or API key."""
        self._results.invalidate(lambda result: result.id == id)

    def invalidate_all(self) -> None:
        """Drops every cached result; the next calls read the datastore again."""
        self._results.clear()

    async def _check_piped(self, token: PipedToken, source: Source) -> _Result:
        try:
            if token.project not in self._config_projects:
                await self._stores.projects.get(token.project)
            piped = await self._stores.pipeds.get(token.piped)
        except NotFound as e:
            raise _unauthenticated() from e
        if not _is_usable(piped, token.project):
            raise _unauthenticated()
        hashes = tuple(key.hash for key in piped.keys)
        matched = await self._matching_hash(token.piped, token.key, hashes, source)
        if matched is None:
            return _Result(token.piped, None)
        return _Result(
            token.piped, AuthenticatedPiped(token.project, token.piped, key_hash=matched)
        )

    async def _check_api_key(self, key: str, source: Source) -> _Result:
        try:
            record = await self._stores.api_keys.get(keys.api_key_id(key))
        except NotFound as e:
            raise _unauthenticated() from e
        if record.disabled:
            raise _unauthenticated()
        if await self._matching_hash(record.id, key, (record.key_hash,), source) is None:
            return _Result(record.id, None)
        may_write = record.role == APIKey.READ_WRITE
        caller = ApiKeyCaller(
            project=record.project_id,
            key_id=record.id,
            name=record.name,
            may_write=may_write,
            creator=record.creator,
            may_approve=may_write and await self._stores.key_approvals.is_granted(record.id),
            may_manage_sessions=not may_write
            and await self._stores.session_keys.is_granted(record.id),
        )
        return _Result(record.id, caller)

    async def _matching_hash(
        self, id: str, key: str, hashes: tuple[str, ...], source: Source
    ) -> str | None:
        for hashed in hashes:
            if await self._verified.is_verified(key, hashed):
                return hashed
        client = source()
        attempt = f"{client} {id}"
        self._wrong_keys.attempt(attempt, "Too many wrong keys were presented")
        for hashed in hashes:
            if await self._verified.verify(key, hashed):
                self._wrong_keys.succeeded(attempt)
                return hashed
        log.warning("wrong key presented", id=id, source=client)
        return None


def _is_usable(piped: Piped, project: str) -> bool:
    return piped.project_id == project and not piped.disabled


def _unauthenticated() -> Unauthenticated:
    return Unauthenticated("Unauthenticated")
