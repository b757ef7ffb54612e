# SPDX-License-Identifier: Apache-2.0
"""Single sign-on: the redirect to the provider and the callback.

The error texts are those that clients of upstream show.
"""

import asyncio
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import structlog
from google.protobuf.message import DecodeError

from pipecd.config.controlplane import DEFAULT_SESSION_HOURS
from pipecd.controlplane.auth import rbac
from pipecd.controlplane.auth.sso import (
    TIMEOUT_HINT,
    AuthRequest,
    AuthResponse,
    OidcMetadataCache,
    SsoIdentity,
    SsoProvider,
    config_error,
    create_provider,
)
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.sign_ins import UsedCodes
from pipecd.controlplane.usecases.projects import ProjectUseCases
from pipecd.controlplane.usecases.sessions import Sessions
from pipecd.model.clock import Now, to_unix, utc_now
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
from pipecd.secrets.state import SignInSecrets, begin_sign_in, new_cookie, resume_sign_in
from pipecd.wire.outbound import ANY_DESTINATION, PUBLIC_DESTINATIONS, OutboundPolicy

log = structlog.get_logger()

_TIMEOUT_SECONDS = 10.0
# Longer than any provider accepts a code; RFC 6749 recommends ten minutes at most.
_USED_CODE_SECONDS = 24 * 3600
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
# How upstream begins the reason for which the provider names no user.
NO_USER = "Unable to find user: "
# What the state of a trial is bound to besides, so that it is none of a sign-in.
_TRIAL = "trial "
# Browsers drop larger cookies.
_MAX_TRIAL_LENGTH = 3500
NO_SSO = SsoSettings("", "", b"")


@dataclass(frozen=True)
class AuthRedirect:
    """The URL the browser is redirected to, and the secret its cookie must bring back."""

    url: str
    cookie: str = field(repr=False)


@dataclass(frozen=True)
class TrialRedirect:
    """The redirect of a trial, and its settings, which the browser must bring back."""

    redirect: AuthRedirect
    settings: str = field(repr=False)


@dataclass(frozen=True)
class AuthCallback:
    """The parameters of a callback; `cookie` is the secret this browser was given."""

    state: str
    project: str = ""
    code: str = field(default="", repr=False)
    issuer: str = ""
    error: str = ""
    cookie: str = field(default="", repr=False)


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
        used_codes: UsedCodes,
        settings: SsoSettings,
        now: Now = utc_now,
    ) -> None:
        self._projects, self._sessions, self._used_codes = projects, sessions, used_codes
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
        return await self._begin(stored, "")

    async def begin_trial(self, sso: ProjectSSOConfig, *, by: User) -> TrialRedirect:
        """Starts a sign-in with settings that are not saved; nobody is signed in at its end."""
        project = await self._projects.with_sso(sso, by=by)
        # The secrets in it are encrypted; the state of the sign-in is bound to every setting.
        trial = urlsafe_b64encode(project.sso.SerializeToString(deterministic=True)).decode()
        if len(trial) > _MAX_TRIAL_LENGTH:
            raise UserMistake("The settings are too long to be tried before they are saved.")
        return TrialRedirect(await self._begin(project, _TRIAL), trial)

    async def _begin(self, project: Project, purpose: str) -> AuthRedirect:
        provider, config = self._provider(project, purpose)
        if not (self._settings.address or config.oidc.redirect_uri):
            raise _invalid(
                "spec.address of the control plane is not set",
                "set it, or enter the callback address in the form",
            )
        cookie = new_cookie()
        try:
            bound_to = purpose + _binding(project, config)
            secrets = begin_sign_in(self._settings.state_key, cookie, bound_to, self._now())
        except UserMistake as e:
            raise UserMistake(f"Invalid SSO configuration: {e.message}", hint=e.hint) from e
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                url = await provider.authorization_url(self._auth_request(project, secrets))
        except TimeoutError as e:
            text = "Internal error: the provider did not answer in time"
            raise Unavailable(text, hint=TIMEOUT_HINT) from e
        except PipecdError as e:
            log.warning("sign-in could not be started", project=project.id, error=str(e))
            raise type(e)(f"Internal error: {e.message}", hint=e.hint) from e
        return AuthRedirect(url, cookie)

    async def finish(self, callback: AuthCallback) -> SignInResult:
        """Signs in the user whom the provider identifies.

        The code is sent only to the provider that the sign-in began with, and only once: one that
        came to this callback for another project, where its provider has seen it, is refused.
        """
        stored = await self._project_of(callback)
        provider, config, secrets = self._resume(callback, stored, "")
        identity = await self._identify(callback, stored, provider, config, secrets)
        user = User(stored.id, identity.name, identity.roles, identity.avatar_url)
        ttl = timedelta(hours=config.session_ttl or DEFAULT_SESSION_HOURS)
        return SignInResult(user, await self._sessions.begin(user, ttl), ttl)

    async def finish_trial(self, callback: AuthCallback, trial: str) -> SsoIdentity | None:
        """Who would be signed in with the settings of the trial; None if this is no trial."""
        try:
            project = await self._project_of(callback)
            project.sso.CopyFrom(ProjectSSOConfig.FromString(urlsafe_b64decode(trial)))
            provider, config, secrets = self._resume(callback, project, _TRIAL)
        except (Unauthenticated, ValueError, DecodeError):
            return None
        return await self._identify(callback, project, provider, config, secrets)

    async def _identify(
        self,
        callback: AuthCallback,
        stored: Project,
        provider: SsoProvider,
        config: ProjectSSOConfig,
        secrets: SignInSecrets,
    ) -> SsoIdentity:
        """Exchanges the code for the identity of the user, once."""
        if not callback.code:
            reason = f": {callback.error}" if callback.error in _SHOWN_ERRORS else ""
            raise Unauthenticated(
                f"Missing auth code{reason}",
                hint="see at the provider why: which users the client permits, and which scopes",
            )
        # With GitHub, roles come only from user groups.
        by_teams = config.provider == ProjectSSOConfig.Provider.GITHUB
        if by_teams and not stored.allow_stray_as_viewer and not rbac.user_groups_of(stored):
            raise Denied(
                "Missing User Group configuration",
                hint="give a role to a team below User groups, written as organization/team",
            )
        code_hash = hashlib.sha256(callback.code.encode()).hexdigest()
        expires_at = to_unix(self._now()) + _USED_CODE_SECONDS
        if not await self._used_codes.add(code_hash, expires_at=expires_at):
            log.warning("an authorization code came twice", project=stored.id)
            raise Unauthenticated("This sign-in was finished before, sign in again")
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                return await provider.identify(
                    AuthResponse(callback.code, callback.issuer),
                    self._auth_request(stored, secrets),
                )
        except TimeoutError as e:
            text = f"{NO_USER}the provider did not answer in time"
            raise Unavailable(text, hint=TIMEOUT_HINT) from e
        except PipecdError as e:
            log.warning("sign-in refused", project=stored.id, error=str(e))
            raise type(e)(f"{NO_USER}{e.message}", hint=e.hint) from e

    async def _project_of(self, callback: AuthCallback) -> Project:
        """The project that a callback names; Unauthenticated if there is none."""
        state, _, suffix = callback.state.partition(":")
        project = callback.project or suffix
        if not (state and project):
            raise Unauthenticated("Failed to parse state")
        if suffix not in ("", project):
            raise Unauthenticated("Unauthorized access")
        try:
            return await self._projects.read(project)
        except NotFound as e:
            raise Unauthenticated("Unauthorized access") from e

    def _resume(
        self, callback: AuthCallback, project: Project, purpose: str
    ) -> tuple[SsoProvider, ProjectSSOConfig, SignInSecrets]:
        """The sign-in that this browser began, with the provider of the project as it was then."""
        try:
            provider, config = self._provider(project, purpose)
        except Conflict as e:
            # Only the browser in which a sign-in began is told more.
            raise Unauthenticated("Unauthorized access") from e
        secrets = resume_sign_in(
            callback.state.partition(":")[0],
            self._settings.state_key,
            cookie=callback.cookie,
            bound_to=purpose + _binding(project, config),
            now=self._now(),
        )
        return provider, config, secrets

    def _provider(
        self, project: Project, purpose: str = ""
    ) -> tuple[SsoProvider, ProjectSSOConfig]:
        policy, metadata = self._settings.outbound, self._metadata
        if purpose == _TRIAL:
            # What a provider says now decides, not what it said some minutes ago.
            metadata = OidcMetadataCache(self._now)
        if project.shared_sso_name:
            policy, metadata = ANY_DESTINATION, self._shared_metadata
            config = self._settings.shared.get(project.shared_sso_name)
            if config is None:
                name = project.shared_sso_name
                raise _invalid(f"not found shared sso configuration {name}")
        elif project.HasField("sso"):
            if (error := config_error(project.sso)) is not None:
                raise _invalid(error, "correct it in the form")
            config = _decrypted(project.sso, self._settings.encryption_key)
        else:
            raise _invalid(_NO_CONFIGURATION)
        try:
            return create_provider(config, policy, metadata, self._now), config
        except UserMistake as e:
            raise _invalid(e.message, e.hint) from e

    def _auth_request(self, project: Project, secrets: SignInSecrets) -> AuthRequest:
        return AuthRequest(project, secrets, self._settings.address.rstrip("/") + CALLBACK)


def _binding(project: Project, config: ProjectSSOConfig) -> str:
    """What a sign-in is bound to: the project and its provider, with every setting of it."""
    settings = config.SerializeToString(deterministic=True)
    return f"{hashlib.sha256(settings).hexdigest()} {project.id}"


def _decrypted(stored: ProjectSSOConfig, encryption_key: bytes) -> ProjectSSOConfig:
    """The configuration of a project with decrypted secrets."""
    decrypted = ProjectSSOConfig()
    decrypted.CopyFrom(stored)
    try:
        key_file = KeyFile(encryption_key)
        if stored.HasField("github"):
            decrypted.github.client_id = key_file.decrypt(stored.github.client_id)
            decrypted.github.client_secret = key_file.decrypt(stored.github.client_secret)
        if stored.HasField("oidc"):
            # Upstream and earlier versions store it in plain text.
            decrypted.oidc.client_secret = key_file.unseal(stored.oidc.client_secret)
    except UserMistake as e:
        raise Conflict("Failed to decrypt SSO configuration", hint=e.hint) from e
    return decrypted


def _invalid(reason: str, hint: str = "") -> Conflict:
    return Conflict(f"Invalid SSO configuration: {reason}", hint=hint)
