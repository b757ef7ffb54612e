# SPDX-License-Identifier: Apache-2.0
"""Time from a push to SUCCESS of a process application, while requests are sent to it.

The application is a web service of Python's standard library. Every push changes its files: first
with quick sync, then with a canary that is promoted. Prints also what the supervisor uses.
"""

import argparse
import asyncio
import json
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

from pipecd.observe.log import configure
from pipecd.plugins.process.client import SupervisorClient
from pipecd.quickstart.app import available_port
from push import Clone, piped, plane, wait_for_success
from rig.control_plane import memory_of

SERVER = """
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *_): ...

ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
CANARY = (
    ("PROCESS_CANARY_ROLLOUT", {}),
    ("PROCESS_TRAFFIC_ROUTING", {"canary": 10}),
    ("PROCESS_PRIMARY_ROLLOUT", {}),
    ("PROCESS_TRAFFIC_ROUTING", {"primary": 100}),
    ("PROCESS_CANARY_CLEAN", {}),
)
SYNC = (("PROCESS_SYNC", {}),)


def application(port: int, stages: tuple[tuple[str, dict[str, int]], ...]) -> str:
    program = {
        "command": "python3",
        "args": ["server.py"],
        "port": port,
        "healthCheck": {"interval": "500ms"},
    }
    spec: dict[str, Any] = {
        "name": "hello",
        "plugins": {"process": {"input": program}},
        "pipeline": {"stages": [{"name": name, "with": options} for name, options in stages]},
    }
    return json.dumps({"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec})


class Requests:
    """Sends requests on new connections, and counts those that fail."""

    def __init__(self, port: int) -> None:
        self.port, self.sent, self.failed = port, 0, 0

    async def run(self) -> None:
        while True:
            self.sent += 1
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                answer = await reader.read()
                writer.close()
                self.failed += not answer.startswith(b"HTTP/1.1 200")
            except OSError:
                self.failed += 1
            await asyncio.sleep(0.005)


async def measure(pushes: int) -> None:
    async with AsyncExitStack() as lifetime:
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        port, programs = available_port(0), directory / "programs"
        clone = Clone(directory)
        running = await lifetime.enter_async_context(plane(directory))
        (clone.tree / "hello" / "server.py").write_text(SERVER)
        (clone.tree / "hello" / "app.pipecd.yaml").write_text(application(port, SYNC))
        await asyncio.to_thread(clone.push, "a web service")
        client = SupervisorClient.at(programs)
        lifetime.push_async_callback(client.shut_down)
        target = {"name": "local", "config": {"directory": str(programs)}}
        plugins = [{"name": "process", "deployTargets": [target]}]
        await lifetime.enter_async_context(
            piped(
                running,
                directory,
                f"file://{clone.bare}",
                targets={"process": "local"},
                plugins=plugins,
            )
        )
        first = await asyncio.to_thread(clone.push, "the first push")
        await wait_for_success(running, first)
        requests = Requests(port)
        sending = asyncio.create_task(requests.run())
        for name, stages in (("quick sync", SYNC), ("canary and promote", CANARY)):
            text = application(port, stages)
            (clone.tree / "hello" / "app.pipecd.yaml").write_text(text)
            taken: list[float] = []
            for number in range(pushes + 1):
                commit = await asyncio.to_thread(clone.push, f"{name} {number}")
                began = time.perf_counter()
                taken.append(await wait_for_success(running, commit) - began)
            p50, worst = median(taken[1:]), max(taken[1:])
            print(
                f"{name:20} push to SUCCESS p50 {p50:5.2f} s   worst {worst:5.2f} s   (target: 2 s)"
            )
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        pid = int(client.directory.lock_file.read_text())
        print(f"requests meanwhile   {requests.sent}, failed {requests.failed}   (target: 0)")
        print(f"supervisor           {memory_of(pid):5.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=10)
    given = parser.parse_args()
    configure("error", "console")
    asyncio.run(measure(given.pushes))


if __name__ == "__main__":
    main()
