# SPDX-License-Identifier: Apache-2.0
"""Signing in and being signed in."""

import asyncio
import hmac
from datetime import timedelta
from typing import NamedTuple

from pipecd.controlplane.auth.proofs import COMPARISONS_AT_ONCE
from pipecd.controlplane.auth.rbac import ADMIN
from pipecd.controlplane.auth.sessions import DEFAULT_TTL, SSO
from pipecd.controlplane.auth.sessions import Sessions as Tokens
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.usecases.access import found
from pipecd.controlplane.usecases.people.projects import Projects
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import Denied, NotFound, Unauthenticated
from pipecd.secrets import keys

ATTEMPTS_PER_MINUTE = 10


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
        return SignedIn(person, self._tokens.sign(person, via=self._tokens.via_password(known)))

    def issue(self, person: Person, ttl: timedelta = DEFAULT_TTL) -> str:
        """A session token for somebody whom another sign-in has checked."""
        return self._tokens.sign(person, ttl, via=SSO)

    async def person(self, token: str, *, afresh: bool = False) -> Person:
        """The person of a session that goes on, or Unauthenticated.

        Whoever has just heard that something changed asks `afresh`, as what is remembered of the
        project may not have been dropped yet.
        """
        kept = self._tokens.read(token)
        read = self._projects.known if afresh else self._projects.remembered
        try:
            project = await read(kept.person.project)
        except NotFound as e:
            raise Unauthenticated("Unauthenticated") from e
        if self._tokens.is_over(kept, project):
            raise Unauthenticated("Unauthenticated")
        return kept.person
