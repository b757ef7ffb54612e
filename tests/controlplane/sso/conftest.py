# SPDX-License-Identifier: Apache-2.0
"""SSO providers on loopback, a console that uses them, and an HTTP client as the browser."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.controlplane.web import WebServer, http_server
from pipecd.model.address import parse_networks
from pipecd.model.clock import Now
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.wire.outbound import OutboundPolicy
from servers.sso import GitHubServer, OidcServer, serve_provider

ENCRYPTION_KEY = b"0123456789abcdef0123456789abcdef\n"
ADDRESS = "https://pipecd.example"


@pytest.fixture(scope="session")
def rsa_keys() -> tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey]:
    """The key of the provider, and another one."""
    keys = [rsa.generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2)]
    return keys[0], keys[1]


@pytest.fixture
async def oidc(
    rsa_keys: tuple[rsa.RSAPrivateKey, rsa.RSAPrivateKey], moment: list[datetime]
) -> AsyncIterator[OidcServer]:
    server = OidcServer(rsa_keys[0], moment[0])
    server.claims = {"preferred_username": "olga", "roles": ["Editor"]}
    async with serve_provider(server) as server.issuer:
        yield server


@pytest.fixture
async def github() -> AsyncIterator[GitHubServer]:
    server = GitHubServer()
    async with serve_provider(server) as server.url:
        yield server


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

    async def sign_in(code: str = "") -> httpx2.Response:
        _, query = await begin_sign_in()
        code = code or f"good-{token_hex(4)}"
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
