# SPDX-License-Identifier: Apache-2.0
"""Providers of identities on loopback, a console that trusts them, and a browser between them."""

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
from pipecd.model.clock import Now, to_unix
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig

ENCRYPTION_KEY = b"0123456789abcdef0123456789abcdef\n"
ADDRESS = "https://pipecd.example"


@pytest.fixture(scope="session")
def rsa_keys() -> tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]:
    """The key of the provider, and one of somebody else."""
    made = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
    return made[0], made[1]


@dataclass
class OidcServer:
    """A small provider of OpenID Connect with real keys; its fields are what a test may bend."""

    key: rsa.RSAPrivateKey
    now: datetime
    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict[str, Any])
    # What the ID token says instead of what it should say.
    bent: dict[str, Any] = field(default_factory=dict[str, Any])
    user_info: dict[str, Any] | None = None
    discovery: dict[str, Any] = field(default_factory=dict[str, Any])
    # Signs in place of the provider.
    forge: Callable[[dict[str, Any]], str] | None = None
    kid: str | None = "key-1"
    # Sent with the discovery document and the keys.
    cache_control: str = ""
    asked: list[Request] = field(default_factory=list[Request])
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
        self.asked.append(request)
        told = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            **({"userinfo_endpoint": f"{self.issuer}/userinfo"} if self.user_info else {}),
        }
        kept = {name: value for name, value in {**told, **self.discovery}.items() if value != ""}
        return JSONResponse(kept, headers=self._cache_headers())

    async def _authorize(self, request: Request) -> Response:
        self.asked.append(request)
        query = dict(request.query_params)
        code = f"code-{len(self._codes)}"
        self._codes[code] = query
        back = urlencode({"code": code, "state": query["state"]})
        return RedirectResponse(f"{query['redirect_uri']}?{back}", 302)

    async def _token(self, request: Request) -> Response:
        self.asked.append(request)
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
            **self.bent,
        }
        kept = {name: value for name, value in claims.items() if value is not None}
        if self.forge:
            return self.forge(kept)
        headers = {"kid": self.kid} if self.kid else {}
        return jwt.encode(kept, self.key, "RS256", headers=headers)

    async def _keys(self, request: Request) -> Response:
        self.asked.append(request)
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        key = {**public, "kid": self.kid or "key-1", "use": "sig", "alg": "RS256"}
        return JSONResponse({"keys": [key]}, headers=self._cache_headers())

    def _cache_headers(self) -> dict[str, str]:
        return {"Cache-Control": self.cache_control} if self.cache_control else {}

    def requests_for(self, path: str) -> int:
        """How many requests for this path have arrived."""
        return sum(request.url.path == path for request in self.asked)

    async def _user_info(self, request: Request) -> Response:
        if request.headers.get("authorization") != "Bearer at":
            return PlainTextResponse("no", 401)
        return JSONResponse({"sub": "sub-1", **(self.user_info or {})})


def also_a_proxy(app: ASGIApp) -> ASGIApp:
    """Answers requests that name the whole address, as clients send them to a proxy."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = urlsplit(scope["path"]).path
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    return answer


@pytest.fixture
async def oidc(
    rsa_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey], moment: list[datetime]
) -> AsyncIterator[OidcServer]:
    server = OidcServer(rsa_keys[0], moment[0])
    server.claims = {"preferred_username": "olga", "roles": ["Editor"]}
    web = WebServer(also_a_proxy(server.app()))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        server.issuer = f"http://127.0.0.1:{port}"
        yield server
        await web.stop()


@dataclass
class GitHubServer:
    """A look-alike of GitHub Enterprise."""

    url: str = ""
    login: str = "octo"
    teams: list[str] = field(default_factory=list[str])
    asked: list[str] = field(default_factory=list[str])
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
        self.asked.append(form["redirect_uri"])
        if request.headers["accept"] != "application/json":
            return PlainTextResponse("access_token=at")
        right = (form["client_id"], form["client_secret"]) == ("client", "secret")
        if not right or form["code"] != "good":
            # GitHub refuses with a status of success.
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
        self.asked.append(f"page {page}")
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
    """The sign-ins of the configuration file; a test puts its own in."""
    return {}


@pytest.fixture
def settings(shared: dict[str, ProjectSSOConfig]) -> SsoSettings:
    return SsoSettings(f"{ADDRESS}/", "state key", ENCRYPTION_KEY, shared)


@pytest.fixture
async def site(
    cases: UseCases, bus: MemoryBus, settings: SsoSettings, now: Now, admin: User
) -> AsyncIterator[str]:
    """The address of a running console."""
    del admin
    web = WebServer(create_console(cases, bus, insecure_cookie=True, sso=settings, now=now))
    async with http_server(web, host="127.0.0.1", port=0) as port:
        yield f"http://127.0.0.1:{port}"
        await web.stop()


@pytest.fixture
async def browser(site: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=site) as client:
        yield client


Trust = Callable[..., Any]


@pytest.fixture
def trust(cases: UseCases, stores: Stores, admin: User) -> Trust:
    """Sets up the sign-in of the project through the use case, then changes the project itself."""

    async def set_up(config: ProjectSSOConfig | None = None, **fields: Any) -> None:
        if config is not None:
            await cases.projects.set_sso(config, by=admin)

        def change(project: Project) -> None:
            project.MergeFrom(Project(**fields))

        await stores.projects.update("shop", change)

    return set_up


@pytest.fixture
def by_oidc(oidc: OidcServer) -> Callable[..., ProjectSSOConfig]:
    """A sign-in with the provider of these tests."""

    def made(*, hours: int = 0, **fields: Any) -> ProjectSSOConfig:
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

    return made


@pytest.fixture
def by_github(github: GitHubServer) -> Callable[..., ProjectSSOConfig]:
    """A sign-in with the GitHub of these tests."""

    def made(**fields: Any) -> ProjectSSOConfig:
        given = {"client_id": "client", "client_secret": "secret", "base_url": github.url, **fields}
        return ProjectSSOConfig(
            provider=ProjectSSOConfig.GITHUB, github=ProjectSSOConfig.GitHub(**given)
        )

    return made


Leave = Callable[..., Any]


@pytest.fixture
def leave(browser: httpx2.AsyncClient) -> Leave:
    """Begins a sign-in: the address at the provider, and what it asks there."""

    async def left(**form: str) -> tuple[str, dict[str, str]]:
        answer = await browser.post("/auth/login", data={"project": "shop", **form})
        assert answer.status_code == 302, answer.headers
        url = answer.headers["location"]
        return url, {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}

    return left


@pytest.fixture
def come_back(browser: httpx2.AsyncClient) -> Callable[[str], Any]:
    """Opens an address of the console, whatever host it was told to have."""

    async def back(url: str) -> httpx2.Response:
        parts = urlsplit(url)
        return await browser.get(f"{parts.path}?{parts.query}")

    return back


@pytest.fixture
def through_oidc(leave: Leave, come_back: Callable[[str], Any]) -> Callable[..., Any]:
    """The whole way: to the provider and back; the last answer of the console."""

    async def way(**form: str) -> httpx2.Response:
        url, _ = await leave(**form)
        async with httpx2.AsyncClient() as outside:
            away = await outside.get(url)
        assert away.status_code == 302, away.text
        return await come_back(away.headers["location"])

    return way


@pytest.fixture
def through_github(leave: Leave, come_back: Callable[[str], Any]) -> Callable[..., Any]:
    """The whole way through GitHub; the person has agreed there."""

    async def way(code: str = "good") -> httpx2.Response:
        _, asked = await leave()
        back = f"{asked['redirect_uri']}&{urlencode({'code': code, 'state': asked['state']})}"
        return await come_back(back)

    return way


@pytest.fixture
def cookie_of() -> Callable[[httpx2.Response, str], str]:
    """One of the cookies that an answer sets, as it is sent."""

    def found(answer: httpx2.Response, name: str) -> str:
        lines = [c for c in answer.headers.get_list("set-cookie") if c.startswith(f"{name}=")]
        assert len(lines) == 1, answer.headers.get_list("set-cookie")
        return lines[0]

    return found


@pytest.fixture
def signed_in(
    cases: UseCases, cookie_of: Callable[[httpx2.Response, str], str]
) -> Callable[[httpx2.Response], Awaitable[User]]:
    """The person whom an answer lets in."""

    async def person(answer: httpx2.Response) -> User:
        assert answer.status_code == 302, answer.headers
        token = cookie_of(answer, "token").split(";")[0].partition("=")[2]
        return await cases.sessions.user(token)

    return person


@pytest.fixture
def refusal(
    cookie_of: Callable[[httpx2.Response, str], str],
) -> Callable[[httpx2.Response], str]:
    """Why an answer lets nobody in."""

    def told(answer: httpx2.Response) -> str:
        assert answer.status_code == 303, answer.headers
        assert not [c for c in answer.headers.get_list("set-cookie") if c.startswith("token=")]
        return cookie_of(answer, "error").split(";")[0].partition("=")[2].strip('"')

    return told
