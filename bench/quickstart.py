# SPDX-License-Identifier: Apache-2.0
"""Startup time, first start to rolled back, push to SUCCESS and idle memory of the quickstart."""

import asyncio
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pipecd.model.deployment import DeploymentStatus
from pipecd.plugins.process.programs import find_programs
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from rig.control_plane import memory_of

PUSHES = 20
IDLE_SECONDS = 10.0
PIPECD = Path(sys.executable).parent / "pipecd"
PIPECTL = Path(sys.executable).parent / "pipectl"


def start(data: Path) -> tuple["subprocess.Popen[str]", float, str]:
    """Starts a quickstart; returns the process, its startup time in seconds and its address."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [PIPECD, "quickstart", "--data-dir", str(data), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://(127\.0\.0\.1:\d+)", line):
            return process, time.perf_counter() - began, match[1]
    sys.exit("the quickstart exited before it was ready")


def commit(repository: Path, text: str) -> str:
    (repository / "hello/greeting.txt").write_text(text)
    git = ["git", "-C", str(repository), "-c", "user.name=bench", "-c", "user.email=b@localhost"]
    subprocess.run([*git, "commit", "--quiet", "-am", text], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()


async def seconds_to_success(api: Any, sha: str, began: float) -> float:
    while time.perf_counter() - began < 60:
        listed = await api.ListDeployments(pb.ListDeploymentsRequest(limit=3))
        for deployment in listed.deployments:
            if deployment.trigger.commit.hash == sha:
                status = DeploymentStatus(deployment.status)
                if status is DeploymentStatus.SUCCESS:
                    return time.perf_counter() - began
                if status.is_completed:
                    sys.exit(f"deployment {deployment.id} completed as {status.name}")
        await asyncio.sleep(0.01)
    sys.exit(f"commit {sha} was not deployed within a minute")


async def pushes(address: str, data: Path) -> list[float]:
    key = (data / "api-key").read_text()
    async with open_channel(
        address, authorization=credentials.api_key(key), insecure=True
    ) as channel:
        api = APIServiceStub(channel)
        taken: list[float] = []
        for number in range(PUSHES):
            sha = commit(data / "sample", f"push {number}")
            taken.append(await seconds_to_success(api, sha, time.perf_counter()))
            await asyncio.sleep(0.2)
        return taken


async def seconds_to_rollback(address: str, data: Path, began: float) -> float:
    """Breaks the web service of a quickstart that was just started, until it is rolled back."""
    command = [PIPECD, "quickstart", "--break", "--data-dir", str(data)]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    key = (data / "api-key").read_text()
    async with open_channel(
        address, authorization=credentials.api_key(key), insecure=True
    ) as channel:
        api = APIServiceStub(channel)
        while time.perf_counter() - began < 120:
            listed = await api.ListDeployments(pb.ListDeploymentsRequest(limit=3))
            for deployment in listed.deployments:
                if DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE:
                    return time.perf_counter() - began
            await asyncio.sleep(0.05)
    sys.exit("the broken web service was not rolled back within two minutes")


def whole_memory(pid: int, data: Path) -> float:
    """Returns the memory of the quickstart, its supervisor and the web service in megabytes."""
    programs = data / "programs"
    supervisor = int((programs / "control" / "lock").read_text())
    return sum(map(memory_of, (pid, supervisor, *find_programs(str(programs)))))


def help_seconds() -> float:
    times: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([PIPECTL, "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    data = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    began = time.perf_counter()
    process, ready, address = start(data)
    try:
        print(f"quickstart ready          {ready:6.2f} s   (target: 3)")
        rolled_back = asyncio.run(seconds_to_rollback(address, data, began))
        print(f"start, --break, rollback  {rolled_back:6.2f} s   (target: 60)")
        taken = sorted(asyncio.run(pushes(address, data)))
        p95 = taken[round(0.95 * (len(taken) - 1))]
        print(f"push to SUCCESS p50       {statistics.median(taken):6.2f} s   (target: 1.5)")
        print(f"push to SUCCESS p95       {p95:6.2f} s   (target: 3; upstream: median 53)")
        time.sleep(IDLE_SECONDS)
        print(f"idle resident memory      {whole_memory(process.pid, data):6.0f} MB  (target: 180)")
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(data, ignore_errors=True)
    print(f"pipectl --help            {help_seconds():6.2f} s   (target: 0.4)")


if __name__ == "__main__":
    main()
