# SPDX-License-Identifier: Apache-2.0
"""Plans a deployment: prepares the sources, calls the plugins, and applies the rules of `plan`.

Deployments and plan previews use the same `Planner`, so that they cannot disagree.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from pipecd.config.application import ApplicationSpec
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import TIMEOUT_KEY, ManualOperation, SyncStrategy
from pipecd.model.errors import NotFound, PipecdError, Unsupported
from pipecd.model.ids import new_id
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan.stages import (
    PluginStages,
    StageFactory,
    TargetsByPlugin,
    chosen_targets,
    deploy_targets,
    merge_versions,
    pipeline_stages,
    quick_sync_stages,
)
from pipecd.piped.plan.strategy import (
    PluginStrategy,
    StrategyFacts,
    choose_strategy,
    strategy_by_rule,
)
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.pluginhost.plugin import Plugin, PluginDied
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Source
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.service.piped_pb2 import GetApplicationMostRecentDeploymentRequest

log = structlog.get_logger()

_STRATEGIES = frozenset({SyncStrategy.QUICK_SYNC, SyncStrategy.PIPELINE})


@dataclass(frozen=True)
class RunningCommit:
    """The commit of the last successful deployment, and the name of its configuration file."""

    commit: str
    config_filename: str


async def last_success(api: ControlPlaneClient, application_id: str) -> RunningCommit | None:
    """Returns the running commit of an application, according to the control plane."""
    request = GetApplicationMostRecentDeploymentRequest(
        application_id=application_id, status=deployment_pb2.DEPLOYMENT_SUCCESS
    )
    try:
        response = await api.get_application_most_recent_deployment(request)
    except NotFound:
        return None
    last = response.deployment
    return RunningCommit(last.trigger.commit.hash, last.config_filename)


@dataclass(frozen=True)
class Plan:
    """How a deployment is going to run, and why."""

    strategy: SyncStrategy
    summary: str
    versions: tuple[ArtifactVersion, ...]
    stages: tuple[PipelineStage, ...]


def set_targets(deployment: Deployment, spec: ApplicationSpec, configured: TargetsByPlugin) -> None:
    """Sets the deploy targets of a deployment, which its plugins read."""
    for plugin, names in deploy_targets(deployment, spec.plugins, configured).items():
        deployment.deploy_targets_by_plugin[plugin].deploy_targets[:] = names


class Planner:
    """Plans deployments with the sources and the plugins of this piped."""

    def __init__(
        self,
        sources: DeploymentSources,
        plugins: PluginRegistry,
        *,
        targets: TargetsByPlugin,
        now: Now = utc_now,
        ids: Callable[[], str] = new_id,
    ) -> None:
        self._sources, self._plugins, self._targets = sources, plugins, targets
        self._now, self._ids = now, ids

    async def plan(self, deployment: Deployment, running: RunningCommit | None, into: Path) -> Plan:
        """Returns the plan, or raises why there is none; also sets the deploy targets."""
        return await self.decide(await self.prepare(deployment, running, into))

    async def prepare(
        self, deployment: Deployment, running: RunningCommit | None, into: Path
    ) -> "PlanInput":
        """Creates the working copies below `into` and selects the plugins."""
        target = await self._sources.at(
            deployment.git_path, deployment.trigger.commit.hash, into=into, name="target"
        )
        running_source = None
        if running is not None:
            running_source = await self._sources.at(
                deployment.git_path,
                running.commit,
                config_filename=running.config_filename,
                into=into,
                name="running",
            )
        plugins = self.select_plugins(deployment, target.config.spec)
        return PlanInput(deployment, target, running_source, plugins)

    def select_plugins(self, deployment: Deployment, spec: ApplicationSpec) -> Sequence[Plugin]:
        """Returns the plugins of an application; also sets the deploy targets."""
        set_targets(deployment, spec, self._targets)
        return self._plugins.of_application(spec, targets=chosen_targets(deployment))

    async def decide(self, input: "PlanInput") -> Plan:
        """Returns the plan for the input that `prepare` returned."""
        quick_sync = await input.quick_sync_stages()
        facts = _strategy_facts(input, quick_sync)
        if strategy_by_rule(facts) is None:
            facts = replace(facts, responses=tuple(await input.strategies()))
        choice = choose_strategy(facts)
        factory = StageFactory(self._ids, to_unix(self._now()))
        if choice.strategy is SyncStrategy.QUICK_SYNC:
            for error in quick_sync:
                if isinstance(error, PipecdError):
                    raise error
            planned = [each for each in quick_sync if isinstance(each, PluginStages)]
            stages = quick_sync_stages(planned, factory)
        else:
            stages = pipeline_stages(await self._pipeline_stages(input), factory)
            for stage in stages:
                if stage.available_operation == ManualOperation.APPROVE:
                    timeout = input.spec.pipeline.stages[stage.index].timeout
                    stage.metadata[TIMEOUT_KEY] = str(int(timeout))
        versions = merge_versions(await input.versions())
        return Plan(choice.strategy, choice.summary, versions, stages)

    async def _pipeline_stages(self, input: "PlanInput") -> list[PluginStages]:
        """Lets each plugin plan its own stages of the pipeline."""
        targets = chosen_targets(input.deployment)
        requested: dict[Plugin, list[pb.BuildPipelineSyncStagesRequest.StageConfig]] = {}
        for index, stage in enumerate(input.spec.pipeline.stages):
            plugin = self._plugins.for_stage(stage.name, input.spec, targets=targets)
            requested.setdefault(plugin, []).append(
                pb.BuildPipelineSyncStagesRequest.StageConfig(
                    name=stage.name,
                    desc=stage.desc,
                    timeout=str(stage.timeout),
                    index=index,
                    config=json.dumps(stage.with_).encode(),
                )
            )
        planned: list[PluginStages] = []
        for plugin, stages in requested.items():
            request = pb.BuildPipelineSyncStagesRequest(
                rollback=input.spec.planner.auto_rollback, stages=stages
            )
            response = await plugin.BuildPipelineSyncStages(request)
            names = {stage.index: stage.name for stage in stages}
            planned.append(PluginStages(plugin.name, tuple(response.stages), names))
        return planned


@dataclass(frozen=True)
class PlanInput:
    """A deployment with its sources and plugins, and the calls of these plugins about it."""

    deployment: Deployment
    target: Source
    running: Source | None
    plugins: Sequence[Plugin]

    @property
    def spec(self) -> ApplicationSpec:
        return self.target.config.spec

    def to_proto(self) -> pb.PlanPluginInput:
        """Returns the input as plugins receive it."""
        return pb.PlanPluginInput(
            deployment=self.deployment,
            target_deployment_source=self.target.to_proto(),
            running_deployment_source=None if self.running is None else self.running.to_proto(),
        )

    async def quick_sync_stages(self) -> list[PluginStages | PipecdError]:
        """Returns the quick sync of each plugin; an error matters only if a quick sync is used."""
        request = pb.BuildQuickSyncStagesRequest(rollback=self.spec.planner.auto_rollback)
        planned: list[PluginStages | PipecdError] = []
        for plugin in self.plugins:
            try:
                response = await plugin.BuildQuickSyncStages(request)
                planned.append(PluginStages(plugin.name, tuple(response.stages), {}))
            except Unsupported:
                continue
            except PluginDied:
                raise
            except PipecdError as e:
                planned.append(e)
        return planned

    async def strategies(self) -> list[PluginStrategy]:
        """Returns the response of each plugin, up to the first one that requires the pipeline."""
        responses: list[PluginStrategy] = []
        request = pb.DetermineStrategyRequest(input=self.to_proto())
        for plugin in self.plugins:
            try:
                response = await plugin.DetermineStrategy(request)
            except Unsupported:
                continue
            except PluginDied:
                raise
            except PipecdError as e:
                log.warning("plugin failed to determine strategy", plugin=plugin.name, error=str(e))
                responses.append(PluginStrategy(plugin.name, error=str(e)))
                continue
            if response.unsupported:
                continue
            if response.sync_strategy not in _STRATEGIES:
                error = f"strategy {response.sync_strategy}"
                responses.append(PluginStrategy(plugin.name, error=error))
                continue
            strategy = SyncStrategy(response.sync_strategy)
            responses.append(PluginStrategy(plugin.name, strategy, response.summary))
            if strategy is SyncStrategy.PIPELINE:
                break
        return responses

    async def versions(self) -> list[Sequence[ArtifactVersion]]:
        """Returns the artifact versions of each plugin; one that fails is only logged."""
        request = pb.DetermineVersionsRequest(input=self.to_proto())
        responses: list[Sequence[ArtifactVersion]] = []
        for plugin in self.plugins:
            try:
                responses.append((await plugin.DetermineVersions(request)).versions)
            except Unsupported:
                continue
            except PluginDied:
                raise
            except PipecdError as e:
                log.warning("plugin failed to determine versions", plugin=plugin.name, error=str(e))
        return responses


def _strategy_facts(
    input: PlanInput, quick_sync: Sequence[PluginStages | PipecdError]
) -> StrategyFacts:
    trigger, spec = input.deployment.trigger, input.spec
    is_set = "always_use_pipeline" in spec.planner.model_fields_set
    return StrategyFacts(
        requested=SyncStrategy(trigger.sync_strategy),
        requested_summary=trigger.strategy_summary,
        has_pipeline=bool(spec.pipeline.stages),
        always_use_pipeline=spec.planner.always_use_pipeline and is_set,
        kind_uses_pipeline=spec.planner.always_use_pipeline and not is_set,
        pipeline_pattern=spec.commit_matcher.pipeline,
        quick_sync_pattern=spec.commit_matcher.quick_sync,
        commit_message=trigger.commit.message,
        is_commanded=bool(trigger.commander),
        is_deployed_before=input.running is not None,
        can_quick_sync=any(
            isinstance(planned, PipecdError) or any(not s.rollback for s in planned.stages)
            for planned in quick_sync
        ),
    )
