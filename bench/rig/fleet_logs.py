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
# Each line is the time at which it was printed.
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
            n=0
            while [ $n -lt {LINES} ]; do
              echo "line $n at $(date +%s.%N)"; n=$((n+1)); sleep {PAUSE}
            done
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
        stored = sum(
            len(set(LINE.findall(path.read_text())))
            for path in Path(server.files).rglob("*")
            if path.is_file()
        )
    times = sorted(lags.values())
    return StreamedLogs(
        statistics.median(times),
        times[int(0.99 * (len(times) - 1))],
        stored,
        stored / (LINES * PAUSE),
        count * LINES - stored,
    )


def _read_new_lines(database: sqlite3.Connection, lags: dict[tuple[str, int], float]) -> None:
    now = time.time()
    for deployment, data in database.execute("SELECT DeploymentId, Data FROM ExtLogBlock"):
        text = json.loads(data).get("log", "") if isinstance(data, str) else str(data)
        for number, at in LINE.findall(text):
            lags.setdefault((deployment, int(number)), now - float(at))
