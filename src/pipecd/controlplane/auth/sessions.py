# SPDX-License-Identifier: Apache-2.0
"""Sessions of people: the signed token of the console's cookie, and what ends one early."""

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import timedelta

from pipecd.config.controlplane.signin import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.subject import Person
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets import session
from pipecd.secrets.session import Session

DEFAULT_TTL = timedelta(hours=DEFAULT_SESSION_HOURS)
# How somebody signed in whom another site vouched for.
SSO = "sso"


@dataclass(frozen=True)
class Kept:
    """What a good token says: who it is, and how they signed in."""

    person: Person
    via: str


@dataclass(frozen=True)
class Sessions:
    """Signs and reads session tokens with the key of the control plane."""

    key: bytes = field(repr=False)
    now: Now = utc_now

    def sign(self, person: Person, ttl: timedelta = DEFAULT_TTL, *, via: str = "") -> str:
        now = self.now()
        return session.sign(
            Session(
                subject=person.name,
                project=person.project,
                roles=person.roles,
                avatar_url=person.avatar_url,
                issued_at=to_unix(now),
                expires_at=to_unix(now + ttl),
                via=via,
            ),
            self.key,
        )

    def read(self, token: str) -> Kept:
        """What a good token says, or Unauthenticated."""
        found = session.verify(token, self.key, self.now())
        person = Person(
            project=found.project,
            name=found.subject,
            roles=found.roles,
            avatar_url=found.avatar_url,
        )
        return Kept(person, found.via)

    def via_password(self, project: Project) -> str:
        """How the static administrator of a project signs in; another password is another way."""
        admin = project.static_admin
        secrets = f"{admin.username}\0{admin.password_hash}".encode()
        return f"password {hmac.new(self.key, secrets, hashlib.sha256).hexdigest()[:16]}"

    def is_over(self, kept: Kept, project: Project) -> bool:
        """Whether the project has ended this session before its time."""
        if kept.via == SSO:
            return False
        if kept.via:
            return project.static_admin_disabled or kept.via != self.via_password(project)
        # A token of upstream does not tell; only the administrator can look like this.
        as_admin = (project.static_admin.username, (ADMIN,))
        return project.static_admin_disabled and (kept.person.name, kept.person.roles) == as_admin
