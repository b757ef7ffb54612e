# SPDX-License-Identifier: Apache-2.0
"""Session tokens of the console's cookie: signing, verifying, and what a password change ends."""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import timedelta
from secrets import token_urlsafe

from pipecd.config.controlplane import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.subject import User
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets import session
from pipecd.secrets.session import Session, session_id

DEFAULT_TTL = timedelta(hours=DEFAULT_SESSION_HOURS)
# No session is accepted for longer, so an ending need not be stored for longer.
MAX_TTL = timedelta(days=366)
# The sign-in method of users who came through a single sign-on provider.
SSO = "sso"


@dataclass(frozen=True)
class VerifiedSession:
    """The content of a valid token: the user, the sign-in method, and the session itself.

    `issued_millis` are milliseconds, `expires_at` are seconds.
    """

    user: User
    via: str
    id: str
    issued_millis: int
    expires_at: int


@dataclass(frozen=True)
class SessionTokens:
    """Signs and verifies session tokens with the encryption key of the control plane."""

    key: bytes = field(repr=False)
    now: Now = utc_now

    def sign(
        self, user: User, ttl: timedelta = DEFAULT_TTL, *, via: str = "", issued_millis: int = 0
    ) -> str:
        now = self.now()
        return session.sign(
            Session(
                subject=user.name,
                project=user.project,
                roles=user.roles,
                avatar_url=user.avatar_url,
                issued_at=to_unix(now),
                expires_at=to_unix(now + ttl),
                via=via,
                unique=token_urlsafe(9),
                issued_millis=issued_millis,
            ),
            self.key,
        )

    def verify(self, token: str) -> VerifiedSession:
        """The content of a token; Unauthenticated if it is not valid."""
        claims = session.verify(token, self.key, self.now())
        if to_unix(self.now() - MAX_TTL) >= claims.issued_at:
            raise Unauthenticated("Unauthenticated")
        user = User(
            project=claims.project,
            name=claims.subject,
            roles=claims.roles,
            avatar_url=claims.avatar_url,
        )
        return VerifiedSession(
            user,
            claims.via,
            id=session_id(token),
            # Upstream has seconds only.
            issued_millis=claims.issued_millis or claims.issued_at * 1000,
            expires_at=min(claims.expires_at, claims.issued_at + int(MAX_TTL.total_seconds())),
        )

    def via_password(self, project: Project) -> str:
        """The sign-in method of the static admin; a new password makes another one."""
        admin = project.static_admin
        credentials = f"{admin.username}\0{admin.password_hash}".encode()
        return f"password {hmac.new(self.key, credentials, hashlib.sha256).hexdigest()[:16]}"

    def is_revoked(self, verified: VerifiedSession, project: Project) -> bool:
        """Whether a change of the project ended this session before it expires."""
        if verified.via == SSO:
            return False
        if verified.via:
            return project.static_admin_disabled or verified.via != self.via_password(project)
        # Tokens of upstream have no sign-in method; only the static admin has this name and role.
        as_admin = (project.static_admin.username, (ADMIN,))
        return (
            project.static_admin_disabled and (verified.user.name, verified.user.roles) == as_admin
        )
