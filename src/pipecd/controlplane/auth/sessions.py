# SPDX-License-Identifier: Apache-2.0
"""Sessions of people: the signed token of the console's cookie."""

from dataclasses import dataclass
from datetime import timedelta

from pipecd.controlplane.auth.subject import Person
from pipecd.model.moment import Now, to_unix, utc_now
from pipecd.secrets import session
from pipecd.secrets.session import Session

DEFAULT_TTL = timedelta(days=7)


@dataclass(frozen=True)
class Sessions:
    """Signs and reads session tokens with the key of the control plane."""

    key: bytes
    now: Now = utc_now

    def sign(self, person: Person, ttl: timedelta = DEFAULT_TTL) -> str:
        now = self.now()
        return session.sign(
            Session(
                subject=person.name,
                project=person.project,
                roles=person.roles,
                avatar_url=person.avatar_url,
                issued_at=to_unix(now),
                expires_at=to_unix(now + ttl),
            ),
            self.key,
        )

    def read(self, token: str) -> Person:
        """The person of a good token, or Unauthenticated."""
        found = session.verify(token, self.key, self.now())
        return Person(
            project=found.project,
            name=found.subject,
            roles=found.roles,
            avatar_url=found.avatar_url,
        )
