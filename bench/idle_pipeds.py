# SPDX-License-Identifier: Apache-2.0
"""CPU time and memory of a server with a thousand idle pipeds.

Each piped holds a wake-up stream with a heartbeat every 4 seconds and polls as a fallback: it
reports its metrics every minute and calls the three lists every 120 to 300 seconds.
"""

import argparse
import random
import select
import time
from collections.abc import Iterator

from google.protobuf.message import Message

from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.ordering_pb2 import ListDeploymentsInOrderRequest
from pipecd.proto.service.wakeups_pb2 import WatchWakeupsRequest
from rig.control_plane import ControlPlaneProcess, run_control_plane
from rig.engines import NotInstalled, engine
from rig.grpc_client import GrpcClient, Request, request
from rig.seed import RegisteredPiped, seed_pipeds

TARGET_MEMORY, TARGET_SHARE = 400, 10
SERVICE = "/grpc.service.pipedservice.PipedService"
STATISTICS = b"go_goroutines 17\n" * 500
REPORTS_PER_SECOND = 1 / 60
# Each of the three lists, every 210 seconds on average.
LISTS_PER_SECOND = 3 / 210


def watch(piped: RegisteredPiped) -> Request:
    return _request(piped, "WatchWakeups", WatchWakeupsRequest(heartbeat_seconds=4))


def polls(piped: RegisteredPiped) -> Iterator[Request]:
    """Yields the fallback polls in random order, each call with its share."""
    report = _request(piped, "ReportStat", pb.ReportStatRequest(piped_stats=STATISTICS))
    lists = [
        _request(piped, "ListUnhandledCommands", pb.ListUnhandledCommandsRequest()),
        _request(piped, "ListDeploymentsInOrder", ListDeploymentsInOrderRequest()),
        _request(piped, "ListApplications", pb.ListApplicationsRequest()),
    ]
    is_report = REPORTS_PER_SECOND / (REPORTS_PER_SECOND + LISTS_PER_SECOND)
    while True:
        yield report if random.random() < is_report else random.choice(lists)


def _request(piped: RegisteredPiped, name: str, message: Message) -> Request:
    return request(f"{SERVICE}/{name}", message.SerializeToString(), piped.token)


class IdlePipeds:
    """The connections of all pipeds."""

    def __init__(self, address: str, pipeds: list[RegisteredPiped]) -> None:
        self._clients: list[tuple[GrpcClient, Iterator[Request]]] = []
        self._arriving = select.epoll()
        for piped in pipeds:
            client, calls = GrpcClient(address), polls(piped)
            client.send(watch(piped))
            # The server accepts the stream before it responds to the first call.
            client.call(next(calls))
            self._arriving.register(client.fileno(), select.EPOLLIN)
            self._clients.append((client, calls))
        self._by_number = {client.fileno(): client for client, _ in self._clients}

    def idle(self, seconds: float) -> int:
        """Polls at the usual rate for so many seconds; returns the number of calls."""
        gap = 1 / (len(self._clients) * (REPORTS_PER_SECOND + LISTS_PER_SECOND))
        began, sent = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            if now >= began + sent * gap:
                client, calls = self._clients[sent % len(self._clients)]
                client.send(next(calls))
                sent += 1
            for number, _ in self._arriving.poll(max(0, began + sent * gap - now)):
                self._by_number[number].receive()
        return sent


def measure(server: ControlPlaneProcess, pipeds: list[RegisteredPiped], seconds: float) -> None:
    before = server.memory()
    idle_pipeds = IdlePipeds(server.address("piped-api"), pipeds)
    idle_pipeds.idle(5)
    began, busy = time.monotonic(), server.cpu_seconds()
    sent = idle_pipeds.idle(seconds)
    share = (server.cpu_seconds() - busy) / (time.monotonic() - began) * 100
    memory = server.memory()
    print(
        f"memory               {memory:8.0f} MB    (target: {TARGET_MEMORY}; {before:.0f} before)"
    )
    print(f"a piped              {(memory - before) / len(pipeds) * 1024:8.0f} KB")
    print(f"share of a processor {share:8.1f} %     (target: {TARGET_SHARE})")
    print(f"calls per second     {sent / seconds:8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeds", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--engines", default="sqlite")
    options = parser.parse_args()
    for name in options.engines.split(","):
        print(f"-- {name}, {options.pipeds} idle pipeds", flush=True)
        try:
            with engine(name) as datastore:
                pipeds = seed_pipeds(datastore, pipeds=options.pipeds)
                with run_control_plane(datastore) as server:
                    measure(server, pipeds, options.seconds)
        except NotInstalled as e:
            print(e)


if __name__ == "__main__":
    main()
