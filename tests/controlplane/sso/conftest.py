# SPDX-License-Identifier: Apache-2.0
"""SSO providers on loopback, a console that uses them, and an HTTP client as the browser."""

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.address import parse_networks
from pipecd.model.clock import Now, to_unix
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.wire.outbound import OutboundPolicy

ENCRYPTION_KEY = b"0123456789abcdef0123456789abcdef\n"
ADDRESS = "https://pipecd.example"


@pytest.fixture(scope="session")
def rsa_keys() -> tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]:
    """The key of the provider, and another one."""
    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
    return keys[0], keys[1]


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
    requests: list[Request] = field(default_factory=list[Request])
    logins: list[str] = field(default_factory=list[str])
    _codes: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

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
            **({"userinfo_endpoint": f"{self.issuer}/userinfo"} if self.user_info else {}),
        }
        present = {
            name: value for name, value in {**document, **self.discovery}.items() if value != ""
        }
        return JSONResponse(present, headers=self._cache_headers())

    async def _authorize(self, request: Request) -> Response:
        self.requests.append(request)
        query = dict(request.query_params)
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        back = urlencode({"code": code, "state": query["state"]})
        return RedirectResponse(f"{query['redirect_uri']}?{back}", 302)

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
        query = self._codes.pop(form["code"], None)
        if query is None or query["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse(
                {"error": "invalid_grant", "error_description": "unknown code"}, 400
            )
        return JSONResponse(
            {"access_token": "at", "token_type": "Bearer", "id_token": self._id_token(query)}
        )

    def _id_token(self, query: dict[str, str]) -> str:
        now = to_unix(self.now)
        claims = {
            "iss": self.issuer,
            "aud": "client",
            "sub": "sub-1",
            "iat": now,
            "exp": now + 300,
            "nonce": query.get("nonce", ""),
            **self.claims,
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


@pytest.fixture
async def oidc(
    rsa_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey], moment: list[datetime]
) -> AsyncIterator[OidcServer]:
    server = OidcServer(rsa_keys[0], moment[0])
    server.claims = {"preferred_username": "olga", "roles": ["Editor"]}
    web = WebServer(accept_proxy_requests(server.app()))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        server.issuer = f"http://127.0.0.1:{port}"
        yield server
        await web.stop()


@dataclass
class GitHubServer:
    """The OAuth and team endpoints of GitHub Enterprise."""

    url: str = ""
    login: str = "octo"
    teams: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    user: Any = None

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/login/oauth/access_token", self._token, methods=["POST"]),
                Route("/api/v3/user", self._user),
                Route("/api/v3/user/teams", self._teams),
            ]
        )

    async def _token(self, request: Request) -> Response:
        form = {name: str(value) for name, value in (await request.form()).items()}
        self.requests.append(form["redirect_uri"])
        if request.headers["accept"] != "application/json":
            return PlainTextResponse("access_token=at")
        is_client = (form["client_id"], form["client_secret"]) == ("client", "secret")
        if not is_client or form["code"] != "good":
            # GitHub reports this error with status 200.
            return JSONResponse({"error": "bad_verification_code"})
        return JSONResponse({"access_token": "at", "token_type": "bearer"})

    async def _user(self, request: Request) -> Response:
        if request.headers["authorization"] != "Bearer at":
            return JSONResponse({"message": "Bad credentials"}, 401)
        picture = "https://avatars.example/octo"
        return JSONResponse(self.user or {"login": self.login, "avatar_url": picture})

    async def _teams(self, request: Request) -> Response:
        if request.headers["authorization"] != "Bearer at":
            return JSONResponse({"message": "Bad credentials"}, 401)
        size, page = (int(request.query_params[name]) for name in ("per_page", "page"))
        self.requests.append(f"page {page}")
        shown = self.teams[size * (page - 1) : size * page]
        named = [team.partition("/") for team in shown]
        return JSONResponse([{"organization": {"login": o}, "slug": s} for o, _, s in named])


@pytest.fixture
async def github() -> AsyncIterator[GitHubServer]:
    server = GitHubServer()
    web = WebServer(server.app())
    async with http_server(web, host="127.0.0.1", port=0) as port:
        server.url = f"http://127.0.0.1:{port}"
        yield server
        await web.stop()


@pytest.fixture
def shared() -> dict[str, ProjectSSOConfig]:
    """The `sharedSSOConfigs` of the configuration file; tests add entries."""
    return {}


@pytest.fixture
def settings(shared: dict[str, ProjectSSOConfig]) -> SsoSettings:
    outbound = OutboundPolicy(parse_networks(["127.0.0.0/8"]))
    return SsoSettings(f"{ADDRESS}/", "state key", ENCRYPTION_KEY, shared, outbound)


@pytest.fixture
async def site(
    cases: UseCases, bus: MemoryBus, settings: SsoSettings, now: Now, admin: User
) -> AsyncIterator[str]:
    """The URL of a running console."""
    del admin
    web = WebServer(create_console(cases, bus, insecure_cookie=True, sso=settings, now=now))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        await web.stop()


@pytest.fixture
async def browser(site: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=site) as client:
        yield client


ConfigureSso = Callable[..., Any]


@pytest.fixture
def configure_sso(cases: UseCases, stores: Stores, admin: User) -> ConfigureSso:
    """Configures SSO of the project with the use case, then sets fields of the stored project."""

    async def set_up(config: ProjectSSOConfig | None = None, **fields: Any) -> None:
        if config is not None:
            await cases.projects.set_sso(config, by=admin)

        def change(project: Project) -> None:
            project.MergeFrom(Project(**fields))

        await stores.projects.update("shop", change)

    return set_up


@pytest.fixture
def oidc_config(oidc: OidcServer) -> Callable[..., ProjectSSOConfig]:
    """Builds the SSO configuration of the OpenID Connect provider."""

    def build(*, hours: int = 0, **fields: Any) -> ProjectSSOConfig:
        return ProjectSSOConfig(
            provider=ProjectSSOConfig.OIDC,
            session_ttl=hours,
            oidc=ProjectSSOConfig.Oidc(
                **{
                    "client_id": "client",
                    "client_secret": "s:ecret%",
                    "issuer": oidc.issuer,
                    **fields,
                }
            ),
        )

    return build


@pytest.fixture
def github_config(github: GitHubServer) -> Callable[..., ProjectSSOConfig]:
    """Builds the SSO configuration of the GitHub server."""

    def build(**fields: Any) -> ProjectSSOConfig:
        values = {
            "client_id": "client",
            "client_secret": "secret",
            "base_url": github.url,
            **fields,
        }
        return ProjectSSOConfig(
            provider=ProjectSSOConfig.GITHUB, github=ProjectSSOConfig.GitHub(**values)
        )

    return build


BeginSignIn = Callable[..., Any]


@pytest.fixture
def begin_sign_in(browser: httpx2.AsyncClient) -> BeginSignIn:
    """Begins a sign-in; returns the authorization URL and its query parameters."""

    async def begin(**form: str) -> tuple[str, dict[str, str]]:
        answer = await browser.post("/auth/login", data={"project": "shop", **form})
        assert answer.status_code == 302, answer.headers
        url = answer.headers["location"]
        return url, {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    return begin


@pytest.fixture
def open_callback(browser: httpx2.AsyncClient) -> Callable[[str], Any]:
    """Opens a callback URL on the console under test, whatever its host is."""

    async def open_path(url: str) -> httpx2.Response:
        parts = urlsplit(url)
        return await browser.get(f"{parts.path}?{parts.query}")

    return open_path


@pytest.fixture
def sign_in_with_oidc(
    begin_sign_in: BeginSignIn, open_callback: Callable[[str], Any]
) -> Callable[..., Any]:
    """Signs in with the OpenID Connect provider; returns the response to the callback."""

    async def sign_in(**form: str) -> httpx2.Response:
        url, _ = await begin_sign_in(**form)
        async with httpx2.AsyncClient() as client:
            redirect = await client.get(url)
        assert redirect.status_code == 302, redirect.text
        return await open_callback(redirect.headers["location"])

    return sign_in


@pytest.fixture
def sign_in_with_github(
    begin_sign_in: BeginSignIn, open_callback: Callable[[str], Any]
) -> Callable[..., Any]:
    """Signs in with GitHub; returns the response to the callback."""

    async def sign_in(code: str = "good") -> httpx2.Response:
        _, query = await begin_sign_in()
        callback = f"{query['redirect_uri']}&{urlencode({'code': code, 'state': query['state']})}"
        return await open_callback(callback)

    return sign_in


@pytest.fixture
def cookie_of() -> Callable[[httpx2.Response, str], str]:
    """Returns a `Set-Cookie` header of a response by the name of the cookie."""

    def find(answer: httpx2.Response, name: str) -> str:
        lines = [c for c in answer.headers.get_list("set-cookie") if c.startswith(f"{name}=")]
        assert len(lines) == 1, answer.headers.get_list("set-cookie")
        return lines[0]

    return find


@pytest.fixture
def signed_in(
    cases: UseCases, cookie_of: Callable[[httpx2.Response, str], str]
) -> Callable[[httpx2.Response], Awaitable[User]]:
    """Returns the user of the session cookie of a response."""

    async def session_user(answer: httpx2.Response) -> User:
        assert answer.status_code == 302, answer.headers
        token = cookie_of(answer, "token").split(";")[0].partition("=")[2]
        return await cases.sessions.user(token)

    return session_user


@pytest.fixture
def error_message(
    cookie_of: Callable[[httpx2.Response, str], str],
) -> Callable[[httpx2.Response], str]:
    """Returns the error message of a response that does not sign in."""

    def message_of(answer: httpx2.Response) -> str:
        assert answer.status_code == 303, answer.headers
        assert not [c for c in answer.headers.get_list("set-cookie") if c.startswith("token=")]
        return cookie_of(answer, "error").split(";")[0].partition("=")[2].strip('"')

    return message_of
