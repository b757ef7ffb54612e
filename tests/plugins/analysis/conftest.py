# SPDX-License-Identifier: Apache-2.0
"""A web server that answers as a test says, and a bench for the plugin that asks it."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest

from pipecd.plugins.analysis.plugin import PLUGIN
from pipecd.sdk import PluginEntry
from pipecd.sdk.testing import StageBench


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def query(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(urlsplit(self.target).query).items()}

    @property
    def form(self) -> dict[str, str]:
        return {k: v[0] for k, v in parse_qs(self.body.decode()).items()}

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Asked], tuple[int, Any]]


@dataclass
class Web:
    """The server; an answer of no words is one that never comes."""

    answer: Answer
    url: str = ""
    asked: list[Asked] = field(default_factory=list[Asked])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.rstrip().split("\r\n")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = first.split()
            asked = Asked(method, target, headers, body)
            self.asked.append(asked)
            code, content = self.answer(asked)
            if content is None:
                await reader.read()
                return
            data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            more = f"Location: {content}\r\n" if code == 302 else ""
            description = f"Content-Length: {len(data)}\r\nConnection: close\r\n{more}"
            writer.write(f"HTTP/1.1 {code} told\r\n{description}\r\n".encode() + data)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            """A stopped stage hangs up at any time."""
        finally:
            writer.close()


@pytest.fixture
def web() -> Callable[[Answer], AbstractAsyncContextManager[Web]]:
    """Opens a server for a block."""

    @asynccontextmanager
    async def opened(answer: Answer) -> AsyncGenerator[Web, None]:
        made = Web(answer)
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield made
        finally:
            server.close()

    return opened


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with httpx2.AsyncClient() as made:
        yield made


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., StageBench]:
    def made(url: str = "http://127.0.0.1:1", **changes: Any) -> StageBench:
        provider = {"name": "prom", "type": "PROMETHEUS", "config": {"address": url}}
        entry = PluginEntry("analysis", {"analysisProviders": [provider]})
        return StageBench(changes.pop("plugin", None) or PLUGIN(), tmp_path, entry, **changes)

    return made
