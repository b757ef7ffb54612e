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
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import SyncStrategy
from pipecd.model.errors import NotFound, PipecdError, Unsupported
from pipecd.model.ids import new_id
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan.stages import StageAnswer, StageMint, pipeline_stages, quick_sync_stages
from pipecd.piped.plan.strategy import Answer, PlanFacts, choose_strategy, ruled
from pipecd.piped.plan.targets import KnownTargets, deploy_targets
from pipecd.piped.plan.versions import merge_versions
from pipecd.piped.pluginhost.plugin import Plugin, PluginDied
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Source
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.service.piped_pb2 import GetApplicationMostRecentDeploymentRequest

log = structlog.get_logger()

_STRATEGIES = frozenset({SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE})


@dataclass(frozen=True)
class Running:
    """What the application runs: the commit of its last success and the file that configured it."""

    commit: str
    config_filename: str


async def last_success(api: ControlPlaneClient, application_id: str) -> Running | None:
    """What an application runs, as the control plane remembers it."""
    request = GetApplicationMostRecentDeploymentRequest(
        application_id=application_id, status=deployment_pb2.DEPLOYMENT_SUCCESS
    )
    try:
        answer = await api.get_application_most_recent_deployment(request)
    except NotFound:
        return None
    last = answer.deployment
    return Running(last.trigger.commit.hash, last.config_filename)


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
        return await self.decide(await self.prepare(deployment, running, into))

    async def prepare(
        self, deployment: Deployment, running: Running | None, into: Path
    ) -> "Prepared":
        """The working copies and the plugins that a plan is made with."""
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
        plugins = self._plugins.of_application(
            target.config.spec, targets=deployment.deploy_targets_by_plugin.keys()
        )
        return Prepared(deployment, target, before, plugins)

    async def decide(self, prepared: "Prepared") -> Plan:
        """The plan for what was prepared."""
        quick = await prepared.quick_sync_answers()
        facts = _facts(prepared, quick)
        if ruled(facts) is None:
            facts = replace(facts, answers=tuple(await prepared.strategy_answers()))
        choice = choose_strategy(facts)
        mint = StageMint(self._ids, to_unix(self._now()))
        if choice.strategy is SyncStrategy.QUICK_SYNC:
            stages = quick_sync_stages(_without_failures(quick), mint)
        else:
            stages = pipeline_stages(await self._pipeline_answers(prepared), mint)
        versions = merge_versions(await prepared.version_answers())
        return Plan(choice.strategy, choice.summary, versions, stages)

    async def _pipeline_answers(self, prepared: "Prepared") -> list[StageAnswer]:
        """Each plugin plans its own stages of the pipeline."""
        targets = prepared.deployment.deploy_targets_by_plugin.keys()
        wanted: dict[Plugin, list[pb.BuildPipelineSyncStagesRequest.StageConfig]] = {}
        for index, stage in enumerate(prepared.spec.pipeline.stages):
            plugin = self._plugins.for_stage(stage.name, prepared.spec, targets=targets)
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
                rollback=prepared.spec.planner.auto_rollback, stages=stages
            )
            answer = await plugin.BuildPipelineSyncStages(request)
            answers.append(
                StageAnswer(plugin.name, tuple(answer.stages), {s.index: s.name for s in stages})
            )
        return answers


@dataclass(frozen=True)
class Prepared:
    """A deployment with its sources, and the questions about it to its plugins."""

    deployment: Deployment
    target: Source
    before: Source | None
    plugins: Sequence[Plugin]

    @property
    def spec(self) -> ApplicationSpec:
        return self.target.config.spec

    @property
    def given(self) -> pb.PlanPluginInput:
        """What plugins are told."""
        return pb.PlanPluginInput(
            deployment=self.deployment,
            target_deployment_source=self.target.to_proto(),
            running_deployment_source=self.before.to_proto() if self.before is not None else None,
        )

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


def _facts(prepared: Prepared, quick: Sequence[StageAnswer | PipecdError]) -> PlanFacts:
    trigger, spec = prepared.deployment.trigger, prepared.spec
    return PlanFacts(
        requested=SyncStrategy(trigger.sync_strategy),
        requested_because=trigger.strategy_summary,
        has_pipeline=bool(spec.pipeline.stages),
        always_use_pipeline=spec.planner.always_use_pipeline,
        pipeline_pattern=spec.commit_matcher.pipeline,
        quick_sync_pattern=spec.commit_matcher.quick_sync,
        commit_message=trigger.commit.message,
        is_commanded=bool(trigger.commander),
        is_deployed_before=prepared.before is not None,
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
