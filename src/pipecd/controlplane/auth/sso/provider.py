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
        is_login = response.status_code == 401 or tokens.get("error") == "invalid_client"
        raise Unauthenticated(
            f"the provider refused the sign-in: {str(reason)[:_MAX_QUOTED]}",
            hint="check the client ID and the client secret" if is_login else "",
        )

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, url, **options)
        except ForbiddenDestination as e:
            raise Unavailable(
                f"{e}; the operator of the control plane can allow its network with "
                "spec.outbound.allowedNetworks"
            ) from e
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            # Some errors of the client have no message.
            reason = str(e) or type(e).__name__
            raise Unavailable(f"cannot reach {host_of(url)}: {reason[:_MAX_QUOTED]}") from e


def as_object(content: Any) -> Mapping[str, Any]:
    """The JSON content if it is an object, otherwise an empty one."""
    return cast("Mapping[str, Any]", content if isinstance(content, dict) else {})


def as_list(content: Any) -> list[Any] | None:
    """The JSON content if it is a list."""
    return cast("list[Any]", content) if isinstance(content, list) else None


def _json(response: httpx2.Response, url: str, *, accept_errors: bool = False) -> Any:
    if not response.is_success and not accept_errors:
        raise Unavailable(f"{host_of(url)} answered with status {response.status_code}")
    try:
        return response.json()
    except ValueError as e:
        raise Unavailable(
            f"{host_of(url)} did not answer with JSON (status {response.status_code})"
        ) from e


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
    return Unauthenticated("the response comes from another provider than the sign-in began with")


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
