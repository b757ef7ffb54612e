# SPDX-License-Identifier: Apache-2.0
"""Pipeds that are killed: by the n-th call that reaches the control plane, or at a line of a script.

Nothing is replaced: `piped run` is a process of its own, the control plane is a real one, and the
one who kills stands between them, before or after a call has taken effect.
"""

import asyncio
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.service import piped_pb2 as pb
from servers.piped import piped_arguments, piped_config
from servers.receivers import Receivers

# What a piped asks again and again says nothing about how far it got.
ROUTINE = frozenset({
    "ListApplications", "ListNotCompletedDeployments", "ListUnhandledCommands", "ReportStat",
    "ReportPipedMeta", "WatchWakeups", "ReportUnregisteredApplicationConfigurations", "ListEvents",
    "UpdateApplicationConfigurations", "GetDesiredVersion",
})  # fmt: skip

MAIN = "import sys; from pipecd.cli import piped_main; sys.argv = {argv!r}; piped_main()"


@dataclass(frozen=True)
class Point:
    """Where a piped is killed: at its n-th call or at the n-th line that its scripts write."""

    name: str
    call: int = 0
    takes_effect: bool = False
    line: int = 0


@dataclass
class Case:
    """One application, the piped that deploys it, and everything that was recorded about it."""

    point: Point
    directory: Path
    trace: Path
    hook: str
    """Where what people are told arrives."""
    piped_id: str = ""
    key: str = ""
    process: Any = None
    calls: list[str] = field(default_factory=list[str])
    killed_at: str = ""
    begun_when_over: dict[str, int] = field(default_factory=dict[str, int])
    """How often a stage had begun when piped first said that it was over, by the stage's id."""
    history: list[str] = field(default_factory=list[str])
    stage_words: dict[str, str] = field(default_factory=dict[str, str])

    def lines(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def begun(self) -> Counter[str]:
        """How often each script began: its first lines."""
        return Counter(line.split()[0] for line in self.lines() if line.endswith(" 1"))

    def kill(self, where: str) -> None:
        if not self.killed_at:
            self.killed_at = where
            os.kill(self.process.pid, signal.SIGKILL)


@dataclass
class Reaper(grpc.GenericRpcHandler):
    """Stands before the control plane, writes down what pipeds report, and kills them."""

    table: grpc.GenericRpcHandler
    cases: dict[str, Case] = field(default_factory=dict[str, Case])

    def service(self, handler_call_details: Any) -> Any:
        handler = self.table.service(handler_call_details)
        name = handler_call_details.method.rpartition("/")[2]
        metadata = dict(handler_call_details.invocation_metadata)
        case = self.cases.get(str(metadata.get("authorization", "")).split(",")[1])
        if handler is None or case is None or name in ROUTINE:
            return handler
        return grpc.unary_unary_rpc_method_handler(self._watching(case, name, handler.unary_unary))

    def _watching(self, case: Case, name: str, serve: Any) -> Any:
        async def watch(request: bytes, context: Any) -> bytes:
            case.calls.append(name)
            _write_down(case, name, request)
            is_it = len(case.calls) == case.point.call
            where = f"{name} ({'after' if case.point.takes_effect else 'before'} its effect)"
            if is_it and not case.point.takes_effect:
                case.kill(where)
                await context.abort(grpc.StatusCode.UNAVAILABLE, "nobody is listening any more")
            try:
                return await serve(request, context)
            finally:
                if is_it:
                    case.kill(where)

        return watch


def _write_down(case: Case, name: str, request: bytes) -> None:
    match name:
        case "ReportStageStatusChanged":
            stage = pb.ReportStageStatusChangedRequest.FromString(request)
            status = StageStatus(stage.status)
            case.history.append(f"{stage.stage_id} {status.name}")
            word = case.stage_words.get(stage.stage_id, "")
            if status.is_completed:
                case.begun_when_over.setdefault(stage.stage_id, case.begun()[word])
        case "ReportDeploymentPlanned":
            plan = pb.ReportDeploymentPlannedRequest.FromString(request)
            words = ("A", "B", "undoA", "undoB")
            case.stage_words.update(zip((s.id for s in plan.stages), words, strict=True))
        case "ReportDeploymentStatusChanged":
            moved = pb.ReportDeploymentStatusChangedRequest.FromString(request)
            case.history.append(DeploymentStatus(moved.status).name)
        case "ReportDeploymentCompleted":
            ended = pb.ReportDeploymentCompletedRequest.FromString(request)
            case.history.append(DeploymentStatus(ended.status).name)
        case _:
            pass


@pytest.fixture(scope="session")
def start_piped() -> Callable[[Case, str, str], Any]:
    """Starts `piped run` for a case; a process that knows the code already makes that quick."""
    nursery = multiprocessing.get_context("forkserver")
    nursery.set_forkserver_preload(["pipecd.piped.command"])

    def start(case: Case, address: str, remote: str) -> Any:
        config = case.directory / "piped.yaml"
        rest = f"""\
  syncInterval: 1s
  notifications:
    routes: [{{receiver: people, ignoreGroups: [PIPED]}}]
    receivers: [{{name: people, webhook: {{url: "{case.hook}"}}}}]
"""
        text = piped_config(case.piped_id, case.key, address=address, remote=remote, rest=rest)
        config.write_text(text)
        argv = ["piped", *piped_arguments(config, "--log-level=error")]
        case.process = nursery.Process(target=exec, args=(MAIN.format(argv=argv),))
        case.process.start()
        return case.process

    return start


@pytest.fixture
def ended() -> Callable[[Any], Any]:
    """Waits for the end of a process without holding anybody up."""

    async def wait(process: Any) -> None:
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(process.sentinel, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(process.sentinel)
        process.join()

    return wait


@pytest.fixture
def killing(receivers: Receivers) -> SimpleNamespace:
    """What a test needs to say where pipeds are killed, and to hear what they tell."""
    return SimpleNamespace(Case=Case, Point=Point, Reaper=Reaper, receivers=receivers)
