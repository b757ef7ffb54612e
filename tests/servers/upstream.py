# SPDX-License-Identifier: Apache-2.0
"""Upstream's control plane on Dolt, Redis and S3."""

import asyncio
import json
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import bcrypt
import grpc
import grpc.aio
import httpx2
import pymysql
from google.protobuf import message_factory
from google.protobuf.message import Message

from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import web_pb2
from servers.databases import Dolt, Redis
from servers.installation import Installation, Program
from servers.objects import S3
from servers.origin import Origin
from servers.programs import OUR_PIPECD
from servers.server import Server, free_port

KEY = "k" * 32
PASSWORD = "hello-demo"
SERVICE = web_pb2.DESCRIPTOR.services_by_name["WebService"]
FLAGS = (
    "piped-api-port",
    "web-api-port",
    "http-port",
    "api-port",
    "admin-port",
    "envoy-authz-port",
)


class UpstreamPlane(Server):
    """A control plane of upstream with the project demo and its administrator."""

    def __init__(self, program: Path, stores: tuple[Dolt, Redis, S3], name: str) -> None:
        self.given, self.name = str(program), name
        self.dolt, self.redis, self.s3 = stores
        self.ports = {flag: free_port() for flag in FLAGS}
        super().__init__()

    def find_program(self) -> str:
        return self.given

    def prepare(self) -> None:
        super().prepare()
        place: dict[str, Any] = {"host": "127.0.0.1", "port": self.dolt.port, "user": "root"}
        with pymysql.connect(**place, autocommit=True) as connection:
            connection.cursor().execute(f"CREATE DATABASE `{self.name}`")
        self.data.joinpath("key").write_text(KEY)
        self.data.joinpath("access").write_text("access")
        document = {
            "apiVersion": "pipecd.dev/v1beta1",
            "kind": "ControlPlane",
            "spec": self._spec(),
        }
        self.config.write_text(json.dumps(document))
        self._create_tables()

    def _create_tables(self) -> None:
        """Upstream's tables as upstream creates them, and what Dolt made it give up, by ours."""
        ports = (f"--http-port={free_port()}", f"--admin-port={free_port()}")
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [self.program, "ops", *self._common(), *ports],
                capture_output=True,
                timeout=20,
                check=False,
            )

        async def complete() -> None:
            spec = read_control_plane(self.config.read_bytes(), file=str(self.config))
            async with open_datastore(spec.datastore):
                pass

        asyncio.run(complete())

    @property
    def config(self) -> Path:
        """The file of the control plane; ours reads it too."""
        return self.data / "control-plane.yaml"

    def command(self) -> Sequence[str]:
        return [
            self.program,
            "server",
            *self._common(),
            f"--encryption-key-file={self.data}/key",
            "--insecure-cookie=true",
            *(f"--{flag}={port}" for flag, port in self.ports.items()),
        ]

    def is_up(self) -> bool:
        return all(self.answers(port) for port in self.ports.values())

    def _common(self) -> Sequence[str]:
        return [f"--config-file={self.config}", f"--cache-address=127.0.0.1:{self.redis.port}"]

    def _spec(self) -> dict[str, Any]:
        secret = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        database = {"url": f"root@tcp(127.0.0.1:{self.dolt.port})", "database": self.name}
        bucket = {
            "endpoint": self.s3.url,
            "bucket": self.name,
            "accessKeyFile": f"{self.data}/access",
            "secretKeyFile": f"{self.data}/access",
            "autoCreateBucket": True,
        }
        admin = {"username": "admin", "passwordHash": secret}
        return {
            "address": f"http://127.0.0.1:{self.ports['http-port']}",
            "stateKey": "state",
            "datastore": {"type": "MYSQL", "config": database},
            "filestore": {"type": "MINIO", "config": bucket},
            "projects": [{"id": "demo", "staticAdmin": admin}],
        }


class Visitor:
    """The administrator of a project in front of a control plane, ours or theirs."""

    def __init__(self, pages: str, web_api: str) -> None:
        self.pages, self.web_api = pages, web_api
        self._token = ""

    async def sign_in(
        self, project: str = "demo", username: str = "admin", password: str = PASSWORD
    ) -> None:
        typed = {"project": project, "username": username, "password": password}
        async with httpx2.AsyncClient() as http:
            reply = await http.post(f"{self.pages}/auth/login/static", data=typed)
        self._token = reply.cookies["token"]

    async def call(self, rpc: str, request: Message) -> Any:
        """One call of WebService."""
        answer = message_factory.GetMessageClass(SERVICE.methods_by_name[rpc].output_type)
        async with grpc.aio.insecure_channel(self.web_api) as channel:
            method: Any = channel.unary_unary(
                f"/{SERVICE.full_name}/{rpc}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return await method(request, metadata=(("cookie", f"token={self._token}"),))


class UpstreamInstallation(Installation):
    """A control plane of upstream, and the programs that are tried on it."""

    def __init__(self, plane: UpstreamPlane, origin: Origin, directory: Path) -> None:
        super().__init__(origin, directory)
        self.plane = plane
        self.address = f"127.0.0.1:{plane.ports['piped-api-port']}"
        pages = f"http://127.0.0.1:{plane.ports['http-port']}"
        self.admin = Visitor(pages, f"127.0.0.1:{plane.ports['web-api-port']}")

    @property
    def api_address(self) -> str:
        """Where pipectl finds the control plane."""
        return f"127.0.0.1:{self.plane.ports['api-port']}"

    async def api_key(self) -> str:
        """A new key that may do everything."""
        request = web_pb2.GenerateAPIKeyRequest(name="tests", role=APIKey.READ_WRITE)
        return (await self.admin.call("GenerateAPIKey", request)).key

    @asynccontextmanager
    async def ours_on_the_same_stores(self) -> AsyncGenerator[tuple[Visitor, str], None]:
        """A control plane of ours beside it: its administrator, signed in, and its address."""
        async with self.our_control_plane() as running:
            address = f"127.0.0.1:{running.port}"
            admin = Visitor(f"http://{address}", address)
            await admin.sign_in()
            yield admin, address

    @asynccontextmanager
    async def our_control_plane(
        self, *, with_ops: bool = True
    ) -> AsyncGenerator[ControlPlane, None]:
        """Runs a control plane of ours on its stores, with its configuration and key."""
        file = self.plane.config
        spec = read_control_plane(await asyncio.to_thread(file.read_bytes), file=str(file))
        settings = ServerSettings(
            spec,
            KEY.encode(),
            host="127.0.0.1",
            port=0,
            insecure_cookie=True,
            cache_address=f"127.0.0.1:{self.plane.redis.port}",
            with_ops=with_ops,
        )
        async with control_plane(settings) as running:
            yield running

    def ops(self) -> AbstractAsyncContextManager[Program]:
        """Runs our background jobs on its stores; upstream's fail because of the indexes of Dolt."""
        cache = f"--cache-address=127.0.0.1:{self.plane.redis.port}"
        ports = ("--http-port=0", "--admin-port=0")
        return self.running(OUR_PIPECD, "ops", f"--config-file={self.plane.config}", cache, *ports)

    async def register(self, name: str) -> tuple[str, str]:
        made = await self.admin.call("RegisterPiped", web_pb2.RegisterPipedRequest(name=name))
        return made.id, made.key

    async def deployments(self) -> list[Deployment]:
        request = web_pb2.ListDeploymentsRequest(page_size=100)
        return list((await self.admin.call("ListDeployments", request)).deployments)

    async def add_application(self, path: str, draft: Application) -> str:
        """Registers an application once its piped has reported its repositories."""
        repository = ApplicationGitRepository(id="site", remote=self.origin.remote, branch="main")
        place = ApplicationGitPath(repo=repository, path=path, config_filename="app.pipecd.yaml")
        request = web_pb2.AddApplicationRequest(
            name=draft.name,
            piped_id=draft.piped_id,
            git_path=place,
            kind=draft.kind,
            platform_provider=draft.platform_provider,
            deploy_targets_by_plugin=draft.deploy_targets_by_plugin,
            labels=draft.labels,
        )
        return (await self.admin.call("AddApplication", request)).application_id

    async def approve(self, deployment: str, stage: str) -> None:
        request = web_pb2.ApproveStageRequest(deployment_id=deployment, stage_id=stage)
        await self.admin.call("ApproveStage", request)

    async def introduced(self, piped_id: str) -> Any:
        """Returns a piped once it has reported its metadata."""
        request = web_pb2.ListPipedsRequest(with_status=True)
        listed = (await self.admin.call("ListPipeds", request)).pipeds
        return next((p for p in listed if p.id == piped_id and p.started_at), None)

    async def logs(self, deployment: Deployment) -> dict[str, str]:
        """The whole log of every stage, by the name of the stage."""

        async def log(stage: str) -> str:
            request = web_pb2.GetStageLogRequest(deployment_id=deployment.id, stage_id=stage)
            try:
                answer = await self.admin.call("GetStageLog", request)
            except grpc.aio.AioRpcError as e:
                # A stage that has not run has none.
                if e.code() is grpc.StatusCode.NOT_FOUND:
                    return ""
                raise
            return "\n".join(block.log for block in answer.blocks)

        texts = await asyncio.gather(*(log(stage.id) for stage in deployment.stages))
        return {s.name: text for s, text in zip(deployment.stages, texts, strict=True)}
