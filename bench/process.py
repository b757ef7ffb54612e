# SPDX-License-Identifier: Apache-2.0
"""Time from a push to SUCCESS of a process application, while requests are sent to it.

The application is a web service of Python's standard library. Every push changes its files: first
with quick sync, then with a canary that is promoted, then with a canary that is rolled back. Then
piped is stopped and started again. Prints also what the supervisor uses.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.observe.log import configure
from pipecd.plugins.process.client import SupervisorClient
from pipecd.quickstart.app import available_port
from push import Clone, piped, plane
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
Stages: TypeAlias = tuple[tuple[str, dict[str, Any]], ...]
CANARY = (
    ("PROCESS_CANARY_ROLLOUT", {}),
    ("PROCESS_TRAFFIC_ROUTING", {"canary": 10}),
    ("PROCESS_PRIMARY_ROLLOUT", {}),
    ("PROCESS_TRAFFIC_ROUTING", {"primary": 100}),
    ("PROCESS_CANARY_CLEAN", {}),
)
SYNC = (("PROCESS_SYNC", {}),)
ROLLBACK = (*CANARY[:2], ("SCRIPT_RUN", {"run": "false"}))
SCENARIOS: dict[str, tuple[Stages, DeploymentStatus]] = {
    "quick sync": (SYNC, DeploymentStatus.SUCCESS),
    "canary and promote": (CANARY, DeploymentStatus.SUCCESS),
    "canary and rollback": (ROLLBACK, DeploymentStatus.FAILURE),
}
IDLE_SECONDS = 5.0


def application(port: int, stages: Stages) -> str:
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


async def wait_for_end(running: ControlPlane, commit: str, expected: DeploymentStatus) -> float:
    """Returns the time when the deployment of a commit has ended as it should."""
    async with asyncio.timeout(60), running.bus.subscribe(project="bench") as signals:
        while True:
            listed = await running.stores.deployments.list(DeploymentFilter(project="bench"))
            for deployment in listed.items:
                status = DeploymentStatus(deployment.status)
                if deployment.trigger.commit.hash == commit and status.is_completed:
                    if status is not expected:
                        sys.exit(f"the deployment completed as {status.name}")
                    return time.perf_counter()
            await anext(aiter(signals))


@asynccontextmanager
async def piped_again(directory: Path) -> AsyncGenerator[None]:
    """Runs a piped with the configuration and the directories of the one before."""
    flags = [f"--{what}-dir={directory / what}" for what in ("tools", "workspace")]
    flags += ["--insecure", "--admin-port=0", "--log-level=error"]
    program = Path(sys.executable).parent / "piped"
    process = await asyncio.create_subprocess_exec(
        program, "run", f"--config-file={directory / 'piped.yaml'}", *flags
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


@dataclass
class Bench:
    """An application on a control plane, with requests that are sent to it."""

    running: ControlPlane
    clone: Clone
    port: int
    requests: Requests

    async def push(self, text: str, expected: DeploymentStatus = DeploymentStatus.SUCCESS) -> float:
        """Returns the seconds from a push to the end of its deployment."""
        commit = await asyncio.to_thread(self.clone.push, text)
        began = time.perf_counter()
        return await wait_for_end(self.running, commit, expected) - began

    def configure(self, stages: Stages) -> None:
        text = application(self.port, stages)
        (self.clone.tree / "hello" / "app.pipecd.yaml").write_text(text)

    async def scenario(self, name: str, pushes: int) -> None:
        stages, expected = SCENARIOS[name]
        self.configure(stages)
        taken = [await self.push(f"{name} {n}", expected) for n in range(pushes + 1)][1:]
        print(
            f"{name:20} push to {expected.name} p50 {median(taken):5.2f} s   "
            f"worst {max(taken):5.2f} s   (target: 2 s)"
        )

    async def restart(self, directory: Path) -> None:
        """Starts piped again, which has been stopped, and deploys with it."""
        self.configure(SYNC)
        began = time.perf_counter()
        async with piped_again(directory):
            await self.push("after the restart")
            print(f"restart of piped     and push to SUCCESS {time.perf_counter() - began:5.2f} s")


async def use_of(pid: int, seconds: float) -> float:
    """Returns the share of a core that a process uses in the next seconds."""
    before = cpu_seconds(pid)
    await asyncio.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(pushes: int) -> None:
    async with AsyncExitStack() as lifetime:
        directory = Path(lifetime.enter_context(tempfile.TemporaryDirectory()))
        programs = directory / "programs"
        clone, requests = Clone(directory), Requests(available_port(0))
        running = await lifetime.enter_async_context(plane(directory))
        bench = Bench(running, clone, requests.port, requests)
        (clone.tree / "hello" / "server.py").write_text(SERVER)
        bench.configure(SYNC)
        await asyncio.to_thread(clone.push, "a web service")
        client = SupervisorClient.at(programs)
        lifetime.push_async_callback(client.shut_down)
        target = {"name": "local", "config": {"directory": str(programs)}}
        plugins = [{"name": "process", "deployTargets": [target]}, {"name": "scriptrun"}]
        remote, targets = f"file://{clone.bare}", {"process": "local"}
        async with piped(running, directory, remote, targets=targets, plugins=plugins):
            await bench.push("the first push")
            sending = asyncio.create_task(requests.run())
            supervisor = int(client.directory.lock_file.read_text())
            began, used = time.perf_counter(), cpu_seconds(supervisor)
            for name in SCENARIOS:
                await bench.scenario(name, pushes)
        await bench.restart(directory)
        seconds = time.perf_counter() - began
        share, rate = (cpu_seconds(supervisor) - used) / seconds, requests.sent / seconds
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        idle = await use_of(supervisor, IDLE_SECONDS)
        print(f"requests meanwhile   {requests.sent}, failed {requests.failed}   (target: 0)")
        print(f"supervisor           {memory_of(supervisor):5.0f} MB")
        print(
            f"  of a core          {share:5.1%} with {rate:.0f} requests a second, {idle:.1%} idle"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=10)
    given = parser.parse_args()
    configure("error", "console")
    asyncio.run(measure(given.pushes))


if __name__ == "__main__":
    main()
