# SPDX-License-Identifier: Apache-2.0
"""Deployments of one piped that stream their logs at the same time, and how late lines arrive."""

import json
import re
import sqlite3
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import many
from pipecd.model.deployment import DeploymentStatus

LINES, PAUSE = 60, 0.1
TIMEOUT_SECONDS = 180.0
# Each line is the time at which it was printed. One program: a shell would start two for each line.
SCRIPT = f"""\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {{name}}
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with:
          run: |
            cat version
            exec perl -MTime::HiRes=time,sleep -e '
              $| = 1;
              for $n (1..{LINES}) {{{{ printf "line %d at %.6f\\n", $n, time; sleep {PAUSE} }}}}'
  trigger: {{{{onCommit: {{{{disabled: {{quiet}}}}}}}}}}
"""
FLOODING, FLOOD_LINES = 20, 5000
FLOOD = f"""\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: {{name}}
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with: {{{{run: "cat version; seq -f 'line %.0f at 0' {FLOOD_LINES}"}}}}
  trigger: {{{{onCommit: {{{{disabled: {{quiet}}}}}}}}}}
"""
LINE = re.compile(r"line (\d+) at ([0-9.]+)")


@dataclass(frozen=True)
class StreamedLogs:
    """The lag of lines in seconds, how many arrived, how many in a second, how many were lost."""

    median: float
    p99: float
    lines: int
    rate: float
    lost: int


def measure_logs(count: int) -> StreamedLogs:
    """Runs so many deployments at once and reads their logs in the control plane meanwhile."""
    with many.run_push_installation(count, application=SCRIPT) as installation:
        running, server, _, database = installation
        lags: dict[tuple[str, int], float] = {}
        began = time.monotonic()
        while many.count_with_status(database, DeploymentStatus.SUCCESS) < count:
            if time.monotonic() - began > TIMEOUT_SECONDS or running.process.poll() is not None:
                sys.exit("the deployments with logs did not succeed")
            _read_new_lines(database, lags)
            time.sleep(0.05)
        stored = _stored_lines(server.files)
    times = sorted(lags.values())
    return StreamedLogs(
        statistics.median(times),
        times[int(0.99 * (len(times) - 1))],
        stored,
        stored / (LINES * PAUSE),
        count * LINES - stored,
    )


@dataclass(frozen=True)
class LogIntake:
    """How many lines a second were stored of programs that print without a pause, and lost."""

    rate: float
    lost: int
    piped_cpu: float
    server_cpu: float


def measure_intake() -> LogIntake:
    """Runs deployments that print thousands of lines at once."""
    with many.run_push_installation(FLOODING, application=FLOOD) as installation:
        running, server, repository, database = installation
        many.wait_for_success(database, running, FLOODING)
        piped_before, server_before = running.cpu_seconds(), server.cpu_seconds()
        many.commit(repository, FLOODING, "second", application=FLOOD)
        seconds, _ = many.wait_for_success(database, running, 2 * FLOODING)
        lines = FLOODING * FLOOD_LINES
        return LogIntake(
            lines / seconds,
            2 * lines - _stored_lines(server.files),
            running.cpu_seconds() - piped_before,
            server.cpu_seconds() - server_before,
        )


def _stored_lines(files: Path) -> int:
    """Counts the different lines of every log file."""
    return sum(
        len(set(LINE.findall(path.read_text()))) for path in files.rglob("*") if path.is_file()
    )


def _read_new_lines(database: sqlite3.Connection, lags: dict[tuple[str, int], float]) -> None:
    now = time.time()
    for deployment, data in database.execute("SELECT DeploymentId, Data FROM ExtLogBlock"):
        text = json.loads(data).get("log", "") if isinstance(data, str) else str(data)
        for number, at in LINE.findall(text):
            lags.setdefault((deployment, int(number)), now - float(at))
