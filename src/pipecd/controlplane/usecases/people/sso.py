# SPDX-License-Identifier: Apache-2.0
"""Signing in through another site: the way there and the way back.

The texts of refusals are those that clients of upstream show.
"""

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from pipecd.config.controlplane.signin import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.sso import Identity, Provider, Trip, fault_of, provider_of
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.usecases.access import found
from pipecd.controlplane.usecases.people.projects import Projects
from pipecd.controlplane.usecases.people.sessions import Sessions
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import (
    Conflict,
    Denied,
    PipecdError,
    Unauthenticated,
    Unavailable,
    UserMistake,
)
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.secrets.keyfile import KeyFile
from pipecd.secrets.state import check_state, new_state

log = structlog.get_logger()

_WITHIN_SECONDS = 10.0
CALLBACK = "/auth/callback"
# What a provider may say instead of sending a code; anything else could be anybody's words.
_REFUSALS = frozenset({"access_denied", "consent_required", "interaction_required", "server_error"})


@dataclass(frozen=True)
class SsoSettings:
    """What the control plane is told about signing in through other sites."""

    address: str
    state_key: str = field(repr=False)
    # What the secrets of projects are encrypted with; those of shared sign-ins are readable.
    encryption_key: bytes = field(repr=False)
    shared: Mapping[str, ProjectSSOConfig] = field(
        default_factory=dict[str, ProjectSSOConfig], repr=False
    )


NO_SSO = SsoSettings("", "", b"")


@dataclass(frozen=True)
class Departure:
    """Where a browser is sent, and what it has to bring back in a cookie."""

    url: str
    state: str


@dataclass(frozen=True)
class Arrival:
    """What a browser brings from the provider; `cookie` is the state it left with."""

    state: str
    project: str = ""
    code: str = ""
    error: str = ""
    cookie: str = ""


@dataclass(frozen=True)
class Welcome:
    """Who signed in, the token that says so, and for how long."""

    person: Person
    token: str = field(repr=False)
    ttl: timedelta


@dataclass(frozen=True)
class Offer:
    """How people of a project may sign in; `provider` is empty when no other site is set up."""

    provider: str
    by_password: bool


class SingleSignOn:
    """Sign-in with GitHub or OpenID Connect, set up by a project or shared by several."""

    def __init__(
        self,
        projects: Projects,
        sessions: Sessions,
        settings: SsoSettings,
        now: Now = utc_now,
    ) -> None:
        self._projects, self._sessions = projects, sessions
        self._settings, self._now = settings, now

    async def offer(self, project: str) -> Offer:
        """What the sign-in page of a project shows; NotFound when there is no such project."""
        known = await found(self._projects.known(project), f"Unable to find project {project}")
        try:
            label = self._provider(known)[0].label
        except PipecdError:
            # The page stays useful for the administrator, who has to mend it.
            label = ""
        return Offer(label, not known.static_admin_disabled)

    async def begin(self, project: str) -> Departure:
        """Sends somebody to the provider of the project."""
        known = await found(self._projects.known(project), f"Unable to find project {project}")
        provider, config = self._provider(known)
        if not (self._settings.address or config.oidc.redirect_uri):
            raise _invalid("the control plane does not know its address, set spec.address")
        try:
            state = new_state(self._settings.state_key, self._now())
        except UserMistake as e:
            raise UserMistake(f"Invalid SSO configuration: {e.message}", hint=e.hint) from e
        try:
            async with asyncio.timeout(_WITHIN_SECONDS):
                url = await provider.way_out(self._trip(known, state))
        except TimeoutError as e:
            raise Unavailable("Internal error: the provider did not answer in time") from e
        except PipecdError as e:
            log.warning("sign-in could not begin", project=project, error=str(e))
            raise type(e)(f"Internal error: {e.message}") from e
        return Departure(url, state)

    async def finish(self, arrival: Arrival) -> Welcome:
        """Lets somebody in who comes back from the provider."""
        state, _, suffix = arrival.state.partition(":")
        project = arrival.project or suffix
        if not (state and project):
            raise Unauthenticated("Failed to parse state")
        check_state(state, self._settings.state_key, cookie=arrival.cookie, now=self._now())
        if not arrival.code:
            told = f": {arrival.error}" if arrival.error in _REFUSALS else ""
            raise Unauthenticated(f"Missing auth code{told}")
        known = await found(self._projects.known(project), f"Unable to find project {project}")
        provider, config = self._provider(known)
        _check_groups(known, config)
        identity = await self._identified(provider, arrival.code, self._trip(known, state))
        person = Person(project, identity.name, identity.roles, identity.avatar_url)
        ttl = timedelta(hours=config.session_ttl or DEFAULT_SESSION_HOURS)
        return Welcome(person, self._sessions.issue(person, ttl), ttl)

    async def _identified(self, provider: Provider, code: str, trip: Trip) -> Identity:
        try:
            async with asyncio.timeout(_WITHIN_SECONDS):
                return await provider.identify(code, trip)
        except TimeoutError as e:
            raise Unavailable("Unable to find user: the provider did not answer in time") from e
        except PipecdError as e:
            log.warning("sign-in refused", project=trip.project.id, error=str(e))
            raise type(e)(f"Unable to find user: {e.message}") from e

    def _provider(self, project: Project) -> tuple[Provider, ProjectSSOConfig]:
        if project.shared_sso_name:
            config = self._settings.shared.get(project.shared_sso_name)
            if config is None:
                name = project.shared_sso_name
                raise _invalid(f"not found shared sso configuration {name}")
        elif project.HasField("sso"):
            if (fault := fault_of(project.sso)) is not None:
                raise _invalid(fault)
            config = _opened(project.sso, self._settings.encryption_key)
        else:
            raise _invalid("missing SSO configuration in project data")
        try:
            return provider_of(config, self._now), config
        except UserMistake as e:
            raise _invalid(e.message) from e

    def _trip(self, project: Project, state: str) -> Trip:
        # The nonce needs no place of its own: it follows from the state that the browser keeps.
        secret = self._settings.state_key.encode()
        nonce = hmac.digest(secret, f"nonce of {state}".encode(), "sha256").hex()
        return Trip(project, state, nonce, self._settings.address.rstrip("/") + CALLBACK)


def _opened(sealed: ProjectSSOConfig, encryption_key: bytes) -> ProjectSSOConfig:
    """The sign-in of a project with readable secrets."""
    opened = ProjectSSOConfig()
    opened.CopyFrom(sealed)
    if sealed.HasField("github"):
        try:
            key_file = KeyFile(encryption_key)
            opened.github.client_id = key_file.decrypt(sealed.github.client_id)
            opened.github.client_secret = key_file.decrypt(sealed.github.client_secret)
        except UserMistake as e:
            raise Conflict("Failed to decrypt SSO configuration", hint=e.hint) from e
    return opened


def _check_groups(project: Project, config: ProjectSSOConfig) -> None:
    """GitHub gives roles by groups alone, so without any nobody could come in."""
    by_teams = config.provider == ProjectSSOConfig.Provider.GITHUB
    if by_teams and not project.allow_stray_as_viewer and not rbac.user_groups_of(project):
        raise Denied("Missing User Group configuration")


def _invalid(why: str) -> Conflict:
    return Conflict(f"Invalid SSO configuration: {why}")
