# SPDX-License-Identifier: Apache-2.0
"""Requests per second of one core: the router, and Envoy with the same load in the same run.

Backend, proxy and load generator are processes of their own. A busy machine slows all of them, so
what counts is the processor time that the proxy spends on a request: its inverse is how many
requests one core can serve. Rounds alternate between the proxies. Afterwards variants, backends
and the router itself change under load, which must fail no request. Requests that fail are printed
with their causes, and the exit code is 1 then.
"""

import argparse
import asyncio
import importlib
import multiprocessing
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, cast

from pipecd.plugins.process.router import Backend, Router, Share
from rig.cluster import NotInstalled

CONNECTIONS = 64
REQUEST = (
    b"GET /products?page=2 HTTP/1.1\r\nHost: shop.example\r\nUser-Agent: bench/1.0\r\n"
    b"Accept: text/html,application/json\r\nAccept-Encoding: gzip\r\n"
    b"Cookie: session=0123456789\r\n\r\n"
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n"
BODIES = {"small": 64, "large": 256 * 1024}
CONTENT_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)
# A request that takes longer has failed, and a process that says nothing for longer hangs.
PATIENCE = 30.0
CONTEXT = multiprocessing.get_context("spawn")


class BackendSide(asyncio.Protocol):
    """Answers every request at once."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            self.received = self.received[end + 4 :]
            self.transport.write(self.answer)


def run_backend(size: int, parent: Connection) -> None:
    async def serve() -> None:
        loop = asyncio.get_running_loop()
        answer = HEAD % size + bytes(size)
        server = await loop.create_server(lambda: BackendSide(answer), "127.0.0.1", 0, backlog=1024)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def run_router(ports: list[int], parent: Connection) -> None:
    """Routes to the backends; takes over the socket that the parent sends, if it sends one."""

    async def serve() -> None:
        router = Router()
        sock = cast("socket.socket | None", parent.recv())
        port = await router.listen("web", "127.0.0.1", 0, sock=sock)
        shares = {"primary": Share(100, tuple(Backend("127.0.0.1", p) for p in ports))}
        router.route("web", shares)
        parent.send(port)
        loop = asyncio.get_running_loop()
        while True:
            order = await loop.run_in_executor(None, parent.recv)
            match order:
                case ["route", dict() as shares]:
                    router.route("web", cast("dict[str, Share]", shares))
                    parent.send(None)
                case ["drain", Backend() as backend]:
                    parent.send(await router.drain("web", backend, PATIENCE))
                case ["hand over"]:
                    parent.send(router.sockets()["web"])
                case _:
                    await router.close(PATIENCE)
                    parent.send(None)
                    return

    asyncio.run(serve())


@dataclass
class Child:
    """A function that runs in a process of its own."""

    name: str
    pid: int
    connection: Connection

    def send(self, message: object) -> None:
        self.connection.send(message)

    def receive(self, at_most: float = PATIENCE) -> Any:
        """Returns what the process sends; ends the benchmark if it ends or hangs instead."""
        try:
            if self.connection.poll(at_most):
                return self.connection.recv()
        except EOFError:
            raise SystemExit(f"{self.name} ended too early: see its error above") from None
        raise SystemExit(f"{self.name} has sent nothing for {at_most:.0f} s: it hangs")


@contextmanager
def process(target: Callable[..., None], *args: object) -> Iterator[Child]:
    """Runs a function in a process of its own."""
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=target, args=(*args, theirs), daemon=True)
    child.start()
    # Only the child has its end now, so the connection ends with the child.
    theirs.close()
    try:
        yield Child(target.__name__, cast("int", child.pid), cast("Connection", ours))
    finally:
        child.terminate()
        child.join()
        ours.close()


@dataclass(frozen=True)
class LoadResult:
    served: int
    failures: Counter[str]
    per_second: float


@dataclass
class Load:
    """Requests on some connections, each sent when the one before it is answered."""

    port: int
    served: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])
    is_over: bool = False

    async def run(self, seconds: float) -> LoadResult:
        loop = asyncio.get_running_loop()
        began = loop.time()
        sides = [
            (await loop.create_connection(lambda: ClientSide(self), "127.0.0.1", self.port))[1]
            for _ in range(CONNECTIONS)
        ]
        await asyncio.sleep(seconds)
        self.is_over = True
        _, waiting = await asyncio.wait([side.ended for side in sides], timeout=PATIENCE)
        if waiting:
            self.failures[f"no answer within {PATIENCE:.0f} s"] += len(waiting)
        return LoadResult(self.served, self.failures, self.served / (loop.time() - began))


class ClientSide(asyncio.Protocol):
    """One connection of a load; connects again when the router asks it to."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.head = b""
        self.missing = 0
        self.closes = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.missing, self.head, self.closes = 0, b"", False
        self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        if not self.missing:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            if not self.head.startswith(b"HTTP/1.1 200"):
                self.load.failures[self.head[: self.head.find(b"\r\n")].decode()] += 1
            self.closes = b"\r\nConnection: close\r\n" in self.head[: end + 2]
            length = CONTENT_LENGTH.search(self.head, 0, end)
            data = self.head[end + 4 :]
            self.head, self.missing = b"", int(length[1]) if length else 0
        self.missing -= len(data)
        if self.missing:
            return
        self.load.served += 1
        if self.load.is_over:
            self.transport.close()
        elif not self.closes:
            self.transport.write(REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.load.is_over and not self.missing:
            self.ended.set_result(None)
            return
        if not self.closes:
            self.load.failures[f"connection closed: {exc or 'no cause'}"] += 1
        self.again = asyncio.get_running_loop().create_task(self.connect())

    async def connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self, "127.0.0.1", self.load.port)
        except OSError as e:
            self.load.failures[f"cannot connect: {e}"] += 1
            self.ended.set_result(None)


def processor_seconds(pid: int) -> float:
    """Returns the time that all threads of a process have run, by the scheduler's clock."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def run_load(port: int, seconds: float, parent: Connection) -> None:
    parent.send(asyncio.run(Load(port).run(seconds)))


def load_result(load: Child, seconds: float) -> LoadResult:
    return load.receive(at_most=seconds + 3 * PATIENCE)


@contextmanager
def envoy(backend: int) -> Iterator[tuple[int, int]]:
    """Runs Envoy with one worker; yields its process and port. NotInstalled when it is missing."""
    server = importlib.import_module("servers.envoy").Envoy(partial(configuration, backend=backend))
    try:
        yield server._process.pid, server.port
    finally:
        server.close()


def configuration(port: int, backend: int) -> dict[str, Any]:
    def address(port: int) -> dict[str, Any]:
        return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}

    filters = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "web",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{filters}.http.router.v3.Router"},
            }
        ],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "web"}}],
                }
            ]
        },
    }
    chain = {
        "filters": [
            {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
        ]
    }
    endpoints = [{"lb_endpoints": [{"endpoint": address(backend)}]}]
    cluster = {
        "name": "web",
        "type": "STATIC",
        "load_assignment": {"cluster_name": "web", "endpoints": endpoints},
        "circuit_breakers": {"thresholds": [{"max_connections": 10000, "max_requests": 10000}]},
    }
    listener = {"name": "web", **address(port), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def resident_megabytes(pid: int) -> float:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return int(status["VmRSS"].split()[0]) / 1024


def say(text: str) -> None:
    """Prints a line at once: a run that hangs later has printed what it had measured."""
    print(text, flush=True)


def compare(seconds: float, rounds: int) -> Counter[str]:
    """Prints requests per second of the router and of Envoy; returns the causes of failures."""
    failures: Counter[str] = Counter()
    for kind, size in BODIES.items():
        with process(run_backend, size) as backend, ExitStack() as others:
            port = backend.receive()
            router = others.enter_context(process(run_router, [port]))
            router.send(None)
            proxies = {"router": (router.pid, router.receive())}
            try:
                proxies["envoy"] = others.enter_context(envoy(port))
            except NotInstalled as e:
                say(f"envoy is skipped: {e}")
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in proxies}
            for _ in range(rounds):
                for name, (pid, port) in proxies.items():
                    before = processor_seconds(pid)
                    with process(run_load, port, seconds) as load:
                        result = load_result(load, seconds)
                    used = processor_seconds(pid) - before
                    taken[name].append((result.per_second, result.served / used))
                    failures += with_place(f"{kind} {name}", result.failures)
            for name, results in taken.items():
                say(
                    f"{kind:<6} {name:<7} {median(rate for rate, _ in results):8.0f} "
                    f"requests per second, {median(core for _, core in results):8.0f} "
                    f"per second of its core, {resident_megabytes(proxies[name][0]):4.0f} MB"
                )
    return failures


def with_place(place: str, failures: Counter[str]) -> Counter[str]:
    return Counter({f"{place}: {cause}": count for cause, count in failures.items()})


def switch(seconds: float) -> Counter[str]:
    """Prints how many requests fail while backends, variants and routers change under load."""
    size = BODIES["small"]
    with process(run_backend, size) as first, process(run_backend, size) as second:
        old, new = (Backend("127.0.0.1", each.receive()) for each in (first, second))
        with process(run_router, [old.port]) as router:
            router.send(None)
            port = router.receive()
            with process(run_load, port, seconds) as load:
                switches = 0
                until = time.monotonic() + seconds * 0.6

                def order(*words: object) -> Any:
                    router.send([*words])
                    # Draining and closing may take as long as a request.
                    return router.receive(at_most=2 * PATIENCE)

                while time.monotonic() < until:
                    for weight in (10, 50, 90):
                        shares = {
                            "primary": Share(100 - weight, (old,)),
                            "canary": Share(weight, (new,)),
                        }
                        order("route", shares)
                        time.sleep(0.05)
                    order("route", {"primary": Share(100, (new,))})
                    if left := order("drain", old):
                        say(f"{left} requests were left after draining for {PATIENCE:.0f} s")
                    old, new, switches = new, old, switches + 1
                with process(run_router, [old.port]) as after:
                    after.send(order("hand over"))
                    after.receive()
                    order("close")
                    result = load_result(load, seconds)
    failed = result.failures.total()
    say(f"{switches} switches and a new router: {failed} of {result.served} requests failed")
    return with_place("switch", result.failures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    failures = compare(given.seconds, given.rounds) + switch(given.seconds * 2)
    for cause, count in failures.most_common():
        say(f"{count} failed requests, {cause}")
    if failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
