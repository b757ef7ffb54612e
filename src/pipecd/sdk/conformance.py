# SPDX-License-Identifier: Apache-2.0
"""Checks that a program is a plugin: runs it as piped, ours or upstream's, does."""

import asyncio
import json
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.model.deployment import STAGE_ANSWERS, StageStatus, SyncStrategy
from pipecd.model.errors import UserMistake
from pipecd.program import die_with_parent, output
from pipecd.program.port import free_port
from pipecd.program.run import run
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import host_pb2
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest
from pipecd.proto.plugin.livestate_pb2_grpc import LivestateServiceStub
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest
from pipecd.proto.plugin.planpreview_pb2_grpc import PlanPreviewServiceStub
from pipecd.sdk.serving import answers, loopback_channel, rpc_handlers, start_arguments
from pipecd.sdk.testing import MemoryHost, Sample
from pipecd.wire.server import grpc_server
from pipecd.wire.validation import check


class Verdict(Enum):
    """The result of one check."""

    OK = "ok"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """A checked question and its verdict; `why` explains a failed or skipped one."""

    question: str
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.verdict.value:8}{self.question}{why}"


class CheckFailed(Exception):
    """The plugin violates the protocol."""


class CheckSkipped(Exception):
    """The plugin does not implement the call, or the trial has no options for it."""


PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]
_START_TIMEOUT, _START_FAILURE_TIMEOUT = 30.0, 30.0
# Upstream's SDK takes up to a minute to send the log of a cancelled stage.
_EXIT_TIMEOUT = 75.0
_PLACEHOLDER_TARGET = DeployTargetSpec(name="made-up")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to try: a command, its entry if it needs one, and options of the stages to run."""

    command: Sequence[str]
    entry: PluginSpec | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])

    def spec(self, port: int) -> PluginSpec:
        """The entry that the program is started with."""
        entry = self.entry or PluginSpec(name="checked", deploy_targets=(_PLACEHOLDER_TARGET,))
        url = entry.url or Path(self.command[0]).absolute().as_uri()
        return entry.model_copy(update={"port": port, "url": url})


async def try_plugin(trial: Trial) -> AsyncIterator[Finding]:
    """Yields the result of every check as soon as it is known."""
    yield await _check(
        "it refuses to start without its flags", lambda: _expect_start_failure(trial, ["start"])
    )
    port = free_port()
    host = MemoryHost()
    rpc_table = rpc_handlers(PLUGIN_SERVICE, host)
    with tempfile.TemporaryDirectory(prefix="plugin-check-") as directory:
        async with grpc_server([rpc_table], host="localhost", port=0, grace=0) as service_port:
            piped = f"localhost:{service_port}"
            bad = ["start", "--piped-plugin-service", piped, "--config", "{"]
            yield await _check(
                "it refuses an entry that is not JSON", lambda: _expect_start_failure(trial, bad)
            )
            async for finding in _start_plugin(trial, host, Path(directory), (port, service_port)):
                yield finding


async def _start_plugin(
    trial: Trial, host: MemoryHost, directory: Path, ports: tuple[int, int]
) -> AsyncIterator[Finding]:
    port, service_port = ports
    spec = trial.spec(port)
    argv = [*trial.command, *start_arguments(spec, service_port=service_port)]
    async with _wait_for_start(argv) as (program, lines), loopback_channel(port) as channel:
        ready = await _check(
            "it answers on its port", lambda: _wait_until_serving(program, channel, lines)
        )
        yield ready
        if ready.verdict is Verdict.FAILED:
            return
        sample = Sample(
            plugin=spec.name,
            directory=directory,
            targets=[target.name for target in spec.deploy_targets],
        )
        inputs = CheckInputs(sample, host, trial.options, trial.entry is not None)
        questions = ConformanceChecks(channel, inputs)
        async for check, run in questions.all():
            yield await _check(check, run)
        yield await _check("it ends when it is told to", lambda: _expect_exit(program))
        yield await _check("it lets go of its port", lambda: _expect_port_free(port))


async def _check(check: str, run: Callable[[], Awaitable[None]]) -> Finding:
    try:
        await run()
    except CheckSkipped as e:
        return Finding(check, Verdict.SKIPPED, str(e))
    except CheckFailed as e:
        return Finding(check, Verdict.FAILED, str(e))
    return Finding(check, Verdict.OK)


async def _expect_start_failure(trial: Trial, arguments: Sequence[str]) -> None:
    try:
        async with asyncio.timeout(_START_FAILURE_TIMEOUT):
            done = await run([*trial.command, *arguments], cwd=Path.cwd(), grace=1)
    except TimeoutError as e:
        raise CheckFailed(f"it still runs after {_START_FAILURE_TIMEOUT:g}s") from e
    if done.code == 0:
        raise CheckFailed("it ends with exit code 0")


@asynccontextmanager
async def _wait_for_start(
    argv: Sequence[str],
) -> AsyncGenerator[tuple[die_with_parent.ChildProcess, output.Lines], None]:
    lines = output.Lines(None, keep=4096)
    async with output.pipe() as (reader, writing):
        program = await die_with_parent.start(
            argv, cwd=Path.cwd(), env=None, output=writing.fileno()
        )
        writing.close()
        reading = asyncio.ensure_future(lines.read(reader))
        try:
            yield program, lines
        finally:
            await program.end(grace=_EXIT_TIMEOUT)
            reading.cancel()


async def _wait_until_serving(
    program: die_with_parent.ChildProcess, channel: grpc.aio.Channel, lines: output.Lines
) -> None:
    ended = asyncio.ensure_future(program.process.wait())
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            # A server says by itself that it is there, and not that it is ready.
            while not ended.done() and not await answers(channel, 1):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError as e:
        raise CheckFailed(f"no answer within {_START_TIMEOUT:g}s; it wrote:\n{lines.text()}") from e
    finally:
        is_over = ended.done()
        ended.cancel()
    if is_over:
        raise CheckFailed(f"it ended at once; it wrote:\n{lines.text()}")


async def _expect_exit(program: die_with_parent.ChildProcess) -> None:
    program.process.terminate()
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT):
            await program.wait()
    except TimeoutError as e:
        raise CheckFailed(f"it still runs {_EXIT_TIMEOUT:g}s after SIGTERM") from e


async def _expect_port_free(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise CheckFailed(f"somebody still listens on {port}")


ResponseT = TypeVar("ResponseT")
ConformanceCheck = tuple[str, Callable[[], Awaitable[None]]]

_CALL_TIMEOUT = 30.0
_STAGE_TIMEOUT = 120.0
# Not the first index, so that a plugin that ignores it fails.
_STAGE_INDEX = 3


@dataclass(frozen=True)
class CheckInputs:
    """The inputs of the checks; `options` has those of the stages to run."""

    sample: Sample
    host: MemoryHost
    options: Mapping[str, object]
    has_entry: bool


class ConformanceChecks:
    """The checks of one plugin."""

    def __init__(self, channel: grpc.aio.Channel, inputs: CheckInputs) -> None:
        self._inputs, self._sample, self._host = inputs, inputs.sample, inputs.host
        self._deployment = DeploymentServiceStub(channel)
        self._livestate = LivestateServiceStub(channel)
        self._previewing = PlanPreviewServiceStub(channel)

    async def all(self) -> AsyncIterator[ConformanceCheck]:
        """Yields the checks in order; later ones need the results of earlier ones."""
        stages: list[str] = []

        async def names() -> None:
            stages.extend(await self._stages())

        yield "it names its stages", names
        yield "it tells versions", self._versions
        yield "it chooses a strategy or abstains", self._strategy
        yield "it plans a quick sync", self._quick_sync
        for stage in stages:
            yield f"it plans {stage}", lambda s=stage: self._plan(s, stages)
        yield "it fails a stage that it does not have", self._unknown_stage
        for stage in self._inputs.options:
            yield f"it runs {stage}", lambda s=stage: self._run(s)
            yield f"it survives that {stage} is cancelled", lambda s=stage: self._cancel(s)
        yield "it tells what runs", self._live_state
        yield "it tells what a change would do", self._preview

    async def _stages(self) -> list[str]:
        request = pb.FetchDefinedStagesRequest()
        answer = await self._call(
            self._deployment.FetchDefinedStages(request, timeout=_CALL_TIMEOUT)
        )
        names = list(answer.stages)
        if not all(names):
            raise CheckFailed("one of its stages has no name")
        if doubled := [name for name, count in Counter(names).items() if count > 1]:
            raise CheckFailed(f"it names {', '.join(doubled)} more than once")
        return names

    async def _versions(self) -> None:
        request = pb.DetermineVersionsRequest(input=self._plan_input())
        answer = await self._call(
            self._deployment.DetermineVersions(request, timeout=_CALL_TIMEOUT)
        )
        if any(not version.version for version in answer.versions):
            raise CheckFailed("one of the versions is empty")

    async def _strategy(self) -> None:
        request = pb.DetermineStrategyRequest(input=self._plan_input())
        answer = await self._call(
            self._deployment.DetermineStrategy(request, timeout=_CALL_TIMEOUT)
        )
        decided = (SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE)
        if not answer.unsupported and answer.sync_strategy not in decided:
            raise CheckFailed(f"it neither abstains nor decides, it answers {answer.sync_strategy}")

    async def _quick_sync(self) -> None:
        request = pb.BuildQuickSyncStagesRequest(rollback=True)
        answer = await self._call(
            self._deployment.BuildQuickSyncStages(request, timeout=_CALL_TIMEOUT)
        )
        if any(not stage.name for stage in answer.stages):
            raise CheckFailed("one of the stages has no name")

    async def _plan(self, stage: str, declared: list[str]) -> None:
        asked = pb.BuildPipelineSyncStagesRequest.StageConfig(
            name=stage, index=_STAGE_INDEX, config=self._options(stage)
        )
        request = pb.BuildPipelineSyncStagesRequest(rollback=True, stages=[asked])
        call = self._deployment.BuildPipelineSyncStages(request, timeout=_CALL_TIMEOUT)
        try:
            planned = (await self._call(call)).stages
        except CheckFailed as e:
            if stage not in self._inputs.options:
                raise CheckSkipped(f"it wants other options than none, give them ({e})") from e
            raise
        if strange := [s.name for s in planned if s.name not in declared]:
            raise CheckFailed(f"it plans {strange[0]}, which is not one of its stages")
        if strange := [str(s.index) for s in planned if s.index != _STAGE_INDEX]:
            raise CheckFailed(f"the stage at {_STAGE_INDEX} was planned at {strange[0]}")
        if any(count > 1 for count in Counter(s.rollback for s in planned).values()):
            raise CheckFailed(f"it plans two stages at {_STAGE_INDEX}")

    async def _unknown_stage(self) -> None:
        try:
            answer = await self._execute("THERE_IS_NO_SUCH_STAGE", _CALL_TIMEOUT)
        except CheckFailed as e:
            if "DEADLINE_EXCEEDED" in str(e):
                raise
            return
        if answer.status != StageStatus.FAILURE:
            raise CheckFailed(f"it answers status {answer.status}")

    async def _run(self, stage: str) -> None:
        before = len(self._host.blocks)
        answer = await self._execute(stage, _STAGE_TIMEOUT)
        if answer.status not in STAGE_ANSWERS:
            raise CheckFailed(f"it answers status {answer.status}, which is not an ending")
        if len(self._host.blocks) > before and not self._host.is_log_completed:
            raise CheckFailed("it ended before its log was complete")

    async def _cancel(self, stage: str) -> None:
        call = asyncio.ensure_future(self._execute(stage, _STAGE_TIMEOUT))
        await asyncio.wait({call}, timeout=0.3)
        call.cancel()
        await asyncio.wait({call})
        await self._stages()

    async def _live_state(self) -> None:
        deployment = self._sample.deployment()
        request = GetLivestateRequest(
            piped_id=deployment.piped_id,
            application_id=deployment.application_id,
            application_name=deployment.application_name,
            deploy_source=self._sample.source(),
            deploy_targets=self._sample.targets,
        )
        answer = await self._call_optional(
            self._livestate.GetLivestate(request, timeout=_CALL_TIMEOUT)
        )
        try:
            check(answer.application_live_state)
            check(answer.sync_state)
        except UserMistake as e:
            raise CheckFailed(str(e)) from e

    async def _preview(self) -> None:
        deployment = self._sample.deployment()
        request = GetPlanPreviewRequest(
            piped_id=deployment.piped_id,
            application_id=deployment.application_id,
            application_name=deployment.application_name,
            target_deployment_source=self._sample.source(),
            deploy_targets=self._sample.targets,
        )
        answer = await self._call_optional(
            self._previewing.GetPlanPreview(request, timeout=_CALL_TIMEOUT)
        )
        if strange := {r.deploy_target for r in answer.results} - set(self._sample.targets):
            raise CheckFailed(f"it tells of {min(strange)}, which was not asked for")

    async def _call_optional(self, call: Awaitable[ResponseT]) -> ResponseT:
        """Makes a call that may fail, because the deploy target does not exist."""
        try:
            return await self._call(call)
        except CheckFailed as e:
            if self._inputs.has_entry:
                raise
            raise CheckSkipped(f"it needs a real deploy target, give its entry ({e})") from e

    async def _execute(self, stage: str, within: float) -> pb.ExecuteStageResponse:
        # Each is a new stage, although it has the name of the one before.
        self._host.is_log_completed = False
        given = pb.ExecutePluginInput(
            deployment=self._sample.deployment(),
            stage=self._sample.stage(stage),
            stage_config=self._options(stage),
            target_deployment_source=self._sample.source(),
        )
        request = pb.ExecuteStageRequest(input=given)
        return await self._call(self._deployment.ExecuteStage(request, timeout=within))

    async def _call(self, call: Awaitable[ResponseT]) -> ResponseT:
        try:
            answer: ResponseT | None = await call
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise CheckSkipped("it does not offer this") from e
            raise CheckFailed(f"{e.code().name} {e.details()}") from e
        if answer is None:
            raise CheckFailed("its answer cannot be understood")
        return answer

    def _plan_input(self) -> pb.PlanPluginInput:
        return pb.PlanPluginInput(
            deployment=self._sample.deployment(), target_deployment_source=self._sample.source()
        )

    def _options(self, stage: str) -> bytes:
        return json.dumps(self._inputs.options.get(stage, {})).encode()
