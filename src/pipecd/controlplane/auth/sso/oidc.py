# SPDX-License-Identifier: Apache-2.0
"""Sign-in with any provider of OpenID Connect; roles are claims of the person."""

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from pipecd.controlplane.auth.sso.claims import avatar_of, name_of, roles_of
from pipecd.controlplane.auth.sso.conversation import (
    Conversation,
    as_list,
    as_object,
    conversation,
)
from pipecd.controlplane.auth.sso.idtoken import Expected, verified_claims
from pipecd.controlplane.auth.sso.provider import Identity, Trip, consent_url, is_web_address
from pipecd.model.clock import Now
from pipecd.model.errors import Unauthenticated, Unavailable
from pipecd.proto.model.project_pb2 import ProjectSSOConfig

_OPENID = "openid"


@dataclass(frozen=True)
class _Endpoints:
    """What a provider says about itself, with what the configuration says instead."""

    authorization: str
    token: str
    user_info: str
    keys: str
    algorithms: tuple[str, ...]
    takes_login: bool


class Oidc:
    """The provider that a project names with `OIDC`."""

    def __init__(self, config: ProjectSSOConfig.Oidc, now: Now) -> None:
        self._config, self._now = config, now
        self.label = urlsplit(config.issuer).hostname or config.issuer

    @staticmethod
    def fault_of(config: ProjectSSOConfig.Oidc) -> str | None:
        if not (config.client_id and config.client_secret):
            return "oidc needs a client id and a client secret"
        if not is_web_address(config.issuer):
            return "the issuer of oidc is not an address"
        return None

    async def way_out(self, trip: Trip) -> str:
        async with conversation(self._config.proxy_url) as talk:
            endpoints = await self._discover(talk)
        return consent_url(
            endpoints.authorization,
            client_id=self._config.client_id,
            nonce=trip.nonce,
            redirect_uri=self._callback(trip),
            scope=" ".join(self._config.scopes) or _OPENID,
            # One address serves all projects, so the state says which one it is.
            state=f"{trip.state}:{trip.project.id}",
        )

    async def identify(self, code: str, trip: Trip) -> Identity:
        async with conversation(self._config.proxy_url) as talk:
            endpoints = await self._discover(talk)
            tokens = await self._exchange(talk, endpoints, code, trip)
            raw = tokens.get("id_token")
            if not isinstance(raw, str):
                raise Unauthenticated("the provider sent no ID token")
            claims = verified_claims(raw, await self._expected(talk, endpoints, trip))
            if endpoints.user_info:
                told = await talk.get(endpoints.user_info, tokens["access_token"])
                claims = {**claims, **_same_person(claims, told)}
        name = name_of(claims, self._config.username_claim_key)
        return Identity(
            name,
            roles_of(claims, self._config.roles_claim_key, trip.project),
            avatar_of(claims, self._config.avatar_url_claim_key),
        )

    async def _discover(self, talk: Conversation) -> _Endpoints:
        issuer = self._config.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        told = as_object(await talk.get(url))
        if told.get("issuer") != issuer:
            raise Unavailable(
                f"the provider calls itself {told.get('issuer')!r}, and the issuer is {issuer!r}"
            )
        config = self._config
        methods = _texts(told, "token_endpoint_auth_methods_supported")
        return _Endpoints(
            authorization=config.authorization_endpoint or _url(told, "authorization_endpoint"),
            token=config.token_endpoint or _url(told, "token_endpoint"),
            user_info=config.user_info_endpoint
            or (_url(told, "userinfo_endpoint") if told.get("userinfo_endpoint") else ""),
            keys=_url(told, "jwks_uri"),
            algorithms=_texts(told, "id_token_signing_alg_values_supported"),
            takes_login=not methods or "client_secret_basic" in methods,
        )

    async def _exchange(
        self, talk: Conversation, endpoints: _Endpoints, code: str, trip: Trip
    ) -> Mapping[str, Any]:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback(trip),
        }
        id, secret = self._config.client_id, self._config.client_secret
        if endpoints.takes_login:
            login = (quote(id, safe=""), quote(secret, safe=""))
            return await talk.exchange(endpoints.token, form, login)
        return await talk.exchange(
            endpoints.token, {**form, "client_id": id, "client_secret": secret}
        )

    async def _expected(self, talk: Conversation, endpoints: _Endpoints, trip: Trip) -> Expected:
        return Expected(
            issuer=self._config.issuer,
            audience=self._config.client_id,
            nonce=trip.nonce,
            keys=await talk.get(endpoints.keys),
            algorithms=endpoints.algorithms,
            now=self._now(),
        )

    def _callback(self, trip: Trip) -> str:
        return self._config.redirect_uri or trip.callback


def _same_person(claims: Mapping[str, Any], told: Any) -> Mapping[str, Any]:
    """Further claims, if they are about the person of the ID token."""
    further = as_object(told)
    theirs, ours = str(further.get("sub", "")), str(claims["sub"])
    if not hmac.compare_digest(theirs.encode(), ours.encode()):
        raise Unauthenticated("the provider told about somebody else than who signed in")
    return further


def _url(told: Mapping[str, Any], name: str) -> str:
    value = told.get(name)
    if not isinstance(value, str) or not is_web_address(value):
        raise Unavailable(f"the provider does not say its {name}")
    return value


def _texts(told: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(text for text in as_list(told.get(name)) or () if isinstance(text, str))
