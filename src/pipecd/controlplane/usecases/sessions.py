# SPDX-License-Identifier: Apache-2.0
"""Sign-in of the static admin, and the sessions of all users."""

import asyncio
import hmac
from datetime import timedelta
from typing import NamedTuple

from pipecd.controlplane.auth.ended_sessions import EndingScope, EndingTarget
from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.sessions import DEFAULT_TTL, MAX_TTL, SSO, SessionTokens
from pipecd.controlplane.auth.subject import User, UserOrApiKey
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.auth.verified_keys import MAX_CONCURRENT_COMPARISONS
from pipecd.controlplane.usecases.projects import ProjectUseCases
from pipecd.controlplane.usecases.session_endings import SessionEndings
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import Denied, NotFound, Unauthenticated
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets import keys

ATTEMPTS_PER_MINUTE = 10
_HASH_PREFIX = "$2"
# The hash of a password that nobody has, compared for a project that does not exist.
_UNKNOWN_HASH = "$2a$10$19CqeRt0AvArzaokGcruD.F.U52FTRw5NjIcRjuvZS8pzgaAKfxFe"


class SignedIn(NamedTuple):
    """A user and their session token."""

    user: User
    token: str


class Sessions:
    """Signs in a project's static admin; issues, checks and ends sessions."""

    def __init__(
        self,
        projects: ProjectUseCases,
        endings: SessionEndings,
        encryption_key: bytes,
        now: Now = utc_now,
    ) -> None:
        self._projects, self._endings = projects, endings
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
        return SignedIn(user, self._issue(user, DEFAULT_TTL, self._tokens.via_password(stored)))

    def issue(self, user: User, ttl: timedelta = DEFAULT_TTL) -> str:
        """A session token for a user whom a single sign-on provider has identified."""
        return self._issue(user, min(ttl, MAX_TTL), SSO)

    async def user(self, token: str, *, afresh: bool = False) -> User:
        """The user of a session; Unauthenticated if it has expired or ended.

        `afresh` reads the project and the endings from the datastore instead of the caches; use it
        right after a signal about them, as the cached copies may not have been invalidated yet.
        """
        verified = self._tokens.verify(token)
        if afresh:
            await self._endings.refresh()
        if await self._endings.contain(verified):
            raise Unauthenticated("Unauthenticated")
        read = self._projects.read if afresh else self._projects.read_cached
        try:
            project = await read(verified.user.project)
        except NotFound as e:
            raise Unauthenticated("Unauthenticated") from e
        if self._tokens.is_revoked(verified, project):
            raise Unauthenticated("Unauthenticated")
        return verified.user

    async def end(self, token: str) -> None:
        """Ends the session of a token, which its user signs out of; an invalid one is ignored."""
        try:
            verified = self._tokens.verify(token)
        except Unauthenticated:
            return
        await self._endings.end_session(verified)

    async def end_of_user(self, name: str, *, by: UserOrApiKey) -> None:
        """Ends all sessions of a user of the caller's project; they may sign in again."""
        await self._projects.require_update(by)
        await self._endings.end(by.project, EndingTarget(EndingScope.USER, name))

    async def end_all(self, *, by: UserOrApiKey) -> None:
        """Ends all sessions of the caller's project, the caller's own too."""
        await self._projects.require_update(by)
        await self._endings.end(by.project, EndingTarget(EndingScope.ALL))

    def _issue(self, user: User, ttl: timedelta, via: str) -> str:
        return self._tokens.sign(user, ttl, via=via, issued_millis=self._endings.issue_millis())
