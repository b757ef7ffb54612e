# SPDX-License-Identifier: Apache-2.0
"""Requests per second of one core: the router, and Envoy with the same load in the same run.

Backend, proxy and load generator are processes of their own. A busy machine slows all of them, so
what counts is the processor time that the proxy spends on a request: its inverse is how many
requests one core can serve. Rounds alternate between the proxies. Afterwards variants, backends
and the router itself change under load, which must fail no request.
"""

import argparse
import asyncio
import importlib
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
                    parent.send(await router.drain("web", backend, 30))
                case ["hand over"]:
                    parent.send(router.sockets()["web"])
                case _:
                    await router.close(30)
                    parent.send(None)
                    return

    asyncio.run(serve())


@contextmanager
def process(target: Callable[..., None], *args: object) -> Iterator[tuple[int, Connection]]:
    """Runs a function in a process of its own; yields its id and the connection to it."""
    ours, theirs = CONTEXT.Pipe()
    child = CONTEXT.Process(target=target, args=(*args, theirs), daemon=True)
    child.start()
    try:
        yield cast("int", child.pid), cast("Connection", ours)
    finally:
        child.terminate()
        child.join()


@dataclass
class Load:
    """Requests on some connections, each sent when the one before it is answered."""

    port: int
    answer: int
    served: int = 0
    failed: int = 0
    is_over: bool = False

    async def run(self, seconds: float) -> float:
        """Returns the requests per second."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        sides = [
            (await loop.create_connection(lambda: ClientSide(self), "127.0.0.1", self.port))[1]
            for _ in range(CONNECTIONS)
        ]
        await asyncio.sleep(seconds)
        self.is_over = True
        await asyncio.gather(*(side.ended for side in sides))
        return self.served / (loop.time() - began)


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
                self.load.failed += 1
            self.closes = b"\r\nConnection: close\r\n" in self.head[: end + 2]
            data = self.head[end + 4 :]
            self.head, self.missing = b"", self.load.answer
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
            self.load.failed += 1
        loop = asyncio.get_running_loop()
        self.again = loop.create_task(
            loop.create_connection(lambda: self, "127.0.0.1", self.load.port)
        )


def processor_seconds(pid: int) -> float:
    """Returns the time that all threads of a process have run, by the scheduler's clock."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def run_load(port: int, size: int, seconds: float, parent: Connection) -> None:
    load = Load(port, size)
    rate = asyncio.run(load.run(seconds))
    parent.send((load.served, load.failed, rate))


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


def compare(seconds: float, rounds: int) -> None:
    """Prints requests per second of the router and of Envoy."""
    for kind, size in BODIES.items():
        with process(run_backend, size) as (_, from_backend):
            backend = from_backend.recv()
            with process(run_router, [backend]) as (router, to_router), envoy(backend) as other:
                to_router.send(None)
                proxies = {"router": (router, to_router.recv()), "envoy": other}
                taken: dict[str, list[tuple[float, float]]] = {name: [] for name in proxies}
                for _ in range(rounds):
                    for name, (pid, port) in proxies.items():
                        before = processor_seconds(pid)
                        with process(run_load, port, size, seconds) as (_, from_load):
                            served, failed, rate = from_load.recv()
                        used = processor_seconds(pid) - before
                        taken[name].append((rate, served / used))
                        if failed:
                            raise SystemExit(f"{name}: {failed} of {served} requests failed")
                for name, results in taken.items():
                    print(
                        f"{kind:<6} {name:<7} {median(rate for rate, _ in results):8.0f} "
                        f"requests per second, {median(core for _, core in results):8.0f} "
                        f"per second of its core, {resident_megabytes(proxies[name][0]):4.0f} MB"
                    )


def switch(seconds: float) -> None:
    """Prints how many requests fail while backends, variants and routers change under load."""
    size = BODIES["small"]
    with (
        process(run_backend, size) as (_, from_old),
        process(run_backend, size) as (_, from_new),
    ):
        old, new = (Backend("127.0.0.1", each.recv()) for each in (from_old, from_new))
        with process(run_router, [old.port]) as (_, router):
            router.send(None)
            port = router.recv()
            with process(run_load, port, size, seconds) as (_, from_load):
                switches = 0
                until = time.monotonic() + seconds * 0.6

                def order(*words: object) -> object:
                    router.send([*words])
                    return router.recv()

                while time.monotonic() < until:
                    for weight in (10, 50, 90):
                        shares = {
                            "primary": Share(100 - weight, (old,)),
                            "canary": Share(weight, (new,)),
                        }
                        order("route", shares)
                        time.sleep(0.05)
                    order("route", {"primary": Share(100, (new,))})
                    order("drain", old)
                    old, new, switches = new, old, switches + 1
                with process(run_router, [old.port]) as (_, after):
                    after.send(order("hand over"))
                    after.recv()
                    order("close")
                    served, failed, _ = from_load.recv()
    print(f"{switches} switches and a new router: {failed} of {served} requests failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="duration of each round")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    try:
        compare(given.seconds, given.rounds)
    except NotInstalled as e:
        print(f"skipped: {e}")
    switch(given.seconds * 2)


if __name__ == "__main__":
    main()
