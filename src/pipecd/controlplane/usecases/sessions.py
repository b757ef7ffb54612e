# SPDX-License-Identifier: Apache-2.0
"""Sign-in of the static admin, and the sessions of all users."""

import asyncio
import hmac
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import structlog

from pipecd.cache import LruCache
from pipecd.controlplane.auth.ended_sessions import EndingScope, EndingTarget
from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.sessions import (
    DEFAULT_TTL,
    MAX_TTL,
    SSO,
    SessionTokens,
    VerifiedSession,
)
from pipecd.controlplane.auth.subject import ApiKeyCaller, User, UserOrApiKey
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.auth.verified_keys import MAX_CONCURRENT_COMPARISONS
from pipecd.controlplane.cache import Cache
from pipecd.controlplane.datastore.sign_ins import SessionRecord, SessionRecords
from pipecd.controlplane.usecases.access import caller_id
from pipecd.controlplane.usecases.projects import ProjectUseCases
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.model.clock import Now, seconds_clock, to_unix, utc_now
from pipecd.model.errors import Denied, NotFound, PipecdError, Unauthenticated
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets import keys

log = structlog.get_logger()

ATTEMPTS_PER_MINUTE = 10
# Of each user the newest sessions are listed; all of them can be ended.
MAX_LISTED_OF_USER = 100
MAX_LISTED = 5_000
# For so many of the listed sessions, the last use is read.
MAX_LISTED_USES = 500
# The use of a session is recorded once in this time.
SEEN_INTERVAL = timedelta(minutes=1)
MAX_SEEN = 10_000
_HASH_PREFIX = "$2"
# The hash of a password that nobody has, compared for a project that does not exist.
_UNKNOWN_HASH = "$2a$10$19CqeRt0AvArzaokGcruD.F.U52FTRw5NjIcRjuvZS8pzgaAKfxFe"


class SignedIn(NamedTuple):
    """A user and their session token."""

    user: User
    token: str


class ActiveSession(NamedTuple):
    """A session that has neither expired nor ended; the times are unix seconds."""

    id: str
    user: str
    roles: tuple[str, ...]
    is_sso: bool
    signed_in_at: int
    expires_at: int
    # When it was last used, to the minute; 0 if the cache does not know.
    last_seen_at: int = 0


class SessionList(NamedTuple):
    """The newest sessions first; `has_more` if there are older ones beyond the maximum."""

    sessions: tuple[ActiveSession, ...]
    has_more: bool


class ActiveUser(NamedTuple):
    """A user with sessions; the roles are those of the last sign-in."""

    name: str
    roles: tuple[str, ...]
    is_sso: bool
    last_signed_in_at: int
    sessions: int
    last_seen_at: int = 0


def users_of(sessions: Iterable[ActiveSession]) -> tuple[ActiveUser, ...]:
    """The users of sessions that are sorted newest first, in the order of their last sign-in."""
    by_user: dict[str, list[ActiveSession]] = {}
    for session in sessions:
        by_user.setdefault(session.user, []).append(session)
    return tuple(
        ActiveUser(
            name,
            last.roles,
            last.is_sso,
            last.signed_in_at,
            sessions=1 + len(earlier),
            last_seen_at=max(each.last_seen_at for each in (last, *earlier)),
        )
        for name, (last, *earlier) in by_user.items()
    )


class Sessions:
    """Signs in a project's static admin; issues, checks, lists and ends sessions."""

    def __init__(
        self,
        projects: ProjectUseCases,
        records: SessionRecords,
        endings: SessionEndings,
        cache: Cache,
        encryption_key: bytes,
        now: Now = utc_now,
    ) -> None:
        self._projects, self._records, self._endings = projects, records, endings
        self._cache, self._now = cache, now
        # The sessions whose use was recorded a moment ago.
        self._seen = LruCache[str, bool](
            MAX_SEEN, ttl=SEEN_INTERVAL.total_seconds(), clock=seconds_clock(now)
        )
        self._tokens = SessionTokens(encryption_key, now)
        self._attempts = Throttle(ATTEMPTS_PER_MINUTE, now=now)
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_COMPARISONS)

    async def sign_in(
        self, project: str, username: str, password: str, source: str = ""
    ) -> SignedIn:
        """Signs in the static admin; Unauthenticated if the name or the password is wrong.

        Failed attempts are counted by user and `source`, so that nobody locks out the static admin.
        A project that does not exist is not distinguished from a wrong password.
        """
        attempt = f"{source}\0{project}\0{username}"
        self._attempts.attempt(attempt, "Too many attempts to login")
        try:
            stored = await self._projects.read(project)
        except NotFound:
            stored = Project()
        # Everything is always compared, so that the response time does not reveal what is wrong.
        admin = stored.static_admin
        is_hash = admin.password_hash.startswith(_HASH_PREFIX)
        hashed = admin.password_hash if is_hash else _UNKNOWN_HASH
        is_name = hmac.compare_digest(username.encode(), admin.username.encode())
        async with self._slots:
            is_password = await asyncio.to_thread(keys.key_matches, password, hashed)
        if not (is_hash and is_name and is_password):
            raise Unauthenticated("Unable to login")
        if stored.static_admin_disabled:
            raise Denied("Static admin is disabling")
        self._attempts.succeeded(attempt)
        user = User(project=project, name=username, roles=(ADMIN,))
        token = self._issue(user, DEFAULT_TTL, self._tokens.via_password(stored))
        await self._record(token)
        return SignedIn(user, token)

    async def begin(self, user: User, ttl: timedelta = DEFAULT_TTL) -> str:
        """Begins a session of a user whom a single sign-on provider has identified."""
        token = self.issue(user, ttl)
        await self._record(token)
        return token

    def issue(self, user: User, ttl: timedelta = DEFAULT_TTL) -> str:
        """The token of such a session, which is not listed, as one of upstream is not."""
        return self._issue(user, min(ttl, MAX_TTL), SSO)

    async def user(self, token: str, *, afresh: bool = False) -> User:
        """The user of a session; Unauthenticated if it has expired or ended.

        `afresh` reads the project and the endings from the datastore instead of the caches; use it
        right after a signal about them, as the cached copies may not have been invalidated yet.
        """
        verified = self._tokens.verify(token)
        if afresh:
            await self._endings.refresh()
        read = self._projects.read if afresh else self._projects.read_cached
        try:
            project = await read(verified.user.project)
        except NotFound as e:
            raise Unauthenticated("Unauthenticated") from e
        if await self._has_ended(verified, project):
            raise Unauthenticated("Unauthenticated")
        if not self._seen.get(verified.id):
            self._seen.put(verified.id, value=True)
            await self._record_use(verified)
        return verified.user

    async def _record_use(self, session: VerifiedSession) -> None:
        now = to_unix(self._now())
        ttl = max(session.expires_at - now, 1)
        try:
            await self._cache.put(_seen_key(session.id), str(now).encode(), ttl_seconds=ttl)
        except PipecdError as e:
            # Only the time of the last use is lost.
            log.warning("use of the session not recorded", project=session.user.project, error=e)

    async def _has_ended(self, session: VerifiedSession, project: Project) -> bool:
        return await self._endings.contain(session) or self._tokens.is_revoked(session, project)

    async def end(self, token: str) -> None:
        """Ends the session of a token, which its user signs out of; an invalid one is ignored."""
        try:
            verified = self._tokens.verify(token)
        except Unauthenticated:
            return
        await self._endings.end_session(verified)

    async def list(self, *, user: str = "", by: UserOrApiKey) -> SessionList:
        """The sessions of the caller's project, or of one user of it, for who may end them.

        Sessions that began at a control plane of upstream are not listed.
        """
        await self._require_management(by)
        now = to_unix(self._now())
        subject = _subject(user) if user else ""
        records = await self._records.list(
            by.project, subject=subject, now=now, limit=MAX_LISTED + 1
        )
        if not records:
            return SessionList((), has_more=False)
        await self._endings.refresh()
        project = await self._projects.read(by.project)
        active = [
            _active(record, now)
            for record in records[:MAX_LISTED]
            if not await self._has_ended(_verified(record), project)
        ]
        newest = [await self._with_last_use(each) for each in active[:MAX_LISTED_USES]]
        sessions = (*newest, *active[MAX_LISTED_USES:])
        return SessionList(sessions, has_more=len(records) > MAX_LISTED)

    async def _require_management(self, by: UserOrApiKey) -> None:
        """Denied unless the caller may see and end the sessions of others."""
        if not isinstance(by, ApiKeyCaller):
            await self._projects.require_update(by)
        elif not by.may_manage_sessions:
            raise Denied(
                f"the API key {by.name} may neither list nor end sessions",
                hint="use a key of the role MANAGE_SESSIONS",
            )

    async def _with_last_use(self, session: ActiveSession) -> ActiveSession:
        try:
            used = await self._cache.get(_seen_key(session.id)) or b""
        except PipecdError:
            return session
        return session._replace(last_seen_at=int(used) if used.isdigit() else 0)

    async def end_one(self, id: str, *, by: UserOrApiKey) -> None:
        """Ends a session of the caller's project; NotFound if none with this id is stored."""
        await self._require_management(by)
        record = await self._records.find(by.project, id)
        if record is None:
            raise NotFound("Session is not found")
        await self._endings.end_session(_verified(record))
        log.info("session ended", project=by.project, user=record.user, by=caller_id(by))

    async def end_of_user(self, name: str, *, by: UserOrApiKey) -> None:
        """Ends all sessions of a user of the caller's project; they may sign in again."""
        await self._require_management(by)
        await self._endings.end(by.project, EndingTarget(EndingScope.USER, name))
        log.info("sessions of a user ended", project=by.project, user=name, by=caller_id(by))

    async def end_all(self, *, by: UserOrApiKey) -> None:
        """Ends all sessions of the caller's project, the caller's own too."""
        await self._require_management(by)
        await self._endings.end(by.project, EndingTarget(EndingScope.ALL))
        log.info("all sessions ended", project=by.project, by=caller_id(by))

    def _issue(self, user: User, ttl: timedelta, via: str) -> str:
        return self._tokens.sign(user, ttl, via=via, issued_millis=self._endings.issue_millis())

    async def _record(self, token: str) -> None:
        session = self._tokens.verify(token)
        record = SessionRecord(
            session.user.project,
            session.id,
            _subject(session.user.name),
            session.user.name,
            session.user.roles,
            session.via,
            session.issued_millis,
            session.expires_at,
        )
        await self._records.add(record, max_of_user=MAX_LISTED_OF_USER)


def _seen_key(session_id: str) -> str:
    return f"SESSION_SEEN:{session_id}"


def _subject(user: str) -> str:
    return EndingTarget(EndingScope.USER, user).stored_subject


def _verified(record: SessionRecord) -> VerifiedSession:
    user = User(record.project, record.user, record.roles)
    return VerifiedSession(user, record.via, record.id, record.issued_millis, record.expires_at)


def _active(record: SessionRecord, now: int) -> ActiveSession:
    return ActiveSession(
        id=record.id,
        user=record.user,
        roles=record.roles,
        is_sso=record.via == SSO,
        # A session after an ending is issued up to a minute ahead of the clock.
        signed_in_at=min(record.issued_millis // 1000, now),
        expires_at=record.expires_at,
    )
