# SPDX-License-Identifier: Apache-2.0
"""Time from a registered event to its pushed commit, and a backlog of ten thousand events.

Runs a control plane, a piped process, and a repository on disk or behind `git http-backend`.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from pipecd.controlplane.app import ControlPlane
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.observe.log import configure
from pipecd.proto.model import event_pb2
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from push import ADMIN, Clone, GitHttp, piped, plane

TARGET = 2.0
KEYS = 100


def create_repository(directory: Path) -> Clone:
    """Creates a repository with event watcher definitions for `image-0`, `image-1`, …"""
    clone = Clone(directory)
    events = [
        {
            "name": f"image-{n}",
            "replacements": [{"file": f"apps/{n}.yaml", "yamlField": "$.image.tag"}],
        }
        for n in range(KEYS)
    ]
    watcher = {
        "apiVersion": "pipecd.dev/v1beta1",
        "kind": "EventWatcher",
        "spec": {"events": events},
    }
    (clone.tree / ".pipe").mkdir()
    (clone.tree / "apps").mkdir()
    # JSON is YAML too.
    (clone.tree / ".pipe" / "images.yaml").write_text(json.dumps(watcher))
    for n in range(KEYS):
        (clone.tree / "apps" / f"{n}.yaml").write_text("image:\n  tag: v0 # the tag\n")
    clone.push("definitions")
    return clone


async def register(running: ControlPlane, name: str, value: str) -> str:
    request = RegisterEventRequest(name=name, data=value)
    return await running.cases.events.register(request, by=ADMIN)


async def wait_for_statuses(running: ControlPlane, ids: set[str]) -> Counter[int]:
    """Waits until all of these events are handled and counts their statuses."""
    async with asyncio.timeout(300):
        while True:
            events = await running.stores.events.list_by_creation(EventFilter(project="bench"))
            statuses = {event.id: event.status for event in events if event.id in ids}
            if all(statuses.values()):
                return Counter(statuses.values())
            # Polls longer lists less often, because polling slows down what is measured.
            await asyncio.sleep(0.02 + len(events) / 10_000)


async def one_by_one(events: int, *, over_http: bool) -> list[float]:
    """Returns the seconds from each event to its success, which piped reports after the push."""
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    clone = create_repository(directory)
    server = GitHttp(clone.bare.parent)
    remote = server.url("site.git") if over_http else f"file://{clone.bare}"
    taken: list[float] = []
    try:
        async with plane(directory) as running, piped(running, directory, remote):
            for number in range(events + 2):
                began = time.perf_counter()
                id_ = await register(running, f"image-{number % KEYS}", f"v{number + 1}")
                if await wait_for_statuses(running, {id_}) != {event_pb2.EVENT_SUCCESS: 1}:
                    sys.exit((await running.stores.events.get(id_)).status_description)
                taken.append(time.perf_counter() - began)
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
    # The first two are warm-up.
    return sorted(taken[2:])


async def backlog(events: int) -> None:
    """Starts a piped with a backlog of events, most of them outdated by newer ones."""
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    clone = create_repository(directory)
    try:
        async with plane(directory) as running:
            ids = [await register(running, f"image-{n % KEYS}", f"v{n}") for n in range(events)]
            began = time.perf_counter()
            async with piped(running, directory, f"file://{clone.bare}"):
                newest = await wait_for_statuses(running, set(ids[-KEYS:]))
                pushed = time.perf_counter() - began
                await wait_for_statuses(running, set(ids))
                handled = time.perf_counter() - began
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{events} events of {KEYS} keys: pushed after {pushed:.1f} s with the start of the piped "
        f"({newest[event_pb2.EVENT_SUCCESS]} successes), all handled after {handled:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--backlog", type=int, default=10_000)
    given = parser.parse_args()
    configure("error", "console")
    for over_http in (False, True):
        taken = asyncio.run(one_by_one(given.events, over_http=over_http))
        p95 = taken[round(0.95 * (len(taken) - 1))]
        print(
            f"{'http' if over_http else 'local'} remote: p50 {statistics.median(taken):.2f} s, "
            f"p95 {p95:.2f} s (target: {TARGET} s; upstream: up to 2 minutes)"
        )
    asyncio.run(backlog(given.backlog))


if __name__ == "__main__":
    main()
