# SPDX-License-Identifier: Apache-2.0
"""A malicious admin of one project, or a stranger, aims at the sign-in of another project.

Olga is a user of the project `shop`. Mallory is the admin of the project `evil`, has set up a
provider of his own there, and may have an account at the provider of `shop` as well. He makes Olga
begin a sign-in to `evil`, and gains if a browser of his is signed in to `shop` as Olga, if Olga's
browser is signed in to `shop` as Mallory, or if his provider gets a secret of `shop`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import User
from pipecd.model.errors import PipecdError, Unauthenticated
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from servers.server import free_port
from servers.sso import GitHubServer, MaliciousProvider, OidcServer, serve_provider

CONTROL_PLANE = """
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: http://127.0.0.1:{port}
  stateKey: secret
  datastore: {{type: SQLITE, config: {{path: {directory}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}/files}}}}
  outbound: {{allowedNetworks: [127.0.0.0/8]}}
"""
OIDC_SECRET, GITHUB_SECRET = "s:ecret%", "secret"
OLGA, MALLORY = "olga", "mallory"


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@dataclass
class World:
    """A control plane with both projects, the providers, and a browser of each person."""

    plane: ControlPlane
    shop: User
    evil: User
    honest: OidcServer
    github: GitHubServer
    malicious: MaliciousProvider
    olga: httpx2.AsyncClient
    mallory: httpx2.AsyncClient
    other: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.plane.port}"

    def callback(self, admin: User) -> str:
        return f"{self.site}/auth/callback?project={admin.project}"

    async def use(self, admin: User, config: ProjectSSOConfig) -> None:
        await self.plane.cases.projects.set_sso(config, by=admin)

    def oidc(self, **fields: Any) -> ProjectSSOConfig:
        """The provider of the shop, with these changes."""
        values = {
            "client_id": "client",
            "client_secret": OIDC_SECRET,
            "issuer": self.honest.issuer,
            **fields,
        }
        return ProjectSSOConfig(
            provider=ProjectSSOConfig.OIDC, oidc=ProjectSSOConfig.Oidc(**values)
        )

    def malicious_oidc(self) -> ProjectSSOConfig:
        return self.oidc(client_secret="mine", issuer=self.malicious.url)

    def on_github(self, **fields: Any) -> ProjectSSOConfig:
        values = {
            "client_id": "client",
            "client_secret": GITHUB_SECRET,
            "base_url": self.github.url,
            **fields,
        }
        return ProjectSSOConfig(
            provider=ProjectSSOConfig.GITHUB, github=ProjectSSOConfig.GitHub(**values)
        )

    async def begin(self, browser: httpx2.AsyncClient, admin: User) -> str:
        """Begins a sign-in to the project of this admin; returns the authorization URL."""
        answer = await browser.post("/auth/login", data={"project": admin.project})
        assert answer.status_code == 302, answer.headers
        return answer.headers["location"]

    async def follow(self, browser: httpx2.AsyncClient, url: str) -> httpx2.Response:
        """Follows redirects of providers, up to the response of the control plane's callback."""
        while not url.startswith(self.site):
            answer = await browser.get(url)
            assert answer.status_code == 302, answer.text
            url = answer.headers["location"]
        return await browser.get(url)

    async def sign_in(self, browser: httpx2.AsyncClient, admin: User) -> httpx2.Response:
        return await self.follow(browser, await self.begin(browser, admin))

    async def name_in_shop(self, browser: httpx2.AsyncClient) -> str:
        """The name of the user of a browser who is signed in to the shop, or an empty text."""
        try:
            user = await self.plane.cases.sessions.user(browser.cookies.get("token") or "")
        except Unauthenticated:
            return ""
        return user.name if user.project == self.shop.project else ""


@pytest.fixture(scope="module")
async def plane(
    anyio_backend: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ControlPlane]:
    del anyio_backend
    port = free_port()
    text = CONTROL_PLANE.format(port=port, directory=tmp_path_factory.mktemp("plane"))
    spec = read_control_plane(text, file="control-plane.yaml")
    settings = ServerSettings(
        spec, b"k" * 32, host="127.0.0.1", port=port, insecure_cookie=True, metrics=False
    )
    async with control_plane(settings) as plane:
        yield plane


@pytest.fixture
async def world(plane: ControlPlane, key: rsa.RSAPrivateKey) -> AsyncIterator[World]:
    honest, github = OidcServer(key, datetime.now(UTC)), GitHubServer(login=OLGA)
    honest.claims = {"name": OLGA, "roles": ["Admin"]}
    malicious = MaliciousProvider()
    shop, evil = (User(f"{name}-{token_hex(4)}", "root", ("Admin",)) for name in ("shop", "evil"))
    site = f"http://127.0.0.1:{plane.port}"
    async with (
        serve_provider(honest) as honest.issuer,
        serve_provider(github) as github.url,
        serve_provider(malicious) as malicious.url,
        httpx2.AsyncClient(base_url=site) as olga,
        httpx2.AsyncClient(base_url=site) as mallory,
    ):
        for admin in (shop, evil):
            await plane.cases.projects.add(admin.project, allow_stray_as_viewer=True)
        world = World(plane, shop, evil, honest, github, malicious, olga, mallory)
        await world.use(world.shop, world.oidc())
        await world.use(world.evil, world.malicious_oidc())
        yield world


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


async def inject(world: World, begun: str, code: str) -> None:
    """Mallory's browser brings a code to the callback of the sign-in that he began himself."""
    query = query_of(begun)
    by_query = "?project=" in query["redirect_uri"]
    parameters = {"state": query["state"], "code": code}
    if by_query:
        parameters["project"] = world.shop.project
    await world.mallory.get("/auth/callback", params=parameters)


async def steal_code_by_redirect(world: World, **changes: str) -> None:
    """Olga's sign-in to `evil` leads to the provider of the shop, whose code is sent to Mallory.

    Mallory began a sign-in of his own to the shop: Olga's code is made for his nonce and challenge.
    """
    begun = await world.begin(world.mallory, world.shop)
    target, _, _ = begun.partition("?")

    def redirect(query: dict[str, str]) -> str:
        crafted = {**query_of(begun), "state": query["state"], **changes}
        return f"{target}?{urlencode(crafted)}"

    world.malicious.redirect = redirect
    await world.sign_in(world.olga, world.evil)
    for code in world.malicious.codes:
        await inject(world, begun, code)


async def mix_up(world: World) -> None:
    await steal_code_by_redirect(world)


async def mix_up_with_issuer(world: World) -> None:
    world.honest.sends_issuer = True
    await steal_code_by_redirect(world)
    assert not world.malicious.codes, "a code of the shop was sent to another provider"


async def mix_up_of_endpoints(world: World) -> None:
    """The issuer and the client are the shop's, only the token endpoint is Mallory's."""
    config = world.oidc(client_secret="mine", token_endpoint=f"{world.malicious.url}/token")
    await world.use(world.evil, config)
    begun = await world.begin(world.mallory, world.shop)
    # Olga is sent directly to the right place, with the nonce and challenge of Mallory's sign-in.
    hers = await world.begin(world.olga, world.evil)
    crafted = {**query_of(begun), "state": query_of(hers)["state"]}
    await world.follow(world.olga, f"{hers.partition('?')[0]}?{urlencode(crafted)}")
    for code in world.malicious.codes:
        await inject(world, begun, code)


async def change_of_settings(world: World) -> None:
    """Mallory's settings name the shop's provider until Olga is back from it."""
    await world.use(world.evil, world.oidc(client_secret="mine"))
    begun = await world.begin(world.mallory, world.shop)
    hers = await world.begin(world.olga, world.evil)
    crafted = {**query_of(begun), "state": query_of(hers)["state"]}
    answer = await world.olga.get(f"{hers.partition('?')[0]}?{urlencode(crafted)}")
    await world.use(world.evil, world.malicious_oidc())
    await world.follow(world.olga, answer.headers["location"])
    assert not world.malicious.codes, "a code of the shop was sent to another provider"
    for code in world.malicious.codes:
        await inject(world, begun, code)


async def mix_up_of_github(world: World) -> None:
    await world.use(world.shop, world.on_github())
    await world.use(world.evil, world.on_github(client_secret="mine", base_url=world.malicious.url))
    await steal_code_by_redirect(world, redirect_uri=world.callback(world.evil))


async def mix_up_of_github_with_oidc(world: World) -> None:
    await world.use(world.shop, world.on_github())
    await steal_code_by_redirect(world, redirect_uri=world.callback(world.evil))


async def forced_sign_in(world: World) -> None:
    """Olga's sign-in to `evil` ends at the shop, with a code of Mallory's account there."""
    world.honest.claims["name"] = "mallory"

    def redirect(query: dict[str, str]) -> str:
        crafted = {
            **query_of(world.other["begun"]),
            "nonce": query["nonce"],
            "state": query["state"].replace(world.evil.project, world.shop.project),
        }
        if "code_challenge" in query:
            crafted["code_challenge"] = query["code_challenge"]
        return f"{world.honest.issuer}/authorize?{urlencode(crafted)}"

    world.other["begun"] = await world.begin(world.mallory, world.shop)
    world.malicious.redirect = redirect
    await world.sign_in(world.olga, world.evil)


async def forced_sign_in_by_parameter(world: World) -> None:
    """The same, with the project in the query instead of the state."""
    world.honest.claims["name"] = "mallory"
    world.other["begun"] = await world.begin(world.mallory, world.shop)

    def redirect(query: dict[str, str]) -> str:
        crafted = {**query_of(world.other["begun"]), **query}
        crafted["redirect_uri"] = world.callback(world.shop)
        return f"{world.honest.issuer}/authorize?{urlencode(crafted)}"

    await world.use(world.shop, world.oidc(redirect_uri=world.callback(world.shop)))
    world.malicious.redirect = redirect
    await world.sign_in(world.olga, world.evil)


async def forced_sign_in_on_github(world: World) -> None:
    await world.use(world.shop, world.on_github())
    await world.use(world.evil, world.on_github(client_secret="mine", base_url=world.malicious.url))
    world.github.login = "mallory"

    def redirect(query: dict[str, str]) -> str:
        crafted = {**query, "redirect_uri": world.callback(world.shop)}
        return f"{world.github.url}/login/oauth/authorize?{urlencode(crafted)}"

    world.malicious.redirect = redirect
    await world.sign_in(world.olga, world.evil)


async def leaked_code_of_github(world: World) -> None:
    """Olga's code leaked before her browser brought it back, for example from a log of a proxy."""
    await world.use(world.shop, world.on_github())
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    code = query_of(answer.headers["location"])["code"]
    await inject(world, await world.begin(world.mallory, world.shop), code)


async def leaked_code(world: World) -> None:
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    code = query_of(answer.headers["location"])["code"]
    await inject(world, await world.begin(world.mallory, world.shop), code)


async def callback_of_another_browser(world: World) -> None:
    """Mallory stops his sign-in before the callback, and Olga opens its address."""
    world.honest.claims["name"] = "mallory"
    answer = await world.mallory.get(await world.begin(world.mallory, world.shop))
    await world.follow(world.olga, answer.headers["location"])


async def callback_of_another_browser_that_begins_too(world: World) -> None:
    world.honest.claims["name"] = "mallory"
    answer = await world.mallory.get(await world.begin(world.mallory, world.shop))
    await world.begin(world.olga, world.shop)
    await world.follow(world.olga, answer.headers["location"])


async def callback_again(world: World) -> None:
    """Mallory read the callback of Olga's completed sign-in, for example in the log of a proxy."""
    world.honest.accepts_codes_again = True
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    await world.olga.get(answer.headers["location"])
    assert await world.name_in_shop(world.olga) == OLGA
    await world.mallory.get(answer.headers["location"])
    await world.begin(world.mallory, world.shop)
    await world.mallory.get(answer.headers["location"])


async def callback_again_after_signing_out(world: World) -> None:
    """Mallory sits down at Olga's browser and goes back to the callback in its history."""
    world.honest.accepts_codes_again = True
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    await world.olga.get(answer.headers["location"])
    await world.plane.cases.sessions.end(world.olga.cookies["token"])
    await world.olga.get(answer.headers["location"])
    world.mallory.cookies = world.olga.cookies


async def state_as_cookie(world: World) -> None:
    """Mallory's provider has seen the state of Olga's sign-in and takes it for her cookie."""
    seen: list[str] = []

    def redirect(query: dict[str, str]) -> str:
        seen.append(query["state"])
        return f"{world.site}/auth/callback?{urlencode({'state': query['state'], 'error': 'x'})}"

    world.malicious.redirect = redirect
    await world.follow(world.olga, await world.begin(world.olga, world.evil))
    await world.begin(world.olga, world.shop)
    begun = await world.begin(world.mallory, world.shop)
    state = seen[0].partition(":")[0]
    answer = await world.mallory.get(begun)
    code = query_of(answer.headers["location"])["code"]
    world.honest.claims["name"] = "mallory"
    async with httpx2.AsyncClient(base_url=world.site, cookies={"state": state}) as forged:
        answer = await forged.get(
            "/auth/callback", params={"state": f"{state}:{world.shop.project}", "code": code}
        )
    assert answer.status_code == 303


async def response_without_the_issuer(world: World) -> None:
    """The provider announces that it sends `iss`; a response without it was tampered with."""
    world.honest.sends_issuer = True
    world.honest.claims["name"] = "mallory"
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    query = query_of(answer.headers["location"])
    del query["iss"]
    await world.olga.get("/auth/callback", params=query)


async def response_of_another_issuer(world: World) -> None:
    world.honest.claims["name"] = "mallory"
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    query = query_of(answer.headers["location"])
    await world.olga.get("/auth/callback", params={**query, "iss": world.malicious.url})


async def response_of_another_issuer_to_github(world: World) -> None:
    await world.use(world.shop, world.on_github())
    world.github.login = "mallory"
    answer = await world.olga.get(await world.begin(world.olga, world.shop))
    url = f"{answer.headers['location']}&{urlencode({'iss': f'{world.github.url}.evil.example'})}"
    await world.olga.get(url)


ATTACKS: dict[str, Callable[[World], Awaitable[None]]] = {
    "a provider that redirects to the provider of another project": mix_up,
    "the same with a provider that sends its issuer": mix_up_with_issuer,
    "a token endpoint that does not belong to the issuer": mix_up_of_endpoints,
    "settings that change during a sign-in": change_of_settings,
    "a GitHub Enterprise that redirects to GitHub": mix_up_of_github,
    "an OpenID Connect provider that redirects to GitHub": mix_up_of_github_with_oidc,
    "a state of one project at the callback of another": forced_sign_in,
    "a project in the query that is not that of the state": forced_sign_in_by_parameter,
    "a state of one project at GitHub's callback of another": forced_sign_in_on_github,
    "a leaked code of GitHub": leaked_code_of_github,
    "a leaked code": leaked_code,
    "the callback of another browser": callback_of_another_browser,
    "the callback of another browser during a sign-in": callback_of_another_browser_that_begins_too,
    "the callback of a completed sign-in": callback_again,
    "the callback of a completed sign-in, after signing out": callback_again_after_signing_out,
    "a state that is used as the cookie": state_as_cookie,
    "a response from which the issuer was removed": response_without_the_issuer,
    "a response with another issuer": response_of_another_issuer,
    "a response with another issuer, to GitHub": response_of_another_issuer_to_github,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_nobody_is_signed_in_as_somebody_else(
    world: World, attack: Callable[[World], Awaitable[None]]
) -> None:
    await attack(world)
    assert await world.name_in_shop(world.mallory) != OLGA
    assert await world.name_in_shop(world.olga) != MALLORY
    assert not [body for body in world.malicious.bodies if OIDC_SECRET in body]


@dataclass(frozen=True)
class Redirection:
    """Settings that send the stored secret of the shop to another address."""

    before: Callable[[World], ProjectSSOConfig]
    after: Callable[[World], ProjectSSOConfig]


def oidc_with(**fields: str) -> Callable[[World], ProjectSSOConfig]:
    """The settings of the shop with other addresses; EVIL stands for Mallory's."""

    def build(world: World) -> ProjectSSOConfig:
        values = {
            name: value.replace("EVIL", world.malicious.url) for name, value in fields.items()
        }
        return world.oidc(**values)

    return build


def github_with(**fields: str) -> Callable[[World], ProjectSSOConfig]:
    def build(world: World) -> ProjectSSOConfig:
        values = {
            name: value.replace("EVIL", world.malicious.url) for name, value in fields.items()
        }
        return world.on_github(**values)

    return build


ATTACKS_ON_THE_SECRET: dict[str, Redirection] = {
    "another issuer": Redirection(oidc_with(), oidc_with(client_secret="", issuer="EVIL")),
    "another token endpoint": Redirection(
        oidc_with(), oidc_with(client_secret="", token_endpoint="EVIL/token")
    ),
    "another authorization endpoint": Redirection(
        oidc_with(), oidc_with(client_secret="", authorization_endpoint="EVIL/authorize")
    ),
    "another user info endpoint": Redirection(
        oidc_with(), oidc_with(client_secret="", user_info_endpoint="EVIL/user")
    ),
    "another proxy": Redirection(oidc_with(), oidc_with(client_secret="", proxy_url="EVIL")),
    "another GitHub": Redirection(github_with(), github_with(client_secret="", base_url="EVIL")),
    "another proxy of GitHub": Redirection(
        github_with(), github_with(client_secret="", proxy_url="EVIL")
    ),
}


@pytest.mark.parametrize("attack", ATTACKS_ON_THE_SECRET.values(), ids=ATTACKS_ON_THE_SECRET)
async def test_a_stored_secret_is_not_sent_to_a_new_address(
    world: World, attack: Redirection
) -> None:
    await world.use(world.shop, attack.before(world))
    stored = (await world.plane.stores.projects.get(world.shop.project)).sso
    with pytest.raises(PipecdError, match="Enter the client secret again"):
        await world.use(world.shop, attack.after(world))
    assert (await world.plane.stores.projects.get(world.shop.project)).sso == stored


@pytest.mark.parametrize("sends_issuer", [False, True], ids=["without issuer", "with issuer"])
async def test_a_user_signs_in_with_the_provider_of_the_project(
    world: World, sends_issuer: bool
) -> None:
    world.honest.sends_issuer = sends_issuer
    await world.sign_in(world.olga, world.shop)
    assert await world.name_in_shop(world.olga) == OLGA


async def test_a_user_signs_in_with_github(world: World) -> None:
    await world.use(world.shop, world.on_github())
    await world.sign_in(world.olga, world.shop)
    assert await world.name_in_shop(world.olga) == OLGA


async def test_the_callback_may_be_registered_with_the_project(world: World) -> None:
    await world.use(world.shop, world.oidc(redirect_uri=world.callback(world.shop)))
    await world.sign_in(world.olga, world.shop)
    assert await world.name_in_shop(world.olga) == OLGA


async def test_other_settings_change_without_the_secret(world: World) -> None:
    await world.use(world.shop, world.oidc(client_secret="", scopes=["openid", "profile"]))
    await world.sign_in(world.olga, world.shop)
    assert await world.name_in_shop(world.olga) == OLGA


async def test_a_plain_secret_of_upstream_is_read(world: World) -> None:
    def store_plain(project: Project) -> None:
        project.sso.oidc.client_secret = OIDC_SECRET

    await world.plane.stores.projects.update(world.shop.project, store_plain)
    await world.sign_in(world.olga, world.shop)
    assert await world.name_in_shop(world.olga) == OLGA
