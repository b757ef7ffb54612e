# SPDX-License-Identifier: Apache-2.0
"""What a plan consists of: stages, deploy targets and artifact versions, from plugin responses.

Also decides whether a stage is skipped (`skipOn`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipecd.config.application import SkipOn
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.paths import path_patterns
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

TargetsByPlugin = Mapping[str, Collection[str]]
"""The names of the deploy targets that piped's configuration has for each plugin."""

UNKNOWN_VERSION = ArtifactVersion(kind=ArtifactVersion.UNKNOWN, version="unknown")


@dataclass(frozen=True)
class PluginStages:
    """The stages that a plugin planned, and the names by index of those requested of it."""

    plugin: str
    stages: Sequence[PipelineStage]
    requested: Mapping[int, str]


@dataclass(frozen=True)
class StageFactory:
    """Creates the stages of a plan: the source of their ids, and their time of creation."""

    new_id: Callable[[], str]
    now: int

    def chain(
        self, forward: Sequence[PipelineStage], rollback: Sequence[PipelineStage]
    ) -> tuple[PipelineStage, ...]:
        """Returns copies with new ids; each forward stage requires the one before it."""
        chain: list[PipelineStage] = []
        for stage in forward:
            chain.append(self._copy(stage, requires=[chain[-1].id] if chain else []))
        return (*chain, *(self._copy(stage, requires=[]) for stage in rollback))

    def _copy(self, stage: PipelineStage, *, requires: Sequence[str]) -> PipelineStage:
        copy = PipelineStage()
        copy.CopyFrom(stage)
        copy.id = self.new_id()
        copy.status = deployment_pb2.StageStatus.ValueType(StageStatus.NOT_STARTED_YET)
        copy.requires[:] = requires
        copy.visible = not stage.rollback
        copy.created_at = copy.updated_at = self.now
        copy.completed_at = 0
        return copy


def quick_sync_stages(
    planned: Iterable[PluginStages], factory: StageFactory
) -> tuple[PipelineStage, ...]:
    """Returns the stages of a quick sync, plugin by plugin, followed by the rollback stages."""
    stages = [stage for each in planned for stage in _named_stages(each)]
    forward = [stage for stage in stages if not stage.rollback]
    if not forward:
        raise UserMistake(
            "no plugin of the application has a quick sync",
            hint="set planner.alwaysUsePipeline, or add a plugin that deploys under spec.plugins",
        )
    return factory.chain(forward, [stage for stage in stages if stage.rollback])


def pipeline_stages(
    planned: Sequence[PluginStages], factory: StageFactory
) -> tuple[PipelineStage, ...]:
    """Returns the stages of a pipeline ordered by index, followed by the rollback stages."""
    for each in planned:
        _validate_indexes(each)
    stages = [stage for each in planned for stage in _named_stages(each)]
    ordered = sorted(stages, key=lambda stage: stage.index)
    forward = [stage for stage in ordered if not stage.rollback]
    if not forward:
        raise UserMistake("the pipeline has no stages", hint="add stages under spec.pipeline")
    return factory.chain(forward, [stage for stage in ordered if stage.rollback])


def _named_stages(planned: PluginStages) -> Sequence[PipelineStage]:
    if any(not stage.name for stage in planned.stages):
        raise UserMistake(f"plugin {planned.plugin} planned a stage without a name")
    return planned.stages


def _validate_indexes(planned: PluginStages) -> None:
    """A plugin plans each requested stage once, and at most one rollback stage for each."""
    plugin, requested = planned.plugin, planned.requested
    forward = [stage.index for stage in planned.stages if not stage.rollback]
    rollback = [stage.index for stage in planned.stages if stage.rollback]
    for index in (*forward, *rollback):
        if index not in requested:
            raise UserMistake(
                f"plugin {plugin} planned a stage at index {index}, which is not its own"
            )
    for indexes in (forward, rollback):
        if len(set(indexes)) < len(indexes):
            twice = next(index for index in indexes if indexes.count(index) > 1)
            raise UserMistake(f"plugin {plugin} planned index {twice} twice")
    if missing := sorted(requested.keys() - set(forward)):
        name = requested[missing[0]]
        raise UserMistake(f"plugin {plugin} left out stage {name} at index {missing[0]}")


def skip_reason(
    skip_on: SkipOn, *, commit_message: str, changed_files: Sequence[str] | None
) -> str | None:
    """Returns why a stage is skipped, or None; `changed_files` is None on a first deployment.

    Upstream crashes when there is no commit to compare with; here no path matches then.
    """
    if skip_on.paths and changed_files is not None:
        if not changed_files:
            return "no file was changed since the running commit"
        if path_patterns(skip_on.paths).match_all(changed_files):
            return "all changed files match skipOn.paths"
    subject = commit_message.split("\n", 1)[0]
    for prefix in skip_on.commit_message_prefixes:
        if subject.startswith(prefix):
            return f'the commit message starts with "{prefix}"'
    return None


def chosen_targets(deployable: Deployment | Application) -> dict[str, tuple[str, ...]]:
    """Returns the names of the deploy targets that a deployment or application has, by plugin."""
    return {
        plugin: tuple(targets.deploy_targets)
        for plugin, targets in deployable.deploy_targets_by_plugin.items()
    }


def lacks_targets(
    application: Application, plugins: Collection[str], configured: TargetsByPlugin
) -> bool:
    """Whether an application has no deploy target of a plugin for which piped has some."""
    if application.platform_provider or application.cloud_provider:
        return False
    chosen = chosen_targets(application)
    return any(configured.get(plugin) and not chosen.get(plugin) for plugin in plugins)


def deploy_targets(
    deployable: Deployment | Application, plugins: Collection[str], configured: TargetsByPlugin
) -> dict[str, tuple[str, ...]]:
    """Returns the names of the deploy targets of a deployment or application by plugin.

    `plugins` are the plugins of the application, `configured` the deploy targets of piped. A v0
    application has a platform provider instead of deploy targets; piped's configuration has it as
    a deploy target of the plugin for that platform.
    """
    chosen = chosen_targets(deployable)
    for plugin, names in chosen.items():
        for name in names:
            # A plugin that this piped lacks is reported when its stages are planned.
            if plugin in configured and name not in configured[plugin]:
                raise _undefined(f"deploy target {name}", plugin, configured[plugin])
    provider = deployable.platform_provider or deployable.cloud_provider
    if chosen or not provider:
        return chosen
    platforms = [plugin for plugin in plugins if configured.get(plugin)]
    matched = {plugin: (provider,) for plugin in platforms if provider in configured[plugin]}
    if platforms and not matched:
        raise _undefined(f"platform provider {provider}", platforms[0], configured[platforms[0]])
    return matched


def _undefined(what: str, plugin: str, configured: Collection[str]) -> UserMistake:
    names = ", ".join(configured) or "none"
    return UserMistake(
        f"{what} is not defined for plugin {plugin}",
        hint=f"add it to the configuration of piped, or use one of: {names}",
    )


def merge_versions(responses: Iterable[Sequence[ArtifactVersion]]) -> tuple[ArtifactVersion, ...]:
    """Returns each version once, in the order of the plugins; without any, the unknown version."""
    merged: list[ArtifactVersion] = []
    for versions in responses:
        merged += [version for version in versions if version not in merged]
    return tuple(merged) or (UNKNOWN_VERSION,)
