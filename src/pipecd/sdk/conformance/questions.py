# SPDX-License-Identifier: Apache-2.0
"""What a running plugin is asked, and which answers are right."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import grpc
import grpc.aio

from pipecd.model.deployment import STAGE_ANSWERS, StageStatus, SyncStrategy
from pipecd.model.errors import UserMistake
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest
from pipecd.proto.plugin.livestate_pb2_grpc import LivestateServiceStub
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest
from pipecd.proto.plugin.planpreview_pb2_grpc import PlanPreviewServiceStub
from pipecd.sdk.conformance.finding import NotTried, Wrong
from pipecd.sdk.testing.host import MemoryHost
from pipecd.sdk.testing.sample import Sample
from pipecd.wire.validation import check

AnswerT = TypeVar("AnswerT")
Question = tuple[str, Callable[[], Awaitable[None]]]

_ANSWERED = 30.0
_STAGE_ENDS = 120.0
# Not the first place, so that a plugin that ignores its place is found out.
_PLACE = 3


@dataclass(frozen=True)
class Surroundings:
    """What a plugin finds: `options` are those of the stages that may be run."""

    sample: Sample
    host: MemoryHost
    options: Mapping[str, object]
    has_entry: bool


class Questions:
    """The questions to one plugin."""

    def __init__(self, channel: grpc.aio.Channel, around: Surroundings) -> None:
        self._around, self._sample, self._host = around, around.sample, around.host
        self._deployment = DeploymentServiceStub(channel)
        self._livestate = LivestateServiceStub(channel)
        self._previewing = PlanPreviewServiceStub(channel)

    async def all(self) -> AsyncIterator[Question]:
        """One after the other, since later ones need what the earlier have found."""
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
        for stage in self._around.options:
            yield f"it runs {stage}", lambda s=stage: self._run(s)
            yield f"it survives that {stage} is cancelled", lambda s=stage: self._cancel(s)
        yield "it tells what runs", self._live_state
        yield "it tells what a change would do", self._preview

    async def _stages(self) -> list[str]:
        request = pb.FetchDefinedStagesRequest()
        answer = await self._ask(self._deployment.FetchDefinedStages(request, timeout=_ANSWERED))
        names = list(answer.stages)
        if not all(names):
            raise Wrong("one of its stages has no name")
        if doubled := [name for name, count in Counter(names).items() if count > 1]:
            raise Wrong(f"it names {', '.join(doubled)} more than once")
        return names

    async def _versions(self) -> None:
        request = pb.DetermineVersionsRequest(input=self._plan_input())
        answer = await self._ask(self._deployment.DetermineVersions(request, timeout=_ANSWERED))
        if any(not version.version for version in answer.versions):
            raise Wrong("one of the versions is empty")

    async def _strategy(self) -> None:
        request = pb.DetermineStrategyRequest(input=self._plan_input())
        answer = await self._ask(self._deployment.DetermineStrategy(request, timeout=_ANSWERED))
        decided = (SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE)
        if not answer.unsupported and answer.sync_strategy not in decided:
            raise Wrong(f"it neither abstains nor decides, it answers {answer.sync_strategy}")

    async def _quick_sync(self) -> None:
        request = pb.BuildQuickSyncStagesRequest(rollback=True)
        answer = await self._ask(self._deployment.BuildQuickSyncStages(request, timeout=_ANSWERED))
        if any(not stage.name for stage in answer.stages):
            raise Wrong("one of the stages has no name")

    async def _plan(self, stage: str, known: list[str]) -> None:
        asked = pb.BuildPipelineSyncStagesRequest.StageConfig(
            name=stage, index=_PLACE, config=self._options(stage)
        )
        request = pb.BuildPipelineSyncStagesRequest(rollback=True, stages=[asked])
        call = self._deployment.BuildPipelineSyncStages(request, timeout=_ANSWERED)
        try:
            planned = (await self._ask(call)).stages
        except Wrong as e:
            if stage not in self._around.options:
                raise NotTried(f"it wants other options than none, give them ({e})") from e
            raise
        if strange := [s.name for s in planned if s.name not in known]:
            raise Wrong(f"it plans {strange[0]}, which is not one of its stages")
        if strange := [str(s.index) for s in planned if s.index != _PLACE]:
            raise Wrong(f"the stage at {_PLACE} was planned at {strange[0]}")
        if any(count > 1 for count in Counter(s.rollback for s in planned).values()):
            raise Wrong(f"it plans two stages at {_PLACE}")

    async def _unknown_stage(self) -> None:
        try:
            answer = await self._execute("THERE_IS_NO_SUCH_STAGE", _ANSWERED)
        except Wrong as e:
            if "DEADLINE_EXCEEDED" in str(e):
                raise
            return
        if answer.status != StageStatus.FAILURE:
            raise Wrong(f"it answers status {answer.status}")

    async def _run(self, stage: str) -> None:
        before = len(self._host.blocks)
        answer = await self._execute(stage, _STAGE_ENDS)
        if answer.status not in STAGE_ANSWERS:
            raise Wrong(f"it answers status {answer.status}, which is not an ending")
        if len(self._host.blocks) > before and not self._host.is_log_completed:
            raise Wrong("it ended before its log was complete")

    async def _cancel(self, stage: str) -> None:
        call = asyncio.ensure_future(self._execute(stage, _STAGE_ENDS))
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
        answer = await self._look(self._livestate.GetLivestate(request, timeout=_ANSWERED))
        try:
            check(answer.application_live_state)
            check(answer.sync_state)
        except UserMistake as e:
            raise Wrong(str(e)) from e

    async def _preview(self) -> None:
        deployment = self._sample.deployment()
        request = GetPlanPreviewRequest(
            piped_id=deployment.piped_id,
            application_id=deployment.application_id,
            application_name=deployment.application_name,
            target_deployment_source=self._sample.source(),
            deploy_targets=self._sample.targets,
        )
        answer = await self._look(self._previewing.GetPlanPreview(request, timeout=_ANSWERED))
        if strange := {r.deploy_target for r in answer.results} - set(self._sample.targets):
            raise Wrong(f"it tells of {min(strange)}, which was not asked for")

    async def _look(self, call: Awaitable[AnswerT]) -> AnswerT:
        """A look at a platform that was made up may fail."""
        try:
            return await self._ask(call)
        except Wrong as e:
            if self._around.has_entry:
                raise
            raise NotTried(f"it needs a real deploy target, give its entry ({e})") from e

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
        return await self._ask(self._deployment.ExecuteStage(request, timeout=within))

    async def _ask(self, call: Awaitable[AnswerT]) -> AnswerT:
        try:
            answer: AnswerT | None = await call
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NotTried("it does not offer this") from e
            raise Wrong(f"{e.code().name} {e.details()}") from e
        if answer is None:
            raise Wrong("its answer cannot be understood")
        return answer

    def _plan_input(self) -> pb.PlanPluginInput:
        return pb.PlanPluginInput(
            deployment=self._sample.deployment(), target_deployment_source=self._sample.source()
        )

    def _options(self, stage: str) -> bytes:
        return json.dumps(self._around.options.get(stage, {})).encode()
