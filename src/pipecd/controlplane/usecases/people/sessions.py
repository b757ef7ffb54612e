# SPDX-License-Identifier: Apache-2.0
"""Signing in and being signed in."""

import asyncio
import hmac
from datetime import timedelta
from typing import NamedTuple

from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.sessions import DEFAULT_TTL
from pipecd.controlplane.auth.sessions import Sessions as Tokens
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.usecases.access import found
from pipecd.controlplane.usecases.people.projects import Projects
from pipecd.model.errors import Denied, Unauthenticated
from pipecd.model.moment import Now, utc_now
from pipecd.secrets import keys

ATTEMPTS_PER_MINUTE = 10
COMPARISONS_AT_ONCE = 2


class SignedIn(NamedTuple):
    """Who signed in, and the token that says so from now on."""

    person: Person
    token: str


class Sessions:
    """The sign-in of a project's static administrator, and the tokens of everybody."""

    def __init__(self, projects: Projects, encryption_key: bytes, now: Now = utc_now) -> None:
        self._projects = projects
        self._tokens = Tokens(encryption_key, now)
        self._attempts = Throttle(ATTEMPTS_PER_MINUTE, now=now)
        self._slots = asyncio.Semaphore(COMPARISONS_AT_ONCE)

    async def sign_in(self, project: str, username: str, password: str) -> SignedIn:
        """The administrator of the project, if name and password are right."""
        known = await found(self._projects.known(project), f"Unable to find project: {project}")
        if known.static_admin_disabled:
            raise Denied("Static admin is disabling")
        attempt = f"{project}\0{username}"
        self._attempts.attempt(attempt, "Too many attempts to login")
        # Both are always compared, so that the time taken does not tell which one is wrong.
        is_name = hmac.compare_digest(username.encode(), known.static_admin.username.encode())
        async with self._slots:
            is_password = await asyncio.to_thread(
                keys.key_matches, password, known.static_admin.password_hash
            )
        if not (is_name and is_password):
            raise Unauthenticated("Unable to login")
        self._attempts.succeeded(attempt)
        person = Person(project=project, name=username, roles=(ADMIN,))
        return SignedIn(person, self.issue(person))

    def issue(self, person: Person, ttl: timedelta = DEFAULT_TTL) -> str:
        """A session token for somebody whom another sign-in has checked."""
        return self._tokens.sign(person, ttl)

    def read(self, token: str) -> Person:
        """The person of a session token, or Unauthenticated."""
        return self._tokens.read(token)
