# SPDX-License-Identifier: Apache-2.0
"""Time from a push to the discovery of an application among many unregistered ones.

Runs a control plane, a piped process, and a repository on disk or behind `git http-backend`.
Pushes alternately a new application and a new name for it.
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
from push import ADMIN, Clone, GitHttp, piped, plane

TARGET = 2.0
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


def write(clone: Clone, directory: str, name: str) -> None:
    path = clone.tree / "apps" / directory
    path.mkdir(parents=True, exist_ok=True)
    (path / "app.pipecd.yaml").write_text(APP.format(name=name))


async def wait_until_listed(running: ControlPlane, name: str, *, count: int) -> float:
    """Returns the time when the control plane lists the application as one of so many."""
    async with asyncio.timeout(120):
        while True:
            listed = await running.cases.application_reports.list_unregistered(by=ADMIN)
            if len(listed) == count and any(info.name == name for info in listed):
                return time.perf_counter()
            await asyncio.sleep(0.01)


async def measure(applications: int, pushes: int, *, over_http: bool) -> list[float]:
    """Returns the seconds from the end of each push to the discovery."""
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    clone = Clone(directory)
    for number in range(applications):
        write(clone, f"app-{number:03}", f"app-{number:03}")
    clone.push("applications")
    server = GitHttp(clone.bare.parent)
    remote = server.url("site.git") if over_http else f"file://{clone.bare}"
    taken: list[float] = []
    try:
        async with plane(directory) as running, piped(running, directory, remote):
            await wait_until_listed(running, "app-000", count=applications)
            for number in range(pushes):
                path = f"new-{number // 2}"
                write(clone, path, name := f"{path}-{number % 2}")
                await asyncio.to_thread(clone.push, name)
                pushed = time.perf_counter()
                count = applications + number // 2 + 1
                taken.append(await wait_until_listed(running, name, count=count) - pushed)
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
        taken = asyncio.run(measure(given.applications, given.pushes, over_http=over_http))
        where = "http" if over_http else "local"
        print(
            f"push to discovered, {given.applications} applications, {where} remote: "
            f"median {statistics.median(taken):.2f} s, longest {max(taken):.2f} s (target {TARGET})"
        )


if __name__ == "__main__":
    main()
