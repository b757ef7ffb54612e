# SPDX-License-Identifier: Apache-2.0
"""A webhook reaches the wake-up stream of the piped that watches the repository."""

import asyncio
import hmac
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest
from pipecd.wire.channel import open_channel
from pipecd.wire.credentials import piped_token
from servers.control_plane import StartControlPlane

REPOSITORY = {"clone_url": "https://github.com/shop/site.git"}
PUSH = json.dumps({"ref": "refs/heads/main", "repository": REPOSITORY}).encode()
WATCH = "/grpc.service.pipedservice.PipedService/WatchWakeups"


@dataclass(frozen=True)
class Listener:
    """The wake-ups that one piped receives."""

    wakeups: "asyncio.Queue[Wakeup]"

    async def repository(self) -> str:
        async with asyncio.timeout(5):
            while (wakeup := await self.wakeups.get()).kind != Wakeup.REPOSITORY:
                pass
        return wakeup.repository


@asynccontextmanager
async def listening(address: str, token: str) -> AsyncGenerator[Listener]:
    """Opens the stream of a piped and waits until it is up."""
    async with open_channel(address, authorization=token, insecure=True) as channel:
        watch: Any = channel.unary_stream(
            WATCH,
            request_serializer=WatchWakeupsRequest.SerializeToString,
            response_deserializer=Wakeup.FromString,
        )
        call = watch(WatchWakeupsRequest())
        listener = Listener(asyncio.Queue())

        async def collect() -> None:
            async for wakeup in call:
                listener.wakeups.put_nowait(wakeup)

        task = asyncio.ensure_future(collect())
        try:
            async with asyncio.timeout(5):
                assert (await listener.wakeups.get()).kind == Wakeup.CONNECTED
            yield listener
        finally:
            call.cancel()
            task.cancel()
            await asyncio.wait({task})


async def test_a_push_to_the_shared_port_reaches_the_stream_of_a_piped(
    start_plane: StartControlPlane,
) -> None:
    async with AsyncExitStack() as stack:
        plane = await stack.enter_async_context(start_plane(metrics=True))
        cases, admin = plane.running.cases, plane.admin
        made = await cases.pipeds.register("dev", "", by=admin)
        token = piped_token("demo", made.id, made.key)
        channel = await stack.enter_async_context(
            open_channel(plane.address, authorization=token, insecure=True)
        )
        site = ApplicationGitRepository(
            id="site", remote="git@github.com:shop/site.git", branch="main"
        )
        await PipedServiceStub(channel).ReportPipedMeta(
            ReportPipedMetaRequest(version="1", config="{}", repositories=[site])
        )
        await cases.webhooks.rotate(by=admin)
        (secret,) = await cases.webhooks.secrets_of("demo")
        digest = hmac.digest(secret.encode(), PUSH, "sha256").hex()
        headers = {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={digest}"}
        listener = await stack.enter_async_context(listening(plane.address, token))
        async with httpx2.AsyncClient() as client:
            url = f"http://{plane.address}/webhooks/demo"
            response = await client.post(url, content=PUSH, headers=headers)
        assert response.status_code == 202
        assert await listener.repository() == "site"
