# SPDX-License-Identifier: Apache-2.0
"""A web server with scripted responses, and a bench for the plugin that queries it."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

import httpx2
import pytest

from pipecd.plugins.analysis.plugin import AnalysisPlugin
from pipecd.sdk import PluginEntry, StageResult
from pipecd.sdk.testing import APPLICATION, MemoryHost, StageBench
from servers.web import Answer, Request, WebServer

Respond = Callable[[Request], tuple[int, Any]]
"""Returns the status code and the body: text, a value for JSON, or None to never respond."""


class ScriptedServer(WebServer):
    """Responds with the results of a function and records the requests."""

    def __init__(self, respond: Respond) -> None:
        self.requests: list[Request] = []
        self._respond, self._closing = respond, threading.Event()
        super().__init__()

    def answer(self, request: Request) -> Answer | None:
        self.requests.append(request)
        code, body = self._respond(request)
        if body is None:
            self._closing.wait()
            return None
        content = body if isinstance(body, str) else json.dumps(body)
        return Answer(code, content.encode(), {"Location": content} if code == 302 else {})

    def close(self) -> None:
        self._closing.set()
        super().close()


Serve = Callable[[Respond], AbstractContextManager[ScriptedServer]]


def form(request: Request) -> dict[str, str]:
    """Returns the fields of a form in the body."""
    return dict(parse_qsl(request.body.decode()))


@pytest.fixture
def serve() -> Serve:
    """Starts a server: `with serve(respond) as server`."""

    @contextmanager
    def serving(respond: Respond) -> Iterator[ScriptedServer]:
        server = ScriptedServer(respond)
        try:
            yield server
        finally:
            server.close()

    return serving


@pytest.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient, None]:
    async with httpx2.AsyncClient() as opened:
        yield opened


class MakeBench(Protocol):
    """Creates a bench whose provider `prom` is at an address."""

    def __call__(
        self,
        url: str = "http://127.0.0.1:1",
        *,
        plugin: AnalysisPlugin | None = None,
        host: MemoryHost | None = None,
        config: str = APPLICATION,
    ) -> StageBench: ...


@pytest.fixture
def make_bench(tmp_path: Path) -> MakeBench:
    def make(
        url: str = "http://127.0.0.1:1",
        *,
        plugin: AnalysisPlugin | None = None,
        host: MemoryHost | None = None,
        config: str = APPLICATION,
    ) -> StageBench:
        provider = {"name": "prom", "type": "PROMETHEUS", "config": {"address": url}}
        entry = PluginEntry("analysis", {"analysisProviders": [provider]})
        return StageBench(
            plugin or AnalysisPlugin(), tmp_path, entry, host=host or MemoryHost(), config=config
        )

    return make


def metric(**changes: Any) -> dict[str, Any]:
    """Returns a check of the query `errors`, which must be at most 1."""
    return {
        "provider": "prom", "query": "errors", "interval": "20ms", "expected": {"max": 1}, **changes
    }  # fmt: skip


async def run(bench: StageBench, duration: str, *metrics: Any, **options: Any) -> StageResult:
    """Runs the stage ANALYSIS with checks of metrics and other options."""
    async with asyncio.timeout(10):
        return await bench.run("ANALYSIS", {"duration": duration, "metrics": metrics, **options})
