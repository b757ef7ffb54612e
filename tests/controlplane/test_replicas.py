# SPDX-License-Identifier: Apache-2.0
"""Two servers on one database are one control plane."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import httpx2
import psycopg
import pymysql
import pytest
from structlog.testing import capture_logs

from pipecd.config.controlplane import (
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.operator_command import run_operation
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import AlreadyExists, Unauthenticated
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.wire.credentials import PipedToken
from servers.databases import MariaDb, Postgres, Redis


@pytest.fixture(params=["postgres", "postgres with redis", "mariadb"])
def datastore(request: pytest.FixtureRequest) -> Iterator[DatastoreSpec]:
    if request.param != "mariadb":
        server: Postgres = request.getfixturevalue("postgres")
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE replicas")
            yield DatastoreSpec(
                type="POSTGRESQL", config=DatastoreConfig(url=server.url("replicas"))
            )
            connection.execute("DROP DATABASE replicas")
    else:
        mariadb: MariaDb = request.getfixturevalue("mariadb")
        with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as other:
            other.cursor().execute("CREATE DATABASE replicas")
            url = f"root@tcp(127.0.0.1:{mariadb.port})/replicas"
            yield DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))
            other.cursor().execute("DROP DATABASE replicas")


def settings(datastore: DatastoreSpec, files: Path, cache_address: str) -> ServerSettings:
    filestore = FilestoreSpec(type="LOCAL", config=FilestoreConfig(path=str(files)))
    spec = ControlPlaneSpec(address="", state_key="s", datastore=datastore, filestore=filestore)
    return ServerSettings(
        spec,
        b"k" * 32,
        host="127.0.0.1",
        port=0,
        grace_period=1,
        cache_address=cache_address,
    )


@pytest.fixture
def chosen(
    datastore: DatastoreSpec, tmp_path: Path, request: pytest.FixtureRequest
) -> ServerSettings:
    """The settings of both servers: on PostgreSQL with and without a Redis, on MariaDB with one."""
    address = ""
    if request.node.callspec.params["datastore"] != "postgres":
        redis: Redis = request.getfixturevalue("redis")
        address = f"127.0.0.1:{redis.port}"
    return settings(datastore, tmp_path / "files", address)


@pytest.fixture
async def replicas(chosen: ServerSettings) -> AsyncIterator[tuple[ControlPlane, ControlPlane]]:
    """Two servers."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(control_plane(chosen))
        second = await stack.enter_async_context(control_plane(chosen))
        yield first, second


async def wait_until_connected(one: ControlPlane, two: ControlPlane) -> None:
    """Waits until signals flow from one to the other."""
    probe = Signal(Topic.REPOSITORY, "probe", "p")
    async with two.bus.subscribe() as signals, asyncio.timeout(10):
        receiving = asyncio.create_task(receive_until(signals, probe))
        while not receiving.done():
            await one.bus.publish(probe)
            await asyncio.wait({receiving}, timeout=0.02)


async def receive_until(signals: AsyncIterator[Signal], expected: Signal) -> None:
    async for signal in signals:
        if signal == expected:
            return


ADMIN = User(project="demo", name="admin", roles=("Admin",))
Authenticate = Callable[[UseCases], Awaitable[object]]
Revoke = Callable[[UseCases], Awaitable[None]]


async def api_key(cases: UseCases) -> tuple[Authenticate, Revoke]:
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=ADMIN)
    id = (await cases.credentials.api_key(key)).key_id
    return (
        lambda there: there.credentials.api_key(key),
        lambda here: here.api_keys.disable(id, by=ADMIN),
    )


async def piped(cases: UseCases) -> tuple[Authenticate, Revoke]:
    id, key = await cases.pipeds.register("edge", "", by=ADMIN)
    token = PipedToken("demo", id, key)
    return (
        lambda there: there.credentials.piped(token),
        lambda here: here.pipeds.disable(id, by=ADMIN),
    )


async def old_key_of_a_piped(cases: UseCases) -> tuple[Authenticate, Revoke]:
    id, key = await cases.pipeds.register("edge", "", by=ADMIN)
    token = PipedToken("demo", id, key)
    await cases.pipeds.add_key(id, by=ADMIN)
    return (
        lambda there: there.credentials.piped(token),
        lambda here: here.pipeds.delete_old_keys(id, by=ADMIN),
    )


async def session(cases: UseCases) -> tuple[Authenticate, Revoke]:
    token = (await cases.sessions.sign_in("demo", "admin", "hello")).token
    return lambda there: there.sessions.user(token), lambda here: here.sessions.end(token)


async def sessions_of_a_user(cases: UseCases) -> tuple[Authenticate, Revoke]:
    token = cases.sessions.issue(User("demo", "vera", ("Viewer",)))
    return (
        lambda there: there.sessions.user(token),
        lambda here: here.sessions.end_of_user("vera", by=ADMIN),
    )


async def password(cases: UseCases) -> tuple[Authenticate, Revoke]:
    token = (await cases.sessions.sign_in("demo", "admin", "hello")).token
    return (
        lambda there: there.sessions.user(token),
        lambda here: here.projects.set_static_admin("admin", "another", by=ADMIN),
    )


@pytest.mark.parametrize(
    "credential",
    [
        pytest.param(api_key, id="an API key"),
        pytest.param(piped, id="a piped"),
        pytest.param(old_key_of_a_piped, id="an old key of a piped"),
        pytest.param(session, id="a session of a user who signed out"),
        pytest.param(sessions_of_a_user, id="the sessions of a user"),
        pytest.param(password, id="a session of an old password"),
    ],
)
async def test_access_revoked_at_one_replica_ends_at_the_other_within_a_second(
    replicas: tuple[ControlPlane, ControlPlane],
    credential: Callable[[UseCases], Awaitable[tuple[Authenticate, Revoke]]],
) -> None:
    one, two = replicas
    await wait_until_connected(one, two)
    await one.cases.projects.add("demo", "", StaticAdmin("admin", "hello"))
    authenticate, revoke = await credential(one.cases)
    assert await authenticate(two.cases)
    await revoke(one.cases)
    async with asyncio.timeout(1):
        while True:
            try:
                await authenticate(two.cases)
            except Unauthenticated:
                break
            await asyncio.sleep(0.01)
    with pytest.raises(Unauthenticated):
        await authenticate(one.cases)


async def test_a_webhook_at_one_replica_wakes_pipeds_at_the_other(
    replicas: tuple[ControlPlane, ControlPlane],
) -> None:
    one, two = replicas
    await wait_until_connected(one, two)
    await one.cases.projects.add("demo", "", StaticAdmin("admin", "hello"))
    admin = User(project="demo", name="admin", roles=("Admin",))
    made = await one.cases.pipeds.register("dev", "", by=admin)
    site = ApplicationGitRepository(id="site", remote="git@host.example:org/site", branch="main")
    meta = ReportPipedMetaRequest(repositories=[site], config="{}")
    await one.cases.pipeds.report_meta(meta, by=PipedCaller("demo", made.id))
    await two.cases.webhooks.rotate(by=admin)
    (secret,) = await one.cases.webhooks.secrets_of("demo")
    url = f"http://127.0.0.1:{one.port}/webhooks/demo"
    body = b'{"object_kind":"push","project":{"git_http_url":"https://host.example/org/site"}}'
    headers = {"X-Gitlab-Event": "Push Hook", "X-Gitlab-Token": secret}
    async with two.bus.subscribe(project="demo") as signals, asyncio.timeout(5):
        async with httpx2.AsyncClient() as client:
            assert (await client.post(url, content=body, headers=headers)).status_code == 202
        await receive_until(signals, Signal(Topic.REPOSITORY, "site", "demo", made.id))


async def test_mysql_without_redis_warns_about_several_replicas(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        connection.cursor().execute("CREATE DATABASE alone")
        url = f"root@tcp(127.0.0.1:{mariadb.port})/alone"
        spec = DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))
        with capture_logs() as logs:
            async with control_plane(settings(spec, tmp_path, "")):
                pass
        connection.cursor().execute("DROP DATABASE alone")
    warnings = [
        entry for entry in logs if "without Redis replicas are not notified" in entry["event"]
    ]
    assert [entry["hint"] for entry in warnings] == [
        "set the same --cache-address for all, or run one replica"
    ]


async def test_what_the_operator_changes_is_known_at_every_replica_within_a_second(
    replicas: tuple[ControlPlane, ControlPlane], chosen: ServerSettings
) -> None:
    one, two = replicas
    await wait_until_connected(one, two)

    async def run(operation: str, **arguments: str) -> list[dict[str, str]]:
        return await run_operation(chosen.spec, chosen.cache_address, operation, arguments)

    await run("add-project", id="demo", description="", username="a", password="", shared_sso="")
    with pytest.raises(AlreadyExists):
        await run(
            "add-project", id="demo", description="", username="a", password="", shared_sso=""
        )
    [added] = await run("add-api-key", project="demo", name="ci", role="READ_WRITE")
    for plane in replicas:
        assert (await plane.cases.api_keys.verify(added["key"])).project == "demo"
    await run("disable-api-key", project="demo", id=added["key"].partition(".")[0])
    async with asyncio.timeout(1):
        for plane in replicas:
            with suppress(Unauthenticated):
                while True:
                    await plane.cases.api_keys.verify(added["key"])
                    await asyncio.sleep(0.01)
