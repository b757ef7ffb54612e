# SPDX-License-Identifier: Apache-2.0
"""Whoever reads the database of a used installation finds no secret in it.

The attacker has every row of every table, for example from a backup, and neither the encryption key
nor the configuration of the control plane.
"""

import base64
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any, LiteralString, cast
from urllib.parse import parse_qs, urlsplit

import httpx2
import psycopg
import pymysql
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from sqlalchemy import select

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.console.app import create_console
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.schema import METADATA
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.controlplane.usecases.sso import SsoSettings
from pipecd.model.address import parse_networks
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.project_pb2 import Project, ProjectSSOConfig
from pipecd.secrets.keyfile import is_sealed
from pipecd.wire.outbound import OutboundPolicy
from servers.databases import MariaDb, Postgres
from servers.sso import OidcServer, serve_provider

KEY, STATE_KEY = b"the encryption key of this installation", "the state key of it"
SHOP, DEPOT = User("shop", "root", ("Admin",)), User("depot", "root", ("Admin",))
ENGINES = ("sqlite", "mariadb", "postgres")


@dataclass(frozen=True)
class Installation:
    """The secrets of an installation by name, and everything in its database."""

    secrets: dict[str, str]
    dump: str
    cases: UseCases
    projects: dict[str, Project]


@pytest.fixture(scope="module", params=ENGINES)
def spec(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DatastoreSpec:
    """An empty database of the engine."""
    name = f"secrets_{token_hex(4)}"
    match request.param:
        case "mariadb":
            server: MariaDb = request.getfixturevalue("mariadb")
            login: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root"}
            with pymysql.connect(**login, autocommit=True) as connection:
                connection.cursor().execute(f"CREATE DATABASE {name}")
            config = DatastoreConfig(url=f"root@tcp(127.0.0.1:{server.port})/{name}")
            return DatastoreSpec(type="MYSQL", config=config)
        case "postgres":
            postgres: Postgres = request.getfixturevalue("postgres")
            with (
                suppress(psycopg.errors.DuplicateDatabase),
                psycopg.connect(postgres.url("postgres"), autocommit=True) as connection,
            ):
                connection.execute(cast("LiteralString", f"CREATE DATABASE {name}"))
            return DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=postgres.url(name)))
        case _:
            path = tmp_path_factory.mktemp("data") / "pipecd.db"
            return DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=str(path)))


async def use_accounts(cases: UseCases) -> dict[str, str]:
    """Adds projects, pipeds and keys; rotates, disables and resets them."""
    first = await cases.projects.add("shop", "", StaticAdmin("root", "the-first-password"))
    generated = await cases.projects.add("depot", allow_stray_as_viewer=True)
    await cases.projects.set_static_admin("root", "the-second-password", by=SHOP)
    reset = await cases.projects.reset_admin("depot")
    piped = await cases.pipeds.register("dev", "", by=SHOP)
    second_key = await cases.pipeds.add_key(piped.id, by=SHOP)
    api_key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=SHOP)
    disabled = await cases.api_keys.generate("old", APIKey.READ_ONLY, by=SHOP)
    await cases.api_keys.disable(disabled.partition(".")[0], by=SHOP)
    await cases.webhooks.rotate(by=SHOP)
    (old_webhook,) = await cases.webhooks.secrets_of("shop")
    await cases.webhooks.rotate(by=SHOP)
    webhook = await cases.webhooks.settings(by=SHOP)
    assert webhook is not None
    assert webhook.secret is not None
    return {
        "the first password": first.password,
        "the password of the static admin": "the-second-password",
        "a generated password": generated.password,
        "a reset password": reset.password,
        "the first key of a piped": piped.key,
        "the second key of a piped": second_key,
        "an API key": api_key.partition(".")[2],
        "a disabled API key": disabled.partition(".")[2],
        "the webhook secret": webhook.secret,
        "the previous webhook secret": old_webhook,
    }


async def sign_in(cases: UseCases, bus: MemoryBus) -> dict[str, str]:
    """Signs in with OpenID Connect and a password, and signs out."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    provider = OidcServer(key, datetime.now(UTC))
    provider.claims = {"name": "olga", "roles": ["Viewer"]}
    github = ProjectSSOConfig.GitHub(client_id="github-client-id", client_secret="github-secret")
    await cases.projects.set_sso(
        ProjectSSOConfig(provider=ProjectSSOConfig.GITHUB, github=github), by=SHOP
    )
    settings = SsoSettings(
        "http://cp.example",
        STATE_KEY,
        KEY,
        outbound=OutboundPolicy(parse_networks(["127.0.0.0/8"])),
    )
    console = create_console(cases, bus, insecure_cookie=True, sso=settings)
    transport = httpx2.ASGITransport(app=console)
    async with (
        serve_provider(provider) as provider.issuer,
        httpx2.AsyncClient(transport=transport, base_url="http://cp.example") as browser,
        httpx2.AsyncClient() as client,
    ):
        oidc = ProjectSSOConfig.Oidc(
            client_id="client", client_secret="s:ecret%", issuer=provider.issuer
        )
        await cases.projects.set_sso(
            ProjectSSOConfig(provider=ProjectSSOConfig.OIDC, oidc=oidc), by=DEPOT
        )
        begun = await browser.post("/auth/login", data={"project": "depot"})
        cookie = browser.cookies["state"]
        callback = (await client.get(begun.headers["location"])).headers["location"]
        await browser.get(callback)
        session = browser.cookies["token"]
        await browser.post("/auth/logout")
    password = (await cases.sessions.sign_in("shop", "root", "the-second-password")).token
    query = {name: values[0] for name, values in parse_qs(urlsplit(callback).query).items()}
    challenge = parse_qs(urlsplit(begun.headers["location"]).query)
    return {
        "the client secret of GitHub": "github-secret",
        "the client id of GitHub": "github-client-id",
        "the client secret of OpenID Connect": "s:ecret%",
        "an ended session": session,
        "a session": password,
        "the signature of a session": session.rpartition(".")[2],
        "an authorization code": query["code"],
        "the state of a sign-in": query["state"].partition(":")[0],
        "the nonce of a sign-in": challenge["nonce"][0],
        "the cookie of a sign-in": cookie,
        "the state key": STATE_KEY,
        "the encryption key": KEY.decode(),
    }


async def dump(database: Database) -> str:
    rows: list[object] = []
    for table in METADATA.sorted_tables:
        rows += await database.query(select(*table.c))
    return "\n".join(map(repr, rows))


@pytest.fixture(scope="module")
async def installation(
    anyio_backend: str, spec: DatastoreSpec, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Installation]:
    del anyio_backend
    files, bus = await LocalFiles.open(tmp_path_factory.mktemp("files")), MemoryBus()
    async with open_datastore(spec) as database:
        stores = create_stores(database, files, MemoryCache())
        cases = build_use_cases(stores, bus, address="http://cp.example", encryption_key=KEY)
        secrets = {**await use_accounts(cases), **await sign_in(cases, bus)}
        projects = {project.id: project for project in await stores.projects.list()}
        yield Installation(secrets, await dump(database), cases, projects)


def plain(secret: str) -> str:
    return secret


def in_hex(secret: str) -> str:
    return secret.encode().hex()


def in_base64(secret: str) -> str:
    # Without the digits that depend on what is before and after the secret.
    return base64.b64encode(secret.encode()).decode()[:-4]


def fast_hash(secret: str) -> str:
    """A password can be guessed from a hash that is quick to compute."""
    return hashlib.sha256(secret.encode()).hexdigest()


@dataclass(frozen=True)
class Attack:
    """A secret that is looked for, and the forms in which finding it would be a gain."""

    secret: str
    forms: tuple[Callable[[str], str], ...] = (plain, in_hex, in_base64)


GUESSABLE = (plain, in_hex, in_base64, fast_hash)
ATTACKS: dict[str, Attack] = {
    name: Attack(name, forms)
    for forms, names in {
        GUESSABLE: (
            "the first password",
            "the password of the static admin",
            "a generated password",
            "a reset password",
            "the client secret of GitHub",
            "the client secret of OpenID Connect",
        ),
        (plain, in_hex, in_base64): (
            "the first key of a piped",
            "the second key of a piped",
            "an API key",
            "a disabled API key",
            "the webhook secret",
            "the previous webhook secret",
            "the client id of GitHub",
            "an ended session",
            "a session",
            "the signature of a session",
            "an authorization code",
            "the state of a sign-in",
            "the nonce of a sign-in",
            "the cookie of a sign-in",
            "the state key",
            "the encryption key",
        ),
    }.items()
    for name in names
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_the_database_does_not_contain(installation: Installation, attack: Attack) -> None:
    secret = installation.secrets[attack.secret]
    assert len(secret) >= 8, "too short to be looked for"
    for form in attack.forms:
        assert form(secret) not in installation.dump


async def test_the_dump_contains_what_is_no_secret(installation: Installation) -> None:
    assert set(ATTACKS) == set(installation.secrets)
    for text in ("depot", "shop", "root", "client"):
        assert text in installation.dump


async def test_the_installation_reads_its_own_secrets(installation: Installation) -> None:
    assert is_sealed(installation.projects["depot"].sso.oidc.client_secret)
    assert await installation.cases.projects.unseal_secrets() == 1
    stored = await installation.cases.projects.read("depot")
    assert stored.sso.oidc.client_secret == "s:ecret%"
    assert await installation.cases.projects.unseal_secrets() == 0
