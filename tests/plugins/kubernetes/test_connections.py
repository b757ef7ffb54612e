# SPDX-License-Identifier: Apache-2.0
"""Connections to API servers are shared and always closed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from typing import Any

import pytest

from pipecd.plugins.kubernetes import cluster
from pipecd.plugins.kubernetes.client import KubernetesClient, open_client
from pipecd.plugins.kubernetes.kubeconfig import Connection
from pipecd.plugins.kubernetes.stage_session import open_plugin_state
from pipecd.sdk import DeployTarget, PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost


async def test_a_call_that_is_cancelled_during_the_handshake_leaves_no_connection() -> None:
    greeted, left = asyncio.Event(), asyncio.Event()

    async def never_respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError):
            await reader.readexactly(1)
            greeted.set()
            await reader.read()
        left.set()

    server = await asyncio.start_server(never_respond, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, open_client(Connection(f"https://127.0.0.1:{port}")) as client:
        call = asyncio.create_task(client.get("/version"))
        async with asyncio.timeout(5):
            await greeted.wait()
            call.cancel()
            await left.wait()
        assert call.cancelled()


async def test_concurrent_first_uses_of_a_deploy_target_share_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[KubernetesClient] = []

    @asynccontextmanager
    async def open_slowly(
        connection: Connection, **options: Any
    ) -> AsyncIterator[KubernetesClient]:
        async with open_client(connection, **options) as client:
            opened.append(client)
            await asyncio.sleep(0)
            yield client

    monkeypatch.setattr(cluster, "open_client", open_slowly)
    targets = [DeployTarget(name, {}, {"masterURL": "http://127.0.0.1:1"}) for name in "aab"]
    async with AsyncExitStack() as lifetime:
        start = StartContext(PluginEntry("kubernetes"), MemoryHost(), lifetime)
        informers = open_plugin_state(start).informers
        started = await asyncio.gather(*(informers.informer(target) for target in targets))
    assert started[0] is started[1]
    assert [each.cluster.client for each in started[1:]] == opened
