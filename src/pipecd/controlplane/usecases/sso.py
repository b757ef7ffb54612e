# SPDX-License-Identifier: Apache-2.0
"""Single sign-on: the redirect to the provider and the callback.

The error texts are those that clients of upstream show.
"""

import asyncio
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from pipecd.config.controlplane import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.sso import (
    AuthRequest,
    OidcMetadataCache,
    SsoProvider,
    config_error,
    create_provider,
)
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases.access import or_not_found
from pipecd.controlplane.usecases.projects import ProjectUseCases
from pipecd.controlplane.usecases.sessions import Sessions
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import (
    Conflict,
    Denied,
    NotFound,
    PipecdError,
    Unauthenticated,
    Unavailable,
    UserMistake,
)
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.secrets.keyfile import KeyFile
from pipecd.secrets.state import check_state, new_state
from pipecd.wire.outbound import ANY_DESTINATION, PUBLIC_DESTINATIONS, OutboundPolicy

log = structlog.get_logger()

_TIMEOUT_SECONDS = 10.0
CALLBACK = "/auth/callback"
# The error codes of a callback that are shown; anyone can put other text into its URL.
_SHOWN_ERRORS = frozenset(
    {"access_denied", "consent_required", "interaction_required", "server_error"}
)


@dataclass(frozen=True)
class SsoSettings:
    """The control plane's part of single sign-on."""

    address: str
    state_key: str = field(repr=False)
    # Encrypts the client secrets of projects; those of `shared` are not encrypted.
    encryption_key: bytes = field(repr=False)
    shared: Mapping[str, ProjectSSOConfig] = field(
        default_factory=dict[str, ProjectSSOConfig], repr=False
    )
    # Where the providers of projects may be; those of `shared` may be anywhere.
    outbound: OutboundPolicy = PUBLIC_DESTINATIONS


# Also the error of a project that does not exist.
_NO_CONFIGURATION = "missing SSO configuration in project data"
NO_SSO = SsoSettings("", "", b"")


@dataclass(frozen=True)
class AuthRedirect:
    """The URL the browser is redirected to, and the state its cookie must bring back."""

    url: str
    state: str


@dataclass(frozen=True)
class AuthCallback:
    """The parameters of a callback; `cookie` is the state this browser was given."""

    state: str
    project: str = ""
    code: str = ""
    error: str = ""
    cookie: str = ""


@dataclass(frozen=True)
class SignInResult:
    """The user, their session token and its lifetime."""

    user: User
    token: str = field(repr=False)
    ttl: timedelta


@dataclass(frozen=True)
class SignInOptions:
    """How users may sign in to a project; `provider` is empty without single sign-on."""

    provider: str
    by_password: bool


class SingleSignOn:
    """Sign-in with GitHub or OpenID Connect, configured by a project or shared by several."""

    def __init__(
        self,
        projects: ProjectUseCases,
        sessions: Sessions,
        settings: SsoSettings,
        now: Now = utc_now,
    ) -> None:
        self._projects, self._sessions = projects, sessions
        self._settings, self._now = settings, now
        self._metadata, self._shared_metadata = OidcMetadataCache(now), OidcMetadataCache(now)

    async def options(self, project: str) -> SignInOptions:
        """How users may sign in to the project; an unknown one seems to have a password."""
        try:
            stored = await self._projects.read(project)
        except NotFound:
            return SignInOptions("", by_password=True)
        try:
            label = self._provider(stored)[0].label
        except PipecdError:
            # The static admin can still sign in and fix the configuration.
            label = ""
        # Without a provider the page is that of an unknown project.
        return SignInOptions(label, not (label and stored.static_admin_disabled))

    async def begin(self, project: str) -> AuthRedirect:
        """Starts a sign-in with the provider of the project."""
        try:
            stored = await self._projects.read(project)
        except NotFound as e:
            raise _invalid(_NO_CONFIGURATION) from e
        provider, config = self._provider(stored)
        if not (self._settings.address or config.oidc.redirect_uri):
            raise _invalid("spec.address of the control plane is not set")
        try:
            state = new_state(self._settings.state_key, self._now())
        except UserMistake as e:
            raise UserMistake(f"Invalid SSO configuration: {e.message}", hint=e.hint) from e
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                url = await provider.authorization_url(self._auth_request(stored, state))
        except TimeoutError as e:
            raise Unavailable("Internal error: the provider did not answer in time") from e
        except PipecdError as e:
            log.warning("sign-in could not be started", project=project, error=str(e))
            raise type(e)(f"Internal error: {e.message}") from e
        return AuthRedirect(url, state)

    async def finish(self, callback: AuthCallback) -> SignInResult:
        """Signs in the user whom the provider identifies."""
        state, _, suffix = callback.state.partition(":")
        project = callback.project or suffix
        if not (state and project):
            raise Unauthenticated("Failed to parse state")
        check_state(state, self._settings.state_key, cookie=callback.cookie, now=self._now())
        if not callback.code:
            reason = f": {callback.error}" if callback.error in _SHOWN_ERRORS else ""
            raise Unauthenticated(f"Missing auth code{reason}")
        stored = await or_not_found(
            self._projects.read(project), f"Unable to find project {project}"
        )
        provider, config = self._provider(stored)
        # With GitHub, roles come only from user groups.
        by_teams = config.provider == ProjectSSOConfig.Provider.GITHUB
        if by_teams and not stored.allow_stray_as_viewer and not rbac.user_groups_of(stored):
            raise Denied("Missing User Group configuration")
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                identity = await provider.identify(callback.code, self._auth_request(stored, state))
        except TimeoutError as e:
            raise Unavailable("Unable to find user: the provider did not answer in time") from e
        except PipecdError as e:
            log.warning("sign-in refused", project=project, error=str(e))
            raise type(e)(f"Unable to find user: {e.message}") from e
        user = User(project, identity.name, identity.roles, identity.avatar_url)
        ttl = timedelta(hours=config.session_ttl or DEFAULT_SESSION_HOURS)
        return SignInResult(user, self._sessions.issue(user, ttl), ttl)

    def _provider(self, project: Project) -> tuple[SsoProvider, ProjectSSOConfig]:
        policy, metadata = self._settings.outbound, self._metadata
        if project.shared_sso_name:
            policy, metadata = ANY_DESTINATION, self._shared_metadata
            config = self._settings.shared.get(project.shared_sso_name)
            if config is None:
                name = project.shared_sso_name
                raise _invalid(f"not found shared sso configuration {name}")
        elif project.HasField("sso"):
            if (error := config_error(project.sso)) is not None:
                raise _invalid(error)
            config = _decrypted(project.sso, self._settings.encryption_key)
        else:
            raise _invalid(_NO_CONFIGURATION)
        try:
            return create_provider(config, policy, metadata, self._now), config
        except UserMistake as e:
            raise _invalid(e.message) from e

    def _auth_request(self, project: Project, state: str) -> AuthRequest:
        # The nonce is derived from the state in the browser's cookie, so it need not be stored.
        secret = self._settings.state_key.encode()
        nonce = hmac.digest(secret, f"nonce of {state}".encode(), "sha256").hex()
        return AuthRequest(project, state, nonce, self._settings.address.rstrip("/") + CALLBACK)


def _decrypted(stored: ProjectSSOConfig, encryption_key: bytes) -> ProjectSSOConfig:
    """The configuration of a project with decrypted secrets."""
    decrypted = ProjectSSOConfig()
    decrypted.CopyFrom(stored)
    if stored.HasField("github"):
        try:
            key_file = KeyFile(encryption_key)
            decrypted.github.client_id = key_file.decrypt(stored.github.client_id)
            decrypted.github.client_secret = key_file.decrypt(stored.github.client_secret)
        except UserMistake as e:
            raise Conflict("Failed to decrypt SSO configuration", hint=e.hint) from e
    return decrypted


def _invalid(reason: str) -> Conflict:
    return Conflict(f"Invalid SSO configuration: {reason}")
