# SPDX-License-Identifier: Apache-2.0
"""Gathers what a plan needs, the sources and the answers of the plugins, and calls `plan`.

Deployments and plan previews use the same function, so that they cannot disagree.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import structlog

from pipecd.config.application.spec import ApplicationSpec
from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.model.ids import new_id
from pipecd.model.moment import Now, to_unix, utc_now
from pipecd.piped.plan.stages import StageAnswer, StageMint, pipeline_stages, quick_sync_stages
from pipecd.piped.plan.strategy import Answer, PlanFacts, choose_strategy, ruled
from pipecd.piped.plan.targets import KnownTargets, deploy_targets
from pipecd.piped.plan.versions import merge_versions
from pipecd.piped.pluginhost.plugin import Plugin, PluginDied
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Source
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb

log = structlog.get_logger()

_STRATEGIES = frozenset({SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE})


@dataclass(frozen=True)
class Running:
    """What the application runs: the commit of its last success and the file that configured it."""

    commit: str
    config_filename: str


@dataclass(frozen=True)
class Plan:
    """How a deployment is going to be carried out, and why."""

    strategy: SyncStrategy
    summary: str
    versions: tuple[ArtifactVersion, ...]
    stages: tuple[PipelineStage, ...]


def set_targets(deployment: Deployment, spec: ApplicationSpec, known: KnownTargets) -> None:
    """Gives a deployment the deploy targets that its plugins look for."""
    for plugin, names in deploy_targets(deployment, spec.plugins, known).items():
        deployment.deploy_targets_by_plugin[plugin].deploy_targets[:] = names


class SourceMaker(Protocol):
    """Makes working copies; `Sources`, or a maker that also watches what is in them."""

    async def at(
        self, git_path: ApplicationGitPath, commit: str, *, config_filename: str = "", into: Path
    ) -> Source: ...


class Planning:
    """Plans deployments with the sources and the plugins of this piped."""

    def __init__(
        self,
        sources: SourceMaker,
        plugins: PluginRegistry,
        *,
        targets: KnownTargets,
        now: Now = utc_now,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._sources, self._plugins, self._targets = sources, plugins, targets
        self._now, self._ids = now, ids

    async def plan(self, deployment: Deployment, running: Running | None, into: Path) -> Plan:
        """The plan; whatever keeps it from being made is raised with its cause.

        The deployment gets the deploy targets that its plugins look for.
        """
        target = await self._sources.at(
            deployment.git_path, deployment.trigger.commit.hash, into=into / "target"
        )
        before = None
        if running is not None:
            before = await self._sources.at(
                deployment.git_path,
                running.commit,
                config_filename=running.config_filename,
                into=into / "running",
            )
        set_targets(deployment, target.config.spec, self._targets)
        asked = _Asked(
            deployment=deployment,
            spec=target.config.spec,
            plugins=self._plugins.of_application(
                target.config.spec, targets=deployment.deploy_targets_by_plugin.keys()
            ),
            given=_plan_input(deployment, target, before),
        )
        return await self._decide(asked, running)

    async def _decide(self, asked: "_Asked", running: Running | None) -> Plan:
        quick = await asked.quick_sync_answers()
        facts = _facts(asked, running, quick)
        if ruled(facts) is None:
            facts = replace(facts, answers=tuple(await asked.strategy_answers()))
        choice = choose_strategy(facts)
        mint = StageMint(self._ids, to_unix(self._now()))
        if choice.strategy is SyncStrategy.QUICK_SYNC:
            stages = quick_sync_stages(_without_failures(quick), mint)
        else:
            stages = pipeline_stages(await self._pipeline_answers(asked), mint)
        versions = merge_versions(await asked.version_answers())
        return Plan(choice.strategy, choice.summary, versions, stages)

    async def _pipeline_answers(self, asked: "_Asked") -> list[StageAnswer]:
        """Each plugin plans its own stages of the pipeline."""
        targets = asked.deployment.deploy_targets_by_plugin.keys()
        wanted: dict[Plugin, list[pb.BuildPipelineSyncStagesRequest.StageConfig]] = {}
        for index, stage in enumerate(asked.spec.pipeline.stages):
            plugin = self._plugins.for_stage(stage.name, asked.spec, targets=targets)
            wanted.setdefault(plugin, []).append(
                pb.BuildPipelineSyncStagesRequest.StageConfig(
                    name=stage.name,
                    desc=stage.desc,
                    timeout=str(stage.timeout),
                    index=index,
                    config=json.dumps(stage.with_).encode(),
                )
            )
        answers: list[StageAnswer] = []
        for plugin, stages in wanted.items():
            request = pb.BuildPipelineSyncStagesRequest(
                rollback=asked.spec.planner.auto_rollback, stages=stages
            )
            answer = await plugin.BuildPipelineSyncStages(request)
            answers.append(
                StageAnswer(plugin.name, tuple(answer.stages), {s.index: s.name for s in stages})
            )
        return answers


@dataclass(frozen=True)
class _Asked:
    """The questions to the plugins about one deployment."""

    deployment: Deployment
    spec: ApplicationSpec
    plugins: Sequence[Plugin]
    given: pb.PlanPluginInput

    async def quick_sync_answers(self) -> list[StageAnswer | PipecdError]:
        """What each plugin would quick sync; a failure only matters if it is needed."""
        request = pb.BuildQuickSyncStagesRequest(rollback=self.spec.planner.auto_rollback)
        answers: list[StageAnswer | PipecdError] = []
        for plugin in self.plugins:
            try:
                answer = await plugin.BuildQuickSyncStages(request)
                answers.append(StageAnswer(plugin.name, tuple(answer.stages), {}))
            except Unsupported:
                continue
            except PluginDied:
                raise
            except PipecdError as e:
                answers.append(e)
        return answers

    async def strategy_answers(self) -> list[Answer]:
        """What each plugin says, up to the first one that wants the pipeline."""
        answers: list[Answer] = []
        for plugin in self.plugins:
            try:
                told = await plugin.DetermineStrategy(pb.DetermineStrategyRequest(input=self.given))
            except Unsupported:
                continue
            except PluginDied:
                raise
            except PipecdError as e:
                log.warning("a plugin did not decide", plugin=plugin.name, error=str(e))
                answers.append(Answer(plugin.name, error=str(e)))
                continue
            if told.unsupported:
                continue
            if told.sync_strategy not in _STRATEGIES:
                answers.append(Answer(plugin.name, error=f"strategy {told.sync_strategy}"))
                continue
            strategy = SyncStrategy(told.sync_strategy)
            answers.append(Answer(plugin.name, strategy, told.summary))
            if strategy is SyncStrategy.PIPELINE:
                break
        return answers

    async def version_answers(self) -> list[Sequence[ArtifactVersion]]:
        """The versions that each plugin finds; not knowing them stops nothing."""
        request = pb.DetermineVersionsRequest(input=self.given)
        answers: list[Sequence[ArtifactVersion]] = []
        for plugin in self.plugins:
            try:
                answers.append((await plugin.DetermineVersions(request)).versions)
            except Unsupported:
                continue
            except PluginDied:
                raise
            except PipecdError as e:
                log.warning("versions are not known", plugin=plugin.name, error=str(e))
        return answers


def _plan_input(
    deployment: Deployment, target: Source, before: Source | None
) -> pb.PlanPluginInput:
    return pb.PlanPluginInput(
        deployment=deployment,
        target_deployment_source=target.to_proto(),
        running_deployment_source=before.to_proto() if before is not None else None,
    )


def _facts(
    asked: _Asked, running: Running | None, quick: Sequence[StageAnswer | PipecdError]
) -> PlanFacts:
    trigger, spec = asked.deployment.trigger, asked.spec
    return PlanFacts(
        requested=SyncStrategy(trigger.sync_strategy),
        requested_because=trigger.strategy_summary,
        has_pipeline=bool(spec.pipeline.stages),
        always_use_pipeline=spec.planner.always_use_pipeline,
        pipeline_pattern=spec.commit_matcher.pipeline,
        quick_sync_pattern=spec.commit_matcher.quick_sync,
        commit_message=trigger.commit.message,
        is_commanded=bool(trigger.commander),
        is_deployed_before=running is not None,
        can_quick_sync=any(
            isinstance(answer, PipecdError) or any(not s.rollback for s in answer.stages)
            for answer in quick
        ),
    )


def _without_failures(answers: Sequence[StageAnswer | PipecdError]) -> list[StageAnswer]:
    for answer in answers:
        if isinstance(answer, PipecdError):
            raise answer
    return [answer for answer in answers if isinstance(answer, StageAnswer)]
