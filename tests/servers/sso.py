# SPDX-License-Identifier: Apache-2.0
"""Single sign-on providers on loopback: OpenID Connect, GitHub Enterprise, and a malicious one."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from secrets import token_hex
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.clock import to_unix


def is_proof_of_key(query: dict[str, str], form: dict[str, str]) -> bool:
    """Whether the verifier of a token request fits the challenge of its sign-in (RFC 7636)."""
    if not query.get("code_challenge"):
        return True
    digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
    return query["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")


@dataclass
class OidcServer:
    """A small OpenID Connect provider with real keys; tests change its fields."""

    key: rsa.RSAPrivateKey
    now: datetime
    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    # Claims that replace those of the ID token.
    token_overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    user_info: dict[str, Any] | None = None
    discovery: dict[str, Any] = field(default_factory=dict[str, Any])
    # Creates the ID token instead of the provider.
    forge: Callable[[dict[str, Any]], str] | None = None
    kid: str | None = "key-1"
    # Sent with the discovery document and the keys.
    cache_control: str = ""
    # Whether the provider sends `iss` to the callback (RFC 9207), and says so.
    sends_issuer: bool = False
    # A careless provider exchanges a code more than once.
    accepts_codes_again: bool = False
    requests: list[Request] = field(default_factory=list[Request])
    logins: list[str] = field(default_factory=list[str])
    # The query of the authorization request and the claims of the user, by code.
    _codes: dict[str, tuple[dict[str, str], dict[str, Any]]] = field(
        default_factory=dict[str, tuple[dict[str, str], dict[str, Any]]]
    )

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discover),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/keys", self._keys),
                Route("/userinfo", self._user_info),
            ]
        )

    async def _discover(self, request: Request) -> Response:
        self.requests.append(request)
        document = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            "code_challenge_methods_supported": ["S256"],
            **({"userinfo_endpoint": f"{self.issuer}/userinfo"} if self.user_info else {}),
            **(
                {"authorization_response_iss_parameter_supported": True}
                if self.sends_issuer
                else {}
            ),
        }
        present = {
            name: value for name, value in {**document, **self.discovery}.items() if value != ""
        }
        return JSONResponse(present, headers=self._cache_headers())

    async def _authorize(self, request: Request) -> Response:
        self.requests.append(request)
        query = dict(request.query_params)
        code = f"code-{token_hex(8)}"
        self._codes[code] = (query, dict(self.claims))
        back = {"code": code, "state": query["state"]}
        if self.sends_issuer:
            back["iss"] = self.issuer
        separator = "&" if "?" in query["redirect_uri"] else "?"
        return RedirectResponse(f"{query['redirect_uri']}{separator}{urlencode(back)}", 302)

    async def _token(self, request: Request) -> Response:
        self.requests.append(request)
        form = {name: str(value) for name, value in (await request.form()).items()}
        client = (form.get("client_id", ""), form.get("client_secret", ""))
        login = request.headers.get("authorization", "")
        self.logins.append("basic" if login else "post")
        if login:
            raw = base64.b64decode(login.removeprefix("Basic ")).decode()
            id, _, secret = raw.partition(":")
            client = (unquote(id), unquote(secret))
        if client != ("client", "s:ecret%"):
            return JSONResponse({"error": "invalid_client"}, 401)
        query, claims = self._codes.get(form["code"], ({}, {}))
        if not self.accepts_codes_again:
            self._codes.pop(form["code"], None)
        is_request = query.get("redirect_uri") == form["redirect_uri"]
        if not (is_request and is_proof_of_key(query, form)):
            return JSONResponse(
                {"error": "invalid_grant", "error_description": "unknown code"}, 400
            )
        id_token = self._id_token(query, claims)
        return JSONResponse({"access_token": "at", "token_type": "Bearer", "id_token": id_token})

    def _id_token(self, query: dict[str, str], user: dict[str, Any]) -> str:
        now = to_unix(self.now)
        claims = {
            "iss": self.issuer,
            "aud": "client",
            "sub": "sub-1",
            "iat": now,
            "exp": now + 300,
            "nonce": query.get("nonce", ""),
            **user,
            **self.token_overrides,
        }
        present = {name: value for name, value in claims.items() if value is not None}
        if self.forge:
            return self.forge(present)
        headers = {"kid": self.kid} if self.kid else {}
        return jwt.encode(present, self.key, "RS256", headers=headers)

    async def _keys(self, request: Request) -> Response:
        self.requests.append(request)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        key = {**public, "kid": self.kid or "key-1", "use": "sig", "alg": "RS256"}
        return JSONResponse({"keys": [key]}, headers=self._cache_headers())

    def _cache_headers(self) -> dict[str, str]:
        return {"Cache-Control": self.cache_control} if self.cache_control else {}

    def requests_for(self, path: str) -> int:
        """The number of requests for this path."""
        return sum(request.url.path == path for request in self.requests)

    async def _user_info(self, request: Request) -> Response:
        if request.headers.get("authorization") != "Bearer at":
            return PlainTextResponse("no", 401)
        return JSONResponse({"sub": "sub-1", **(self.user_info or {})})


def accept_proxy_requests(app: ASGIApp) -> ASGIApp:
    """Accepts requests with an absolute URL, which clients send to a proxy."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        path = urlsplit(scope["path"]).path
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return handle


@dataclass
class GitHubServer:
    """The OAuth and team endpoints of GitHub Enterprise."""

    url: str = ""
    login: str = "octo"
    teams: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    user: Any = None
    # The challenge of the authorization request and the user's login, by code.
    codes: dict[str, tuple[dict[str, str], str]] = field(
        default_factory=dict[str, tuple[dict[str, str], str]]
    )

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/login/oauth/authorize", self._authorize),
                Route("/login/oauth/access_token", self._token, methods=["POST"]),
                Route("/api/v3/user", self._user),
                Route("/api/v3/user/teams", self._teams),
            ]
        )

    async def _authorize(self, request: Request) -> Response:
        query = dict(request.query_params)
        code = f"code-{token_hex(8)}"
        self.codes[code] = (query, self.login)
        back = urlencode({"code": code, "state": query["state"]})
        return RedirectResponse(f"{query['redirect_uri']}&{back}", 302)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.requests.append(form["redirect_uri"])
        if request.headers["accept"] != "application/json":
            return PlainTextResponse("access_token=at")
        is_client = (form["client_id"], form["client_secret"]) == ("client", "secret")
        query, login = self.codes.pop(form["code"], ({}, ""))
        is_code = form["code"].startswith("good") or bool(login)
        if not (is_client and is_code and is_proof_of_key(query, form)):
            # GitHub reports this error with status 200.
            return JSONResponse({"error": "bad_verification_code"})
        return JSONResponse({"access_token": f"at {login or self.login}", "token_type": "bearer"})

    async def _user(self, request: Request) -> Response:
        scheme, _, login = request.headers["authorization"].partition(" at ")
        if scheme != "Bearer":
            return JSONResponse({"message": "Bad credentials"}, 401)
        picture = "https://avatars.example/octo"
        return JSONResponse(self.user or {"login": login, "avatar_url": picture})

    async def _teams(self, request: Request) -> Response:
        if not request.headers["authorization"].startswith("Bearer at "):
            return JSONResponse({"message": "Bad credentials"}, 401)
        size, page = (int(request.query_params[name]) for name in ("per_page", "page"))
        self.requests.append(f"page {page}")
        shown = self.teams[size * (page - 1) : size * page]
        named = [team.partition("/") for team in shown]
        return JSONResponse([{"organization": {"login": o}, "slug": s} for o, _, s in named])


@dataclass
class MaliciousProvider:
    """Answers as OpenID Connect and as GitHub, redirects as a test says, and records secrets."""

    url: str = ""
    # Returns where the browser goes from the authorization endpoint, given its query.
    redirect: Callable[[dict[str, str]], str] = lambda query: query["redirect_uri"]
    codes: list[str] = field(default_factory=list[str])
    bodies: list[str] = field(default_factory=list[str])

    def app(self) -> Starlette:
        tokens = ("/token", "/login/oauth/access_token")
        authorize = ("/authorize", "/login/oauth/authorize")
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._discover),
                *(Route(path, self._authorize) for path in authorize),
                *(Route(path, self._token, methods=["POST"]) for path in tokens),
            ]
        )

    async def _discover(self, _request: Request) -> Response:
        endpoints = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
        urls = {name: f"{self.url}/{path}" for name, path in endpoints.items()}
        return JSONResponse({"issuer": self.url, "jwks_uri": f"{self.url}/keys", **urls})

    async def _authorize(self, request: Request) -> Response:
        return RedirectResponse(self.redirect(dict(request.query_params)), 302)

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.codes.append(form.get("code", ""))
        login = request.headers.get("authorization", "").removeprefix("Basic ")
        self.bodies.append(f"{form} {unquote(base64.b64decode(login).decode())}")
        return JSONResponse({"error": "invalid_grant"}, 400)


@asynccontextmanager
async def serve_provider(
    server: OidcServer | GitHubServer | MaliciousProvider,
) -> AsyncGenerator[str, None]:
    """Serves a provider on loopback; yields its URL."""
    web = WebServer(accept_proxy_requests(server.app()))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        await web.stop()
