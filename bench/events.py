# SPDX-License-Identifier: Apache-2.0
"""Event registered to commit pushed and told; then ten thousand events that wait for a piped.

A control plane, a piped of its own process, and a repository on disk or behind `git http-backend`.
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
from push import ADMIN, Copy, GitHttp, piped, plane

ASKED = 2.0
KEYS = 100


def prepared(directory: Path) -> Copy:
    """A repository with a definition for each of the events `image-0`, `image-1`, …"""
    copy = Copy(directory)
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
    (copy.tree / ".pipe").mkdir()
    (copy.tree / "apps").mkdir()
    # JSON is YAML too.
    (copy.tree / ".pipe" / "images.yaml").write_text(json.dumps(watcher))
    for n in range(KEYS):
        (copy.tree / "apps" / f"{n}.yaml").write_text("image:\n  tag: v0 # the tag\n")
    copy.push("definitions")
    return copy


async def register(running: ControlPlane, name: str, value: str) -> str:
    request = RegisterEventRequest(name=name, data=value)
    return await running.cases.events.register(request, by=ADMIN)


async def ended(running: ControlPlane, wanted: set[str]) -> Counter[int]:
    """Waits until all of these events are told of, and counts what became of them."""
    async with asyncio.timeout(300):
        while True:
            found = await running.stores.events.list_by_creation(EventFilter(project="bench"))
            told = {event.id: event.status for event in found if event.id in wanted}
            if all(told.values()):
                return Counter(told.values())
            # A long list takes its time from those who are measured.
            await asyncio.sleep(0.02 + len(found) / 10_000)


async def one_by_one(events: int, *, over_http: bool) -> list[float]:
    """Seconds from each event to its success, told after the push."""
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    copy = prepared(directory)
    server = GitHttp(copy.bare.parent)
    remote = server.url("site.git") if over_http else f"file://{copy.bare}"
    taken: list[float] = []
    try:
        async with plane(directory) as running, piped(running, directory, remote):
            for number in range(events + 2):
                began = time.perf_counter()
                id_ = await register(running, f"image-{number % KEYS}", f"v{number + 1}")
                if await ended(running, {id_}) != {event_pb2.EVENT_SUCCESS: 1}:
                    sys.exit((await running.stores.events.get(id_)).status_description)
                taken.append(time.perf_counter() - began)
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
    # The first ones warm up.
    return sorted(taken[2:])


async def crowd(events: int) -> None:
    """A piped starts and finds many events, most of them outdated by others."""
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    copy = prepared(directory)
    try:
        async with plane(directory) as running:
            ids = [await register(running, f"image-{n % KEYS}", f"v{n}") for n in range(events)]
            began = time.perf_counter()
            async with piped(running, directory, f"file://{copy.bare}"):
                newest = await ended(running, set(ids[-KEYS:]))
                pushed = time.perf_counter() - began
                await ended(running, set(ids))
                told = time.perf_counter() - began
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(
        f"{events} events of {KEYS} keys: pushed after {pushed:.1f} s with the start of the piped "
        f"({newest[event_pb2.EVENT_SUCCESS]} successes), all told after {told:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20)
    parser.add_argument("--crowd", type=int, default=10_000)
    given = parser.parse_args()
    configure("error", "console")
    for over_http in (False, True):
        taken = asyncio.run(one_by_one(given.events, over_http=over_http))
        p95 = taken[round(0.95 * (len(taken) - 1))]
        print(
            f"{'http' if over_http else 'local'} remote: p50 {statistics.median(taken):.2f} s, "
            f"p95 {p95:.2f} s (asked: {ASKED} s; upstream: up to 2 minutes)"
        )
    asyncio.run(crowd(given.crowd))


if __name__ == "__main__":
    main()
