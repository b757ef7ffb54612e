# SPDX-License-Identifier: Apache-2.0
"""What every single sign-on provider offers, and the HTTP client for talking to one."""

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol, cast
from urllib.parse import urlencode, urlsplit

import httpx2

from pipecd.controlplane.auth.rbac import VIEWER
from pipecd.model.errors import Denied, Unauthenticated, Unavailable, UserMistake
from pipecd.proto.model.project_pb2 import Project
from pipecd.secrets.masking import host_of
from pipecd.secrets.state import SignInSecrets
from pipecd.wire.outbound import ForbiddenDestination, OutboundPolicy, OutboundTransport

TIMEOUT_SECONDS = 10.0
_MAX_QUOTED = 200
TIMEOUT_HINT = (
    "check whether the provider answers the control plane at all: a firewall between them may drop "
    "the requests, or they may need a proxy"
)
# The errors of token endpoints: those of RFC 6749, and those of GitHub.
_LOGIN_ERRORS = frozenset({"invalid_client", "unauthorized_client", "incorrect_client_credentials"})
_REDIRECT_ERRORS = frozenset({"invalid_grant", "redirect_uri_mismatch", "bad_verification_code"})
_MAX_AGE = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,9})", re.IGNORECASE)


@dataclass(frozen=True)
class AuthRequest:
    """One sign-in, from the redirect to the provider to its callback."""

    project: Project
    secrets: SignInSecrets
    # The callback URL of the control plane, without query parameters.
    callback: str


@dataclass(frozen=True)
class AuthResponse:
    """What the provider sent to the callback; `issuer` is its `iss` parameter (RFC 9207)."""

    code: str = field(repr=False)
    issuer: str = ""


@dataclass(frozen=True)
class SsoIdentity:
    """A user as the provider identifies them, with their roles in the project."""

    name: str
    roles: tuple[str, ...]
    avatar_url: str = ""


class SsoProvider(Protocol):
    """A site where users authenticate."""

    # The sign-in page shows "Sign in with <label>".
    label: str

    async def authorization_url(self, request: AuthRequest) -> str:
        """The URL at the provider to which the browser is redirected."""
        ...

    async def identify(self, response: AuthResponse, request: AuthRequest) -> SsoIdentity:
        """Exchanges the authorization code of a callback for the user's identity."""
        ...


class ProviderClient:
    """Sends requests to a provider that answers in JSON."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, proxy_url: str, policy: OutboundPolicy
    ) -> AsyncGenerator["ProviderClient", None]:
        """A client of destinations that the policy permits, through the proxy if there is one."""
        try:
            client = httpx2.AsyncClient(
                transport=OutboundTransport(policy, proxy=proxy_url),
                timeout=TIMEOUT_SECONDS,
                headers={"Accept": "application/json"},
            )
        except ValueError as e:
            raise UserMistake(f"invalid proxy_url: {e}") from e
        async with client:
            yield cls(client)

    async def get(self, url: str, token: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return _json(await self._send("GET", url, headers=headers), url)

    async def get_cacheable(self, url: str) -> tuple[Any, timedelta | None]:
        """The content and how long it may be cached; None if the provider does not say."""
        response = await self._send("GET", url)
        matched = _MAX_AGE.search(response.headers.get("cache-control", ""))
        return _json(response, url), timedelta(seconds=int(matched[1])) if matched else None

    async def exchange(
        self, url: str, form: Mapping[str, str], login: tuple[str, str] | None = None
    ) -> Mapping[str, Any]:
        """Exchanges an authorization code for tokens; an error quotes the provider's reason."""
        response = await self._send("POST", url, data=dict(form), auth=login)
        tokens = as_object(_json(response, url, accept_errors=True))
        if response.is_success and isinstance(tokens.get("access_token"), str):
            return tokens
        reason = tokens.get("error_description") or tokens.get("error") or response.reason_phrase
        raise Unauthenticated(
            f"the provider refused the sign-in: {str(reason)[:_MAX_QUOTED]}",
            hint=refusal_hint(response.status_code, str(tokens.get("error", ""))),
        )

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, url, **options)
        except ForbiddenDestination as e:
            raise Unavailable(
                f"{e}; the operator of the control plane can allow its network with "
                "spec.outbound.allowedNetworks",
                hint="check the host name and the scheme of the URL",
            ) from e
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            # Some errors of the client have no message.
            reason = str(e) or type(e).__name__
            raise Unavailable(
                f"cannot reach {host_of(url)}: {reason[:_MAX_QUOTED]}",
                hint=connection_hint(e, host_of(url)),
            ) from e


def as_object(content: Any) -> Mapping[str, Any]:
    """The JSON content if it is an object, otherwise an empty one."""
    return cast("Mapping[str, Any]", content if isinstance(content, dict) else {})


def as_list(content: Any) -> list[Any] | None:
    """The JSON content if it is a list."""
    return cast("list[Any]", content) if isinstance(content, list) else None


def _json(response: httpx2.Response, url: str, *, accept_errors: bool = False) -> Any:
    status = response.status_code
    if not response.is_success and not accept_errors:
        raise Unavailable(
            f"{host_of(url)} answered with status {status}", hint=answer_hint(status, url)
        )
    try:
        return response.json()
    except ValueError as e:
        raise Unavailable(
            f"{host_of(url)} did not answer with JSON (status {status})",
            hint=answer_hint(status, url),
        ) from e


def connection_hint(error: Exception, host: str) -> str:
    """What an administrator can do when no request reaches the provider."""
    match error:
        case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
            return "check the URL in the settings"
        case httpx2.ProxyError():
            return "check the address of the proxy, and whether it permits this destination"
        case httpx2.TimeoutException():
            return TIMEOUT_HINT
        case _ if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return (
                f"give {host} a certificate for its name, with its chain, that the machine of the "
                "control plane trusts; for an authority of your own, let SSL_CERT_FILE name its "
                "certificate when the control plane starts"
            )
        case _ if "SSL" in str(error):
            return "check the port of the URL, and whether it must begin with http:// or https://"
        case _:
            return (
                f"check the host and the port of the URL, whether {host} runs, and whether a "
                "firewall or a proxy is between the control plane and it"
            )


def answer_hint(status: int, url: str) -> str:
    """What an administrator can do when the answer to a request is not the expected one."""
    asked = f"the control plane requested {_without_credentials(url)}"
    if status >= 500 or status == 429:
        return f"see the log of the provider, or try again later: {asked}"
    if status in (401, 403):
        return f"check the client ID, the client secret and what the client may read: {asked}"
    return f"check the addresses in the settings, the issuer first: {asked}"


def refusal_hint(status: int, error: str) -> str:
    """What an administrator can do when a code is not exchanged for tokens."""
    if status == 401 or error in _LOGIN_ERRORS:
        return "check the client ID and the client secret"
    if error in _REDIRECT_ERRORS:
        return (
            "register the callback address of the form with the provider, and try again: a code "
            "is accepted once and for a short time"
        )
    return "see the log of the provider for why it refuses this client"


def _without_credentials(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def build_authorization_url(endpoint: str, request: AuthRequest, **query: str) -> str:
    """The authorization endpoint with these parameters and those every provider gets.

    A provider that does not know PKCE (RFC 7636) ignores the challenge.
    """
    every = {
        "access_type": "online",
        "code_challenge": request.secrets.code_challenge,
        "code_challenge_method": "S256",
        "prompt": "consent",
        "response_type": "code",
    }
    separator = "&" if urlsplit(endpoint).query else "?"
    return f"{endpoint}{separator}{urlencode(sorted({**every, **query}.items()))}"


def wrong_issuer() -> Unauthenticated:
    """The error for a code of another provider; it must be sent nowhere."""
    return Unauthenticated(
        "the response comes from another provider than the sign-in began with",
        hint="enter the issuer exactly as the provider sends it",
    )


def stray_roles(project: Project, reason: str, hint: str = "") -> tuple[str, ...]:
    """The roles of a user without a role: Viewer if `allowStrayAsViewer` is set, else Denied."""
    if project.allow_stray_as_viewer:
        return (VIEWER,)
    raise Denied(f"{reason}, ask an administrator of project {project.id}", hint=hint)


def is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
