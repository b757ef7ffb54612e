# SPDX-License-Identifier: Apache-2.0
"""The memory of a control plane and of a piped over thousands of deployments, a push for each.

What is kept for every deployment shows as a slope in the second half; in the first one caches fill.
"""

import argparse
import re
import time
from collections.abc import Sequence
from pathlib import Path

import many
from rig.curve import Curve, draw
from rig.piped import git

DEPLOYMENTS, APPLICATIONS, SAMPLE = 2000, 20, 100
TARGET_SLOPE = 1.0
_KINDS = ("Private_Clean", "Private_Dirty", "Shared_Clean", "Shared_Dirty")

Line = list[tuple[float, float]]


def resident_kilobytes(pid: int) -> int:
    """Returns what a process has in memory, its own and what it shares."""
    sizes = dict(re.findall(r"(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text()))
    return sum(int(sizes[kind]) for kind in _KINDS)


def slope(line: Sequence[tuple[float, float]]) -> float:
    """Returns the slope of the line with the least squares, in units of y for each of x."""
    x_mean = sum(x for x, _ in line) / len(line)
    y_mean = sum(y for _, y in line) / len(line)
    spread = sum((x - x_mean) ** 2 for x, _ in line)
    return sum((x - x_mean) * (y - y_mean) for x, y in line) / spread if spread else 0.0


def push_each(repository: Path, number: int) -> None:
    """Changes every application with a commit of its own."""
    for path in sorted(repository.glob("app-*")):
        (path / "version").write_text(f"{number}\n")
        git(repository, "commit", "--quiet", "--all", "--message", f"{path.name} {number}")


def measure(deployments: int, applications: int) -> dict[str, Line]:
    """Returns the kilobytes of each program by the number of deployments."""
    lines: dict[str, Line] = {"control plane": [], "piped": []}
    with many.run_push_installation(applications) as (running, server, repository, database):
        pids = {"control plane": server.process.pid, "piped": running.process.pid}
        began, done, sampled = time.monotonic(), applications, 0
        many.wait_for_success(database, running, done)
        while done < deployments:
            push_each(repository, done)
            done += applications
            many.wait_for_success(database, running, done)
            if done // SAMPLE > sampled:
                sampled = done // SAMPLE
                for name, pid in pids.items():
                    lines[name].append((done, resident_kilobytes(pid)))
                sizes = ", ".join(f"{name} {line[-1][1]:.0f} kB" for name, line in lines.items())
                print(
                    f"{done:6} deployments, {time.monotonic() - began:5.0f} s: {sizes}", flush=True
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployments", type=int, default=DEPLOYMENTS)
    parser.add_argument("--applications", type=int, default=APPLICATIONS)
    parser.add_argument("--picture", type=Path, help="the SVG file to draw")
    given = parser.parse_args()
    lines = measure(given.deployments, given.applications)
    for name, line in lines.items():
        half = line[len(line) // 2 :]
        print(
            f"{name}: {line[0][1] / 1024:.1f} MB at first, {line[-1][1] / 1024:.1f} MB in the end; "
            f"slope of the second half {slope(half):.2f} kB for each deployment "
            f"(target {TARGET_SLOPE:g})"
        )
    if given.picture:
        megabytes = {name: [(x, y / 1024) for x, y in line] for name, line in lines.items()}
        title = "Memory over deployments, a push for each"
        given.picture.write_text(draw(Curve("memory", title, "deployments", "MB", megabytes)))


if __name__ == "__main__":
    main()
