# SPDX-License-Identifier: Apache-2.0
"""Sign-in with any OpenID Connect provider; roles are claims of the user."""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlsplit

from pipecd.cache import LruCache
from pipecd.controlplane.auth.rbac import BUILT_IN_NAMES
from pipecd.controlplane.auth.sso.id_token import (
    ExpectedToken,
    UnknownSigningKey,
    verified_claims,
)
from pipecd.controlplane.auth.sso.provider import (
    AuthRequest,
    AuthResponse,
    ProviderClient,
    SsoIdentity,
    as_list,
    as_object,
    build_authorization_url,
    is_http_url,
    stray_roles,
    wrong_issuer,
)
from pipecd.model.clock import Now, seconds_clock, utc_now
from pipecd.model.errors import Unauthenticated, Unavailable
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.wire.outbound import OutboundPolicy

_OPENID = "openid"
# The claims that are read when the configuration names none, in upstream's order.
_ROLE_CLAIMS = ("groups", "roles", "cognito:groups", "custom:roles", "custom:groups")
_NAME_CLAIMS = ("username", "preferred_username", "name", "cognito:username")
# What an administrator can do about claims that are missing.
_NAME_HINT = "ask for a scope that adds one, such as profile, or enter the claim with the name"
_ROLES_HINT = (
    "let the provider send Admin, Editor or Viewer in a claim: ask for the scope that adds it, "
    "such as groups, or enter the claim with the roles"
)
# How much of what a provider sent is shown.
_MAX_SHOWN, _MAX_SHOWN_TEXT = 12, 60
_AVATAR_CLAIMS = ("picture", "avatar_url")

# The browser is sent to the first one, so that a script URL would run here.
_URL_FIELDS = ("authorization_endpoint", "token_endpoint", "user_info_endpoint", "redirect_uri")

# Used when the provider sends no max-age.
DEFAULT_METADATA_TTL = timedelta(minutes=5)
MAX_METADATA_TTL = timedelta(hours=1)
_MAX_DOCUMENTS = 1_000

Claims = Mapping[str, Any]


class OidcMetadataCache:
    """Caches discovery documents and signing keys of providers, as long as `max-age` allows."""

    def __init__(self, now: Now = utc_now) -> None:
        # By the proxy, which may answer in the place of the provider, and the URL.
        self._documents = LruCache[tuple[str, str], Any](_MAX_DOCUMENTS, clock=seconds_clock(now))

    async def discovery(self, client: ProviderClient, issuer: str, via: str) -> Claims:
        """The discovery document of the issuer; `via` is the proxy it is fetched through."""
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        if (cached := self._documents.get((via, url))) is not None:
            return cached
        content, max_age = await client.get_cacheable(url)
        document = as_object(content)
        if document.get("issuer") != issuer:
            raise Unavailable(
                f"the provider calls itself {document.get('issuer')!r}, "
                f"but the configured issuer is {issuer!r}",
                hint="enter the issuer exactly as the provider calls itself",
            )
        self._put((via, url), document, max_age)
        return document

    def cached_keys(self, url: str, via: str) -> Any:
        """The signing keys (JWKS) if they are cached, else None."""
        return self._documents.get((via, url))

    async def fetch_keys(self, client: ProviderClient, url: str, via: str) -> Any:
        """Fetches the signing keys (JWKS) and caches them."""
        keys, max_age = await client.get_cacheable(url)
        self._put((via, url), keys, max_age)
        return keys

    def _put(self, key: tuple[str, str], document: Any, max_age: timedelta | None) -> None:
        ttl = DEFAULT_METADATA_TTL if max_age is None else min(max_age, MAX_METADATA_TTL)
        self._documents.put(key, document, ttl=ttl.total_seconds())


@dataclass(frozen=True)
class _Endpoints:
    """The endpoints of a provider: those of the configuration, else the discovered ones."""

    authorization: str
    token: str
    user_info: str
    keys: str
    algorithms: tuple[str, ...]
    accepts_basic_auth: bool
    sends_issuer: bool


class OidcProvider:
    """The provider of projects with `provider: OIDC`."""

    def __init__(
        self,
        config: ProjectSSOConfig.Oidc,
        policy: OutboundPolicy,
        metadata: OidcMetadataCache,
        now: Now,
    ) -> None:
        self._config, self._policy, self._metadata, self._now = config, policy, metadata, now
        self.label = urlsplit(config.issuer).hostname or config.issuer

    @staticmethod
    def config_error(config: ProjectSSOConfig.Oidc) -> str | None:
        if not (config.client_id and config.client_secret):
            return "oidc needs a client id and a client secret"
        if not is_http_url(config.issuer):
            return "the issuer of oidc is not a URL"
        for name in _URL_FIELDS:
            url: str = getattr(config, name)
            if url and not is_http_url(url):
                return f"the {name} of oidc is not a URL of http or https"
        return None

    async def authorization_url(self, request: AuthRequest) -> str:
        async with ProviderClient.connect(self._config.proxy_url, self._policy) as client:
            endpoints = await self._discover(client)
        return build_authorization_url(
            endpoints.authorization,
            request,
            client_id=self._config.client_id,
            nonce=request.secrets.nonce,
            redirect_uri=self._redirect_uri(request),
            scope=" ".join(self._config.scopes) or _OPENID,
            # All projects share one callback URL, so the state carries the project.
            state=f"{request.secrets.state}:{request.project.id}",
        )

    async def identify(self, response: AuthResponse, request: AuthRequest) -> SsoIdentity:
        async with ProviderClient.connect(self._config.proxy_url, self._policy) as client:
            endpoints = await self._discover(client)
            is_sent = bool(response.issuer) or endpoints.sends_issuer
            if is_sent and response.issuer != self._config.issuer:
                raise wrong_issuer()
            form = {
                "grant_type": "authorization_code",
                "code": response.code,
                "code_verifier": request.secrets.code_verifier,
                "redirect_uri": self._redirect_uri(request),
            }
            client_id, secret = self._config.client_id, self._config.client_secret
            login = None
            if endpoints.accepts_basic_auth:
                login = (quote(client_id, safe=""), quote(secret, safe=""))
            else:
                form |= {"client_id": client_id, "client_secret": secret}
            tokens = await client.exchange(endpoints.token, form, login)
            token = tokens.get("id_token")
            if not isinstance(token, str):
                raise Unauthenticated(
                    "the provider sent no ID token", hint="ask for the scope openid"
                )
            claims = await self._verify(client, endpoints, token, request)
            if endpoints.user_info:
                user_info = as_object(await client.get(endpoints.user_info, tokens["access_token"]))
                subject, expected = str(user_info.get("sub", "")), str(claims["sub"])
                if not hmac.compare_digest(subject.encode(), expected.encode()):
                    raise Unauthenticated(
                        "the user info belongs to another user",
                        hint="check the user info endpoint: it must be that of the issuer",
                    )
                claims = {**claims, **user_info}
        name = user_name(claims, self._config.username_claim_key)
        return SsoIdentity(
            name,
            claimed_roles(claims, self._config.roles_claim_key, request.project),
            avatar_url(claims, self._config.avatar_url_claim_key),
        )

    async def _discover(self, client: ProviderClient) -> _Endpoints:
        config = self._config
        document = await self._metadata.discovery(client, config.issuer, config.proxy_url)
        methods = _texts(document.get("token_endpoint_auth_methods_supported"))
        return _Endpoints(
            authorization=config.authorization_endpoint or _url(document, "authorization_endpoint"),
            token=config.token_endpoint or _url(document, "token_endpoint"),
            user_info=config.user_info_endpoint
            or (_url(document, "userinfo_endpoint") if document.get("userinfo_endpoint") else ""),
            keys=_url(document, "jwks_uri"),
            algorithms=tuple(_texts(document.get("id_token_signing_alg_values_supported"))),
            accepts_basic_auth=not methods or "client_secret_basic" in methods,
            sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        )

    async def _verify(
        self, client: ProviderClient, endpoints: _Endpoints, token: str, request: AuthRequest
    ) -> Claims:
        """The claims of the ID token; cached keys that do not fit are fetched again, once."""
        url, via = endpoints.keys, self._config.proxy_url
        expected = ExpectedToken(
            issuer=self._config.issuer,
            audience=self._config.client_id,
            nonce=request.secrets.nonce,
            algorithms=endpoints.algorithms,
            now=self._now(),
        )
        if (cached := self._metadata.cached_keys(url, via)) is not None:
            try:
                return verified_claims(token, cached, expected)
            except UnknownSigningKey:
                # The provider may have rotated its keys.
                pass
        return verified_claims(token, await self._metadata.fetch_keys(client, url, via), expected)

    def _redirect_uri(self, request: AuthRequest) -> str:
        return self._config.redirect_uri or request.callback


def claimed_roles(claims: Claims, key: str, project: Project) -> tuple[str, ...]:
    """The built-in roles among the claims, each once; user groups of the project do not apply."""
    names = (key,) if key else _ROLE_CLAIMS
    values = [value for name in names for value in _texts(claims.get(name))]
    roles = tuple(dict.fromkeys(value for value in values if value in BUILT_IN_NAMES))
    if roles:
        return roles
    if not values:
        sent = f"; it sent the claims {_listed(sorted(claims))}"
        return stray_roles(project, "no role found in claims", _ROLES_HINT + sent)
    reason = "your claims name none of the roles Admin, Editor and Viewer"
    sent = f"; it sent {_listed(list(dict.fromkeys(values)))}"
    return stray_roles(project, reason, _ROLES_HINT + sent)


def user_name(claims: Claims, key: str) -> str:
    names = (key,) if key else _NAME_CLAIMS
    for name in names:
        value = claims.get(name)
        if isinstance(value, str) and value:
            return value
    raise Unauthenticated(
        f"none of the claims {', '.join(names)} contains your user name", hint=_NAME_HINT
    )


def avatar_url(claims: Claims, key: str) -> str:
    values = (claims.get(name) for name in ((key,) if key else _AVATAR_CLAIMS))
    return next((value for value in values if isinstance(value, str) and value), "")


def _url(document: Claims, name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not is_http_url(value):
        raise Unavailable(
            f"the discovery document of the provider has no valid {name}",
            hint="check the issuer and its discovery document; an endpoint that it does not name "
            "can be entered in the form",
        )
    return value


def _listed(texts: Sequence[str]) -> str:
    """The first texts, which a provider chooses, short enough for a sentence."""
    shown = ", ".join(text[:_MAX_SHOWN_TEXT] for text in texts[:_MAX_SHOWN])
    return shown if len(texts) <= _MAX_SHOWN else f"{shown} and {len(texts) - _MAX_SHOWN} more"


def _texts(value: Any) -> list[str]:
    values = as_list(value)
    return [each for each in ([value] if values is None else values) if isinstance(each, str)]
