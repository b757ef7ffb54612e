# SPDX-License-Identifier: Apache-2.0
"""Push to discovered, in a repository of many applications that nobody has registered.

A control plane, a piped of its own process, and a repository on disk or behind `git http-backend`.
An application that is new, and then one that got another name, must show in the control plane.
"""

import argparse
import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from pipecd.controlplane.app import ControlPlane
from pipecd.observe.log import configure
from push import ADMIN, Copy, GitHttp, piped, plane

ASKED = 2.0
APPLICATIONS, PUSHES = 500, 10
APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {name}
  labels: {{env: dev, team: shop}}
  description: What the application {name} is for.
  pipeline:
    stages:
      - {{name: WAIT, with: {{duration: 10s}}}}
      - {{name: SCRIPT_RUN, with: {{run: "true"}}}}
"""


def write(copy: Copy, directory: str, name: str) -> None:
    place = copy.tree / "apps" / directory
    place.mkdir(parents=True, exist_ok=True)
    (place / "app.pipecd.yaml").write_text(APP.format(name=name))


async def shown(running: ControlPlane, name: str, *, count: int) -> float:
    """The moment when the application is offered, among that many in all."""
    async with asyncio.timeout(120):
        while True:
            found = await running.cases.application_reports.list_unregistered(by=ADMIN)
            if len(found) == count and any(info.name == name for info in found):
                return time.perf_counter()
            await asyncio.sleep(0.01)


async def measured(applications: int, pushes: int, *, over_http: bool) -> list[float]:
    """Seconds from each push, which has arrived, to its application."""
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    copy = Copy(directory)
    for number in range(applications):
        write(copy, f"app-{number:03}", f"app-{number:03}")
    copy.push("applications")
    server = GitHttp(copy.bare.parent)
    remote = server.url("site.git") if over_http else f"file://{copy.bare}"
    taken: list[float] = []
    try:
        async with plane(directory) as running, piped(running, directory, remote):
            await shown(running, "app-000", count=applications)
            for number in range(pushes):
                place = f"new-{number // 2}"
                write(copy, place, name := f"{place}-{number % 2}")
                await asyncio.to_thread(copy.push, name)
                pushed = time.perf_counter()
                count = applications + number // 2 + 1
                taken.append(await shown(running, name, count=count) - pushed)
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
    return taken


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--applications", type=int, default=APPLICATIONS)
    options.add_argument("--pushes", type=int, default=PUSHES)
    given = options.parse_args()
    configure("error", "console", program="bench")
    for over_http in (False, True):
        taken = asyncio.run(measured(given.applications, given.pushes, over_http=over_http))
        where = "http" if over_http else "local"
        print(
            f"push to discovered, {given.applications} applications, {where} remote: "
            f"median {statistics.median(taken):.2f} s, longest {max(taken):.2f} s (asked {ASKED})"
        )


if __name__ == "__main__":
    main()
