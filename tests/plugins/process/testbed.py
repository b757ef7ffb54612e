# SPDX-License-Identifier: Apache-2.0
"""A small web service that the plugin deploys for real; its commits are directories."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.plugins.process.client import SupervisorClient
from pipecd.plugins.process.instance import ApplicationStatus
from pipecd.plugins.process.plugin import ProcessPlugin
from pipecd.sdk import DeployTarget, PluginEntry
from pipecd.sdk.testing import MemoryHost, StageBench

# A server that needs no slow import; it answers with its commit, and with 500 for bad commits.
SERVICE = """
import os, socket, threading
status = os.environ.get("STATUS", "200 OK")
body = os.environ["PIPECD_COMMIT"].encode()
answer = f"HTTP/1.1 {status}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n".encode() + body
healthy = b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"
print("serving", body.decode(), flush=True)

def serve(connection):
    with connection:
        received = b""
        while True:
            part = connection.recv(65536)
            if not part:
                return
            received += part
            while b"\\r\\n\\r\\n" in received:
                head, _, received = received.partition(b"\\r\\n\\r\\n")
                connection.sendall(healthy if b"/healthz" in head else answer)

server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@dataclass
class Service:
    """The application, deployed by one plugin to one directory."""

    directory: Path
    plugin: ProcessPlugin
    port: int
    host: MemoryHost = field(default_factory=MemoryHost)
    input: dict[str, Any] = field(default_factory=dict[str, Any])
    target: dict[str, Any] = field(default_factory=dict[str, Any])
    application_id: str = "app-1"

    @property
    def entry(self) -> PluginEntry:
        target = {"directory": str(self.directory / "target"), **self.target}
        return PluginEntry("process", {}, (DeployTarget("here", {}, target),))

    @property
    def client(self) -> SupervisorClient:
        return SupervisorClient.at(self.directory / "target")

    def commit(
        self,
        name: str,
        files: Mapping[str, str] | None = None,
        *,
        running: StageBench | None = None,
        **input: Any,
    ) -> StageBench:
        """Returns the bench of a commit with these files and settings."""
        given = {
            "command": "python3",
            "args": ["-S", "server.py"],
            "port": self.port,
            "healthCheck": {"path": "/healthz", "interval": "200ms", "timeout": "20s"},
            "gracePeriod": "5s",
            **self.input,
            **input,
        }
        spec = {"name": "tested", "plugins": {"process": {"input": given}}}
        document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
        config = json.dumps(document)
        directory = self.directory / "repository" / name
        contents = {"app.pipecd.yaml": config, "server.py": SERVICE, **(files or {})}
        for file, content in contents.items():
            path = directory / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return StageBench(
            self.plugin,
            directory,
            entry=self.entry,
            host=self.host,
            commit=name,
            config=config,
            application_id=self.application_id,
            running=running,
        )

    async def status(self) -> ApplicationStatus:
        """Returns what runs."""
        status = await self.client.status(self.application_id)
        assert status is not None
        return status

    async def pids(self, variant: str = "primary") -> list[int]:
        """Returns the processes of a variant."""
        return [instance.pid for instance in (await self.status()).of(variant)]

    async def started(self, variant: str = "primary") -> list[int]:
        """Returns the processes of a variant if all of them have been started."""
        status = await self.client.status(self.application_id)
        pids = [instance.pid for instance in status.of(variant)] if status else []
        return pids if all(pids) else []

    async def is_routed_by_another_than(self, killed: int) -> bool:
        """Reports whether a new supervisor routes to the programs."""
        if not await self.client.is_running():
            return False
        status = await self.client.status(self.application_id)
        pid = int(self.client.directory.lock_file.read_text())
        return pid != killed and status is not None and bool(status.routed)

    async def kill_supervisor(self) -> int:
        """Kills the supervisor, as the kernel or a person would."""
        pid = int(self.client.directory.lock_file.read_text())
        os.kill(pid, signal.SIGKILL)
        return pid

    async def get(self, path: str = "/") -> tuple[int, str]:
        """Returns status and body of a request to the router."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]) if head else 0, body.decode()


@dataclass
class Load:
    """Requests that are sent without a break, each on a new connection or on a kept one."""

    answers: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])

    def count(self, status: int, body: str) -> None:
        self.answers[status, body] = self.answers.get((status, body), 0) + 1

    @property
    def failed(self) -> dict[tuple[int, str], int]:
        """The answers that are no success."""
        return {key: count for key, count in self.answers.items() if key[0] != 200}


@asynccontextmanager
async def load(port: int, *, clients: int = 2) -> AsyncGenerator[Load]:
    """Sends requests until the block ends."""
    counted, ended = Load(), asyncio.Event()

    async def one_connection(length: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for _ in range(length):
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split()[0])
                body = (await reader.readexactly(size)).decode()
                counted.count(int(head.split()[1]), body)
                if b"connection: close" in head.lower():
                    return
                await asyncio.sleep(0.002)
        finally:
            writer.close()

    async def client(length: int) -> None:
        while not ended.is_set():
            try:
                await one_connection(length)
            except (OSError, asyncio.IncompleteReadError) as e:
                counted.count(0, type(e).__name__)
                await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for number in range(clients):
            tasks.create_task(client(1 if number % 2 else 50))
        try:
            yield counted
        finally:
            ended.set()
