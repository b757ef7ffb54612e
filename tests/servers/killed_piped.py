# SPDX-License-Identifier: Apache-2.0
"""Pipeds that are killed at their n-th call to the control plane, or at a line of a script.

`piped run` is a process of its own and the control plane a real one. A handler between them kills
the process, before or after a call has taken effect.
"""

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import grpc

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.service import piped_pb2 as pb
from servers.batches import BATCH, each_call
from servers.control_plane import LocalPiped
from servers.piped import piped_arguments, piped_config

# Calls that piped repeats regularly; they are not counted.
POLLED = frozenset({
    "ListApplications", "ListDeploymentsInOrder", "ListUnhandledCommands", "ReportStat",
    "ReportPipedMeta", "WatchWakeups", "ReportUnregisteredApplicationConfigurations", "ListEvents",
    "UpdateApplicationConfigurations", "GetDesiredVersion", "AcquirePipedLease",
    "ReleasePipedLease",
})  # fmt: skip

MAIN = "import sys; from pipecd.cli import piped_main; sys.argv = {argv!r}; piped_main()"


@dataclass(frozen=True)
class KillPoint:
    """Where a piped is killed: at its n-th call or at the n-th line that its scripts write."""

    name: str
    call: int = 0
    takes_effect: bool = False
    line: int = 0


@dataclass
class KilledPiped:
    """A piped with one application, and everything that was recorded about its deployment."""

    point: KillPoint
    piped: LocalPiped
    directory: Path
    trace: Path
    """The file to which the scripts of its stages write."""
    webhook: str
    process: ForkServerProcess | None = None
    calls: list[str] = field(default_factory=list[str])
    killed_at: str = ""
    runs_when_completed: dict[str, int] = field(default_factory=dict[str, int])
    """How often a stage had started when piped first reported it as completed, by stage id."""
    reported: list[str] = field(default_factory=list[str])
    """The statuses of the deployment and its stages, in the order of the reports."""
    scripts: dict[str, str] = field(default_factory=dict[str, str])
    """The name of the script of each stage, by stage id."""

    def lines(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def runs(self) -> Counter[str]:
        """How often each script started, by the first lines that it wrote."""
        return Counter(line.split()[0] for line in self.lines() if line.endswith(" 1"))

    def kill(self, where: str) -> None:
        if not self.killed_at and self.process is not None and self.process.pid is not None:
            self.killed_at = where
            os.kill(self.process.pid, signal.SIGKILL)

    def record(self, rpc: str, request: bytes) -> None:
        """Records a report."""
        match rpc:
            case "ReportStageStatusChanged":
                stage = pb.ReportStageStatusChangedRequest.FromString(request)
                status = StageStatus(stage.status)
                self.reported.append(f"{stage.stage_id} {status.name}")
                if status.is_completed:
                    runs = self.runs()[self.scripts.get(stage.stage_id, "")]
                    self.runs_when_completed.setdefault(stage.stage_id, runs)
            case "ReportDeploymentPlanned":
                plan = pb.ReportDeploymentPlannedRequest.FromString(request)
                scripts = ("A", "B", "undoA", "undoB")
                self.scripts.update(zip((s.id for s in plan.stages), scripts, strict=True))
            case "ReportDeploymentStatusChanged":
                changed = pb.ReportDeploymentStatusChangedRequest.FromString(request)
                self.reported.append(DeploymentStatus(changed.status).name)
            case "ReportDeploymentCompleted":
                completed = pb.ReportDeploymentCompletedRequest.FromString(request)
                self.reported.append(DeploymentStatus(completed.status).name)
            case _:
                pass


@dataclass
class KillingHandler(grpc.GenericRpcHandler):
    """Records the calls of pipeds to the control plane, and kills the pipeds."""

    table: grpc.GenericRpcHandler
    pipeds: dict[str, KilledPiped] = field(default_factory=dict[str, KilledPiped])
    """The pipeds by id."""

    def service(self, handler_call_details: Any) -> Any:
        handler = self.table.service(handler_call_details)
        rpc = handler_call_details.method.rpartition("/")[2]
        if rpc == BATCH:
            return each_call(self.service, handler_call_details)
        metadata = dict(handler_call_details.invocation_metadata)
        piped = self.pipeds.get(str(metadata.get("authorization", "")).split(",")[1])
        serve: Any = None if handler is None else handler.unary_unary
        if serve is None or piped is None or rpc in POLLED:
            return handler

        async def handle(request: bytes, context: Any) -> bytes:
            piped.calls.append(rpc)
            piped.record(rpc, request)
            is_reached = len(piped.calls) == piped.point.call
            where = f"{rpc} ({'after' if piped.point.takes_effect else 'before'} its effect)"
            if is_reached and not piped.point.takes_effect:
                piped.kill(where)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "piped was killed")
            try:
                return await serve(request, context)
            finally:
                if is_reached:
                    piped.kill(where)

        return grpc.unary_unary_rpc_method_handler(handle)


class PipedProcesses:
    """Starts `piped run` quickly, from a process that has imported the code already."""

    def __init__(self) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pipecd.piped.command"])

    def start(self, killed: KilledPiped, remote: str) -> ForkServerProcess:
        """Starts the process of a piped."""
        config = killed.directory / "piped.yaml"
        piped = killed.piped
        rest = f"""\
  syncInterval: 1s
  notifications:
    routes: [{{receiver: people, ignoreGroups: [PIPED]}}]
    receivers: [{{name: people, webhook: {{url: "{killed.webhook}"}}}}]
"""
        address = piped.plane.address
        config.write_text(
            piped_config(piped.id, piped.key, address=address, remote=remote, rest=rest)
        )
        argv = ["piped", *piped_arguments(config, "--log-level=error")]
        killed.process = self._context.Process(target=exec, args=(MAIN.format(argv=argv),))
        killed.process.start()
        return killed.process


async def wait_for_exit(process: ForkServerProcess) -> None:
    """Waits for the exit of a process without blocking the event loop."""
    exited = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(process.sentinel, exited.set)
    try:
        await exited.wait()
    finally:
        loop.remove_reader(process.sentinel)
    process.join()
