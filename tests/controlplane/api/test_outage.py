# SPDX-License-Identifier: Apache-2.0
"""Outages of the database, Redis and the bucket: errors are correct, and no data is lost.

`PIPECD_TEST_OUTAGE_SECONDS` makes the outages longer than the suite has time for.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx2
import psycopg
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pipecd.config.controlplane import (
    ApplicationInsightSpec,
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
    InsightCollectorSpec,
)
from pipecd.controlplane.api import api_service, piped_service, web_authorization
from pipecd.controlplane.app import ControlPlane, Ports, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import StorageUnavailable
from pipecd.model.ids import new_id
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import piped_pb2, web_pb2
from pipecd.wire.credentials import api_key, piped_token
from servers.databases import Postgres, Redis
from servers.objects import S3
from servers.server import free_ports

AWAY_SECONDS = float(os.environ.get("PIPECD_TEST_OUTAGE_SECONDS", "1.0"))
BACK_WITHIN = 10.0
ADMIN = User(project="demo", name="admin", roles=("Admin",))
SERVICES = (piped_service.SERVICE, api_service.SERVICE, web_authorization.SERVICE)
OK, UNAVAILABLE = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE

Fill = Callable[[Message], Message]


class Gate:
    """A TCP proxy to a server, which can be closed and opened again on the same port."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, back}
        async with asyncio.TaskGroup() as ways:
            ways.create_task(self._copy(reader, back))
            ways.create_task(self._copy(there, writer))
        self._open -= {writer, back}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while part := await reader.read(65536):
                writer.write(part)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()


@dataclass
class Rig:
    """A control plane on servers that can be stopped, and callers of each service."""

    running: ControlPlane
    channel: grpc.aio.Channel
    admin_port: int
    authorization: dict[str, tuple[tuple[str, str], ...]]
    application: str
    piped: str
    gate: Gate

    async def call(self, method: str, request: Message) -> tuple[grpc.StatusCode, Any]:
        service, _, name = method.rpartition(".")
        answer: Any = self.channel.unary_unary(f"/{service}/{name}")
        metadata = self.authorization[service]
        try:
            return OK, await answer(request.SerializeToString(), metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as e:
            return e.code(), e.details()

    async def codes(self, minimal_message: Fill) -> dict[str, grpc.StatusCode]:
        """The status code of every RPC for its smallest valid request."""
        rpcs = [rpc for service in SERVICES for rpc in service.methods]

        async def one(rpc: Any) -> grpc.StatusCode:
            request = minimal_message(GetMessageClass(rpc.input_type)())
            code, details = await self.call(rpc.full_name, request)
            # The error must not reveal which store is unavailable.
            assert code is not UNAVAILABLE or details == StorageUnavailable.PUBLIC_MESSAGE
            return code

        answers = await asyncio.gather(*map(one, rpcs))
        return {rpc.full_name: code for rpc, code in zip(rpcs, answers, strict=True)}

    async def created(self) -> str | None:
        """Creates a deployment and returns its id."""
        deployment = self.deployment()
        request = piped_pb2.CreateDeploymentRequest(deployment=deployment)
        code, _ = await self.call(f"{piped_service.SERVICE.full_name}.CreateDeployment", request)
        assert code in (OK, UNAVAILABLE)
        return deployment.id if code is OK else None

    def deployment(self) -> Deployment:
        commit = Commit(hash="c0", message="m", author="a", branch="main", created_at=1)
        repo = common.ApplicationGitRepository(id="site")
        return Deployment(
            id=new_id(),
            application_id=self.application,
            application_name="cart",
            piped_id=self.piped,
            project_id="demo",
            git_path=common.ApplicationGitPath(repo=repo, path="apps/cart"),
            trigger=DeploymentTrigger(commit=commit, timestamp=1),
        )

    async def admin_page(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient() as http:
            return await http.get(f"http://127.0.0.1:{self.admin_port}{path}", timeout=10)

    async def health(self) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=""))).status


@pytest.fixture
def datastore(postgres: Postgres) -> Iterator[DatastoreSpec]:
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE outage")
    yield DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=postgres.url("outage")))
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
        connection.execute("DROP DATABASE outage WITH (FORCE)")


@pytest.fixture
async def rig(datastore: DatastoreSpec, redis: Redis, s3: S3, tmp_path: Path) -> AsyncIterator[Rig]:
    (key := tmp_path / "key").write_text("key")
    gate = Gate(int(s3.url.rpartition(":")[2]))
    await gate.start()
    config = FilestoreConfig(
        endpoint=f"http://127.0.0.1:{gate.port}",
        bucket=f"b-{new_id()}",
        access_key_file=str(key),
        secret_key_file=str(key),
        auto_create_bucket=True,
    )
    # Application counts are read from the bucket after the first collection.
    no_counts = InsightCollectorSpec(application=ApplicationInsightSpec(enabled=False))
    spec = ControlPlaneSpec(
        address="http://127.0.0.1",
        state_key="s",
        datastore=datastore,
        filestore=FilestoreSpec(type="MINIO", config=config),
        insight_collector=no_counts,
    )
    ports = Ports(*free_ports(6))
    settings = ServerSettings(
        spec,
        b"k" * 32,
        host="127.0.0.1",
        port=0,
        ports=ports,
        grace_period=1,
        cache_address=f"127.0.0.1:{redis.port}",
    )
    async with (
        control_plane(settings) as running,
        grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel,
    ):
        yield await furnished(running, channel, ports.admin, gate)
        await gate.stop()


async def furnished(
    running: ControlPlane, channel: grpc.aio.Channel, admin_port: int, gate: Gate
) -> Rig:
    cases = running.cases
    await cases.projects.add("demo", "", StaticAdmin("admin", "hello"))
    registered = await cases.pipeds.register("edge", "", by=ADMIN)
    repo = common.ApplicationGitRepository(id="site", remote="git@h:o/r", branch="main")
    await running.stores.pipeds.update(registered.id, lambda p: p.repositories.append(repo))
    draft = Application(
        name="cart",
        piped_id=registered.id,
        git_path=common.ApplicationGitPath(repo=repo, path="apps/cart"),
        platform_provider="k8s",
    )
    application = await cases.applications.add(draft, by=ADMIN)
    key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, by=ADMIN)
    token = piped_token("demo", registered.id, registered.key)
    return Rig(
        running=running,
        channel=channel,
        admin_port=admin_port,
        authorization={
            piped_service.SERVICE.full_name: (("authorization", token),),
            api_service.SERVICE.full_name: (("authorization", api_key(key)),),
            web_authorization.SERVICE.full_name: (
                ("cookie", f"token={cases.sessions.issue(ADMIN)}"),
            ),
        },
        application=application,
        piped=registered.id,
        gate=gate,
    )


@asynccontextmanager
async def creating(rig: Rig) -> AsyncIterator[list[str]]:
    """Creates deployments continuously; the list contains the acknowledged ones."""
    acknowledged: list[str] = []

    async def go_on() -> None:
        while True:
            if (id := await rig.created()) is not None:
                acknowledged.append(id)
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        going = [tasks.create_task(go_on()) for _ in range(4)]
        yield acknowledged
        for task in going:
            task.cancel()


async def within(seconds: float, is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(seconds):
        while True:
            if await is_so():
                return
            await asyncio.sleep(0.05)


# RPCs that need no database: the cache, the bucket or memory answers them, their smallest request
# is empty, or they are refused before any read.
WITHOUT_DATABASE = {
    "APIService.GetPlanPreviewResults": OK,
    "PipedService.ReportApplicationLiveStateEvents": OK,
    "PipedService.ReportDeploymentCompleted": grpc.StatusCode.INVALID_ARGUMENT,
    "PipedService.ReportEventStatuses": OK,
    "PipedService.ReportStat": OK,
    "PipedService.ReportUnregisteredApplicationConfigurations": OK,
    "PipedService.UpdateApplicationConfigurations": OK,
    "WebService.GetInsightApplicationCount": grpc.StatusCode.NOT_FOUND,
    "WebService.GetInsightData": OK,
    "WebService.GetMe": OK,
    "WebService.ListDeprecatedNotes": OK,
    "WebService.ListUnregisteredApplications": OK,
    "WebService.RegisterPiped": grpc.StatusCode.INVALID_ARGUMENT,
}


async def test_during_a_database_outage_every_call_is_unavailable_and_no_data_is_lost(
    rig: Rig, postgres: Postgres, minimal_message: Fill
) -> None:
    assert INTERNAL_CODES.isdisjoint((await rig.codes(minimal_message)).values())
    async with creating(rig) as acknowledged:
        await within(5, lambda: grown(acknowledged, 20))
        postgres.stop()
        try:
            await away(rig, minimal_message)
            await asyncio.sleep(AWAY_SECONDS)
            await away(rig, minimal_message)
        finally:
            await asyncio.to_thread(postgres.start)
        seen = len(acknowledged)
        await within(BACK_WITHIN, lambda: grown(acknowledged, seen + 20))
    stored = await rig.running.stores.deployments.get_many(tuple(acknowledged))
    assert set(stored) == set(acknowledged)
    await within(BACK_WITHIN, lambda: is_ready(rig))
    assert await rig.health() == health_pb2.HealthCheckResponse.SERVING
    assert UNAVAILABLE not in (await rig.codes(minimal_message)).values()


INTERNAL_CODES = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}


async def away(rig: Rig, minimal_message: Fill) -> None:
    """Asserts that every call reports the database as unavailable."""
    codes = await rig.codes(minimal_message)
    others = {
        ".".join(name.split(".")[-2:]): code
        for name, code in codes.items()
        if code is not UNAVAILABLE
    }
    # After the cached credentials expire, these calls fail as well.
    assert others.items() <= WITHOUT_DATABASE.items()
    page = await rig.admin_page("/readyz")
    assert page.status_code == 503
    assert page.text.startswith("datastore: ")
    assert "filestore: ok" in page.text
    assert (await rig.admin_page("/healthz")).text == "ok"
    assert await rig.health() == health_pb2.HealthCheckResponse.NOT_SERVING


async def is_ready(rig: Rig) -> bool:
    return (await rig.admin_page("/readyz")).status_code == 200


async def grown(acknowledged: list[str], to: int) -> bool:
    return len(acknowledged) >= to


async def test_during_a_redis_outage_no_call_is_unavailable(
    rig: Rig, redis: Redis, minimal_message: Fill
) -> None:
    async with creating(rig) as acknowledged:
        redis.stop()
        try:
            codes = set((await rig.codes(minimal_message)).values())
            assert codes.isdisjoint({UNAVAILABLE, *INTERNAL_CODES})
            await asyncio.sleep(AWAY_SECONDS)
            page = await rig.admin_page("/readyz")
            assert page.status_code == 200
            assert "cache: not reachable" in page.text
            assert len(acknowledged) > 10
        finally:
            await asyncio.to_thread(redis.start)
    stored = await rig.running.stores.deployments.get_many(tuple(acknowledged))
    assert set(stored) == set(acknowledged)

    async def is_back() -> bool:
        return "cache: ok" in (await rig.admin_page("/readyz")).text

    await within(BACK_WITHIN, is_back)


async def test_during_a_bucket_outage_only_calls_that_need_it_fail(
    rig: Rig, minimal_message: Fill
) -> None:
    deployment = rig.deployment()
    await rig.running.cases.deployment_reports.create(deployment, by=PipedCaller("demo", rig.piped))
    request = piped_pb2.ReportStageLogsRequest(
        deployment_id=deployment.id, stage_id="s1", blocks=[block(1)]
    )
    report = f"{piped_service.SERVICE.full_name}.ReportStageLogs"
    checkpoint = f"{piped_service.SERVICE.full_name}.ReportStageLogsFromLastCheckpoint"
    whole = piped_pb2.ReportStageLogsFromLastCheckpointRequest(
        deployment_id=deployment.id, stage_id="s1", blocks=[block(1), block(2)], completed=True
    )
    assert (await rig.call(report, request))[0] is OK
    await rig.gate.stop()
    codes = await rig.codes(minimal_message)
    assert INTERNAL_CODES.isdisjoint(codes.values())
    assert (await rig.call(checkpoint, whole))[0] is UNAVAILABLE
    # Log blocks between two checkpoints are stored in the database.
    request.blocks[0].CopyFrom(block(3))
    assert (await rig.call(report, request))[0] is OK
    await asyncio.sleep(AWAY_SECONDS)
    page = await rig.admin_page("/readyz")
    assert page.status_code == 503
    assert "datastore: ok" in page.text
    await rig.gate.start()

    async def is_taken() -> bool:
        return (await rig.call(checkpoint, whole))[0] is OK

    await within(2 * BACK_WITHIN, is_taken)
    read = web_pb2.GetStageLogRequest(deployment_id=deployment.id, stage_id="s1")
    code, answer = await rig.call(f"{web_authorization.SERVICE.full_name}.GetStageLog", read)
    assert code is OK
    log = web_pb2.GetStageLogResponse.FromString(answer)
    assert [b.index for b in log.blocks] == [1, 2, 3]
    assert log.completed


def block(index: int) -> LogBlock:
    return LogBlock(index=index, log=f"line {index}", created_at=1)
