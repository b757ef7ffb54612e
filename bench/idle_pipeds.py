# SPDX-License-Identifier: Apache-2.0
"""What a thousand pipeds cost a server while nothing happens.

Each holds its wake-up stream and makes the calls of its safety net at its own pace: its statistics
every minute, the three lists every 120 to 300 seconds.
"""

import argparse
import random
import select
import time
from collections.abc import Iterator

from google.protobuf.message import Message

from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.wakeups_pb2 import WatchWakeupsRequest
from rig.caller import Caller, Request, request
from rig.engines import NotInstalled, engine
from rig.plane import Plane, plane
from rig.world import Agent, settle

ASKED_MEMORY, ASKED_SHARE = 400, 10
SERVICE = "/grpc.service.pipedservice.PipedService"
STATISTICS = b"go_goroutines 17\n" * 500
REPORTS_PER_SECOND = 1 / 60
# Every list once in the middle of its 120 to 300 seconds.
LISTS_PER_SECOND = 3 / 210


def watch(agent: Agent) -> Request:
    return _request(agent, "WatchWakeups", WatchWakeupsRequest())


def polls(agent: Agent) -> Iterator[Request]:
    """The calls of the safety net, each as often as the others of its kind."""
    report = _request(agent, "ReportStat", pb.ReportStatRequest(piped_stats=STATISTICS))
    lists = [
        _request(agent, "ListUnhandledCommands", pb.ListUnhandledCommandsRequest()),
        _request(agent, "ListNotCompletedDeployments", pb.ListNotCompletedDeploymentsRequest()),
        _request(agent, "ListApplications", pb.ListApplicationsRequest()),
    ]
    is_report = REPORTS_PER_SECOND / (REPORTS_PER_SECOND + LISTS_PER_SECOND)
    while True:
        yield report if random.random() < is_report else random.choice(lists)


def _request(agent: Agent, name: str, message: Message) -> Request:
    return request(f"{SERVICE}/{name}", message.SerializeToString(), agent.token)


class Crowd:
    """The connections of all pipeds."""

    def __init__(self, address: str, agents: list[Agent]) -> None:
        self._callers: list[tuple[Caller, Iterator[Request]]] = []
        self._arriving = select.epoll()
        for agent in agents:
            caller, calls = Caller(address), polls(agent)
            caller.send(watch(agent))
            # The first call ends only when the server has taken the stream as well.
            caller.call(next(calls))
            self._arriving.register(caller.fileno(), select.EPOLLIN)
            self._callers.append((caller, calls))
        self._by_number = {caller.fileno(): caller for caller, _ in self._callers}

    def idle(self, seconds: float) -> int:
        """Lets time pass at the usual pace; how many calls were made in it."""
        gap = 1 / (len(self._callers) * (REPORTS_PER_SECOND + LISTS_PER_SECOND))
        began, made = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            if now >= began + made * gap:
                caller, calls = self._callers[made % len(self._callers)]
                caller.send(next(calls))
                made += 1
            for number, _ in self._arriving.poll(max(0, began + made * gap - now)):
                self._by_number[number].receive()
        return made


def measure(server: Plane, agents: list[Agent], seconds: float) -> None:
    before = server.memory()
    crowd = Crowd(server.address("piped-api"), agents)
    crowd.idle(5)
    began, busy = time.monotonic(), server.cpu_seconds()
    made = crowd.idle(seconds)
    share = (server.cpu_seconds() - busy) / (time.monotonic() - began) * 100
    memory = server.memory()
    print(f"memory               {memory:8.0f} MB    (asked: {ASKED_MEMORY}; {before:.0f} before)")
    print(f"a piped              {(memory - before) / len(agents) * 1024:8.0f} KB")
    print(f"share of a processor {share:8.1f} %     (asked: {ASKED_SHARE})")
    print(f"calls per second     {made / seconds:8.1f}")


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
                agents = settle(datastore, pipeds=options.pipeds)
                with plane(datastore) as server:
                    measure(server, agents, options.seconds)
        except NotInstalled as e:
            print(e)


if __name__ == "__main__":
    main()
