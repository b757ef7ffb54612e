# SPDX-License-Identifier: Apache-2.0
"""Checks that a program implements the plugin protocol: starts and calls it as piped does."""

import asyncio
import json
import socket
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TypeVar

import grpc
import grpc.aio

from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.model.deployment import PLUGIN_STAGE_STATUSES, StageStatus, SyncStrategy
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
from pipecd.sdk.serving import is_serving, local_channel, rpc_handlers, start_arguments
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
    """The verdict about one question; `why` explains a failed or skipped check."""

    question: str
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.verdict.value:8}{self.question}{why}"


class CheckFailed(Exception):
    """The plugin violates the protocol."""


class CheckSkipped(Exception):
    """The plugin does not implement the RPC, or the trial has no options for the stage."""


PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]
# Piped waits as long for a plugin to start.
_START_TIMEOUT, _START_FAILURE_TIMEOUT = 60.0, 60.0
# Upstream's SDK takes up to a minute to send the log of a cancelled stage.
_EXIT_TIMEOUT = 75.0
_END_TIMEOUT = 5.0
_PLACEHOLDER_TARGET = DeployTargetSpec(name="placeholder")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The plugin to check: its command, its entry if it needs one, options of stages to run.

    `tools` are the programs that it gets when it installs them, by name.
    """

    command: Sequence[str]
    entry: PluginSpec | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    tools: Mapping[str, Path] = field(default_factory=dict[str, Path])

    def spec(self, port: int) -> PluginSpec:
        """Returns the entry that the program is started with."""
        entry = self.entry or PluginSpec(name="checked", deploy_targets=(_PLACEHOLDER_TARGET,))
        url = entry.url or Path(self.command[0]).absolute().as_uri()
        return entry.model_copy(update={"port": port, "url": url})


async def try_plugin(trial: Trial) -> AsyncIterator[Finding]:
    """Yields the result of every check as soon as it is known."""
    yield await _check(
        "it refuses to start without its flags", lambda: _expect_start_failure(trial, ["start"])
    )
    port, host = free_port(), MemoryHost()
    host.tools.update(trial.tools)
    spec = trial.spec(port)
    async with AsyncExitStack() as opened:
        directory = opened.enter_context(tempfile.TemporaryDirectory(prefix="plugin-check-"))
        services = [rpc_handlers(PLUGIN_SERVICE, host)]
        service_port = await opened.enter_async_context(
            grpc_server(services, host="localhost", port=0, grace=0)
        )
        piped = f"localhost:{service_port}"
        bad = ["start", "--piped-plugin-service", piped, "--config", "{"]
        yield await _check(
            "it refuses an entry that is not JSON", lambda: _expect_start_failure(trial, bad)
        )
        argv = [*trial.command, *start_arguments(spec, piped=piped)]
        program, lines = await opened.enter_async_context(_started(argv))
        channel = await opened.enter_async_context(local_channel(f"localhost:{port}"))
        ready = await _check(
            "it answers on its port", lambda: _wait_until_serving(program, channel, lines)
        )
        yield ready
        if ready.verdict is Verdict.FAILED:
            return
        sample = Sample(
            plugin=spec.name,
            directory=Path(directory),
            targets=[target.name for target in spec.deploy_targets],
        )
        async for question, run_check in ConformanceChecks(channel, trial, sample, host).all():
            yield await _check(question, run_check)
        yield await _check("it stops on SIGTERM", lambda: _expect_exit(program, channel))
        yield await _check("it frees its port", lambda: _expect_port_free(port))


async def _check(question: str, run_check: Callable[[], Awaitable[None]]) -> Finding:
    try:
        await run_check()
    except CheckSkipped as e:
        return Finding(question, Verdict.SKIPPED, str(e))
    except CheckFailed as e:
        return Finding(question, Verdict.FAILED, str(e))
    return Finding(question, Verdict.OK)


async def _expect_start_failure(trial: Trial, arguments: Sequence[str]) -> None:
    try:
        async with asyncio.timeout(_START_FAILURE_TIMEOUT):
            done = await run([*trial.command, *arguments], cwd=Path.cwd(), grace=1)
    except TimeoutError as e:
        raise CheckFailed(f"it still runs after {_START_FAILURE_TIMEOUT:g}s") from e
    if done.code == 0:
        raise CheckFailed("it ends with exit code 0")


@asynccontextmanager
async def _started(
    argv: Sequence[str],
) -> AsyncGenerator[tuple[die_with_parent.ChildProcess, output.Lines], None]:
    """Runs the program for the length of the block, and collects its output."""
    lines = output.Lines(None, keep=4096)
    async with output.pipe() as (reader, writing, _):
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
            while not ended.done() and not await is_serving(channel, 1):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError as e:
        raise CheckFailed(f"no response within {_START_TIMEOUT:g}s; {_written(lines)}") from e
    finally:
        has_exited = ended.done()
        ended.cancel()
    if has_exited:
        raise CheckFailed(f"it exited at once; {_written(lines)}")


def _written(lines: output.Lines) -> str:
    text = lines.text()
    return f"it wrote:\n{text}" if text.strip() else "it wrote nothing"


async def _expect_exit(program: die_with_parent.ChildProcess, channel: grpc.aio.Channel) -> None:
    if not await is_serving(channel, 1):
        # The connections of a program that ended are closed before its end is reported.
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_TIMEOUT):
                await program.process.wait()
    if program.process.returncode is not None:
        raise CheckFailed(f"it ended before, with exit code {program.process.returncode}")
    program.process.terminate()
    try:
        async with asyncio.timeout(_EXIT_TIMEOUT):
            await program.wait()
    except TimeoutError as e:
        raise CheckFailed(f"it still runs {_EXIT_TIMEOUT:g}s after SIGTERM") from e


async def _expect_port_free(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise CheckFailed(f"port {port} is still in use")


ResponseT = TypeVar("ResponseT")
ConformanceCheck = tuple[str, Callable[[], Awaitable[None]]]

_CALL_TIMEOUT = 30.0
_STAGE_TIMEOUT = 120.0
# Not the first index, so that a plugin that ignores it fails.
_STAGE_INDEX = 3


class ConformanceChecks:
    """The checks of one running plugin."""

    def __init__(
        self, channel: grpc.aio.Channel, trial: Trial, sample: Sample, host: MemoryHost
    ) -> None:
        self._trial, self._sample, self._host = trial, sample, host
        self._deployment = DeploymentServiceStub(channel)
        self._livestate = LivestateServiceStub(channel)
        self._planpreview = PlanPreviewServiceStub(channel)

    async def all(self) -> AsyncIterator[ConformanceCheck]:
        """Yields the checks in order; later ones need the results of earlier ones."""
        stages: list[str] = []

        async def list_stages() -> None:
            stages.extend(await self._stages())

        yield "it lists its stages", list_stages
        yield "it determines versions", self._versions
        yield "it chooses a strategy or abstains", self._strategy
        yield "it plans a quick sync", self._quick_sync
        for stage in stages:
            yield f"it plans {stage}", lambda s=stage: self._plan(s, stages)
        yield "it fails an unknown stage", self._unknown_stage
        for stage in self._trial.options:
            yield f"it runs {stage}", lambda s=stage: self._run(s)
            yield f"it survives the cancellation of {stage}", lambda s=stage: self._cancel(s)
        yield "it reports the live state", self._live_state
        yield "it previews a change", self._preview

    async def _stages(self) -> list[str]:
        request = pb.FetchDefinedStagesRequest()
        response = await self._call(
            self._deployment.FetchDefinedStages(request, timeout=_CALL_TIMEOUT)
        )
        names = list(response.stages)
        if not all(names):
            raise CheckFailed("one of its stages has no name")
        if duplicates := [name for name, count in Counter(names).items() if count > 1]:
            raise CheckFailed(f"it lists {', '.join(duplicates)} more than once")
        return names

    async def _versions(self) -> None:
        request = pb.DetermineVersionsRequest(input=self._plan_input())
        response = await self._call(
            self._deployment.DetermineVersions(request, timeout=_CALL_TIMEOUT)
        )
        if any(not version.version for version in response.versions):
            raise CheckFailed("one of the versions is empty")

    async def _strategy(self) -> None:
        request = pb.DetermineStrategyRequest(input=self._plan_input())
        response = await self._call(
            self._deployment.DetermineStrategy(request, timeout=_CALL_TIMEOUT)
        )
        decisions = (SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE)
        if not response.unsupported and response.sync_strategy not in decisions:
            raise CheckFailed(
                f"it neither abstains nor decides, it returns {response.sync_strategy}"
            )

    async def _quick_sync(self) -> None:
        request = pb.BuildQuickSyncStagesRequest(rollback=True)
        response = await self._call(
            self._deployment.BuildQuickSyncStages(request, timeout=_CALL_TIMEOUT)
        )
        if any(not stage.name for stage in response.stages):
            raise CheckFailed("one of the stages has no name")

    async def _plan(self, stage: str, declared: list[str]) -> None:
        requested = pb.BuildPipelineSyncStagesRequest.StageConfig(
            name=stage, index=_STAGE_INDEX, config=self._options(stage)
        )
        request = pb.BuildPipelineSyncStagesRequest(rollback=True, stages=[requested])
        call = self._deployment.BuildPipelineSyncStages(request, timeout=_CALL_TIMEOUT)
        try:
            planned = (await self._call(call)).stages
        except CheckFailed as e:
            if stage not in self._trial.options:
                raise CheckSkipped(f"it requires options, pass them ({e})") from e
            raise
        if undeclared := [s.name for s in planned if s.name not in declared]:
            raise CheckFailed(f"it plans {undeclared[0]}, which is not one of its stages")
        if misplaced := [s.index for s in planned if s.index != _STAGE_INDEX]:
            raise CheckFailed(f"it plans the stage of index {_STAGE_INDEX} at index {misplaced[0]}")
        if any(count > 1 for count in Counter(s.rollback for s in planned).values()):
            raise CheckFailed(f"it plans two stages at index {_STAGE_INDEX}")

    async def _unknown_stage(self) -> None:
        try:
            response = await self._execute("UNKNOWN_STAGE", _CALL_TIMEOUT)
        except CheckFailed as e:
            # No response at all, or the end of the plugin.
            if str(e).startswith(("DEADLINE_EXCEEDED", "UNAVAILABLE")):
                raise
            return
        if response.status != StageStatus.FAILURE:
            raise CheckFailed(f"it returns status {response.status}")

    async def _run(self, stage: str) -> None:
        before = len(self._host.blocks)
        response = await self._execute(stage, _STAGE_TIMEOUT)
        if response.status not in PLUGIN_STAGE_STATUSES:
            raise CheckFailed(f"it returns status {response.status}, which is not final")
        if len(self._host.blocks) > before and not self._host.is_log_completed:
            raise CheckFailed("it returned before its log was complete")

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
        response = await self._call_optional(
            self._livestate.GetLivestate(request, timeout=_CALL_TIMEOUT)
        )
        try:
            check(response.application_live_state)
            check(response.sync_state)
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
        response = await self._call_optional(
            self._planpreview.GetPlanPreview(request, timeout=_CALL_TIMEOUT)
        )
        if others := {r.deploy_target for r in response.results} - set(self._sample.targets):
            raise CheckFailed(f"it previews {min(others)}, which was not requested")

    async def _call_optional(self, call: Awaitable[ResponseT]) -> ResponseT:
        """Awaits an RPC that may fail because the deploy target does not exist."""
        try:
            return await self._call(call)
        except CheckFailed as e:
            if self._trial.entry is not None:
                raise
            raise CheckSkipped(f"it needs a real deploy target, pass its entry ({e})") from e

    async def _execute(self, stage: str, timeout_seconds: float) -> pb.ExecuteStageResponse:
        # Every call executes a new stage, which begins a new log.
        self._host.is_log_completed = False
        plugin_input = pb.ExecutePluginInput(
            deployment=self._sample.deployment(),
            stage=self._sample.stage(stage),
            stage_config=self._options(stage),
            target_deployment_source=self._sample.source(),
        )
        request = pb.ExecuteStageRequest(input=plugin_input)
        return await self._call(self._deployment.ExecuteStage(request, timeout=timeout_seconds))

    async def _call(self, call: Awaitable[ResponseT]) -> ResponseT:
        try:
            response: ResponseT | None = await call
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise CheckSkipped("not implemented") from e
            raise CheckFailed(f"{e.code().name} {e.details()}") from e
        if response is None:
            raise CheckFailed("its response cannot be decoded")
        return response

    def _plan_input(self) -> pb.PlanPluginInput:
        return pb.PlanPluginInput(
            deployment=self._sample.deployment(), target_deployment_source=self._sample.source()
        )

    def _options(self, stage: str) -> bytes:
        return json.dumps(self._trial.options.get(stage, {})).encode()
