# SPDX-License-Identifier: Apache-2.0
"""The base classes of plugins: a class with its stages and `execute`.

A plugin that also decides how an application is deployed adds versions, strategy and quick sync.
The plugin `wait` is the smallest example.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pipecd.config.catalog import PluginConfig
from pipecd.config.spec import Spec
from pipecd.model.deployment import ArtifactKind, ManualOperation, SyncStrategy
from pipecd.observe.metrics import PluginCounter as Tally
from pipecd.sdk.deployment import Deployment, DeployTarget, PluginEntry, Source
from pipecd.sdk.host import Host, WithTools
from pipecd.sdk.livestate import LiveContext, LiveState, Preview, PreviewContext
from pipecd.sdk.options import OptionsT, decode
from pipecd.sdk.stage import StageContext, StageResult


@dataclass(frozen=True)
class Stage:
    """A stage of a plugin; `options` are validated while planning."""

    name: str
    options: type[Spec] | None = None


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a planned deployment."""

    name: str
    index: int = 0
    description: str = ""
    is_rollback: bool = False
    operation: ManualOperation = ManualOperation.NONE
    operators: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class RequestedStage:
    """A stage of this plugin in the application's pipeline."""

    name: str
    index: int
    description: str
    config: bytes

    def options(self, options: type[OptionsT]) -> OptionsT:
        """Reads `with` of the stage."""
        return decode(options, self.config, what=f"stage {self.name}")


@dataclass(frozen=True)
class StartContext(WithTools):
    """The context of a plugin's start; what it enters into `lifetime` is closed at its end."""

    plugin: PluginEntry
    host: Host
    lifetime: AsyncExitStack

    def tally(self, name: str, text: str, labels: Sequence[str] = ()) -> Tally:
        """Returns a counter in `/metrics`; `text` is its help."""
        return self.host.plugin_metrics.counter(name, text, labels)


@dataclass(frozen=True)
class PlanContext(WithTools):
    """The context of planning a deployment."""

    deployment: Deployment
    target: Source
    running: Source | None
    targets: tuple[DeployTarget, ...]
    plugin: PluginEntry
    host: Host


@dataclass(frozen=True)
class Version:
    """The version of one artifact, as the console shows it."""

    version: str
    name: str = ""
    url: str = ""
    kind: ArtifactKind = ArtifactKind.UNKNOWN


@dataclass(frozen=True)
class Strategy:
    """The sync strategy of a deployment, and why."""

    strategy: SyncStrategy
    summary: str


class StagePlugin(ABC):
    """A plugin that offers stages and does not deploy to a platform itself.

    With `config` the settings of the plugin and of its deploy targets are checked at the start.
    """

    stages: ClassVar[tuple[Stage, ...]]
    config: ClassVar[PluginConfig | None] = None

    async def prepare(self, start: StartContext) -> None:
        """Prepares what every stage needs; a failure keeps the plugin from starting."""
        return

    @abstractmethod
    async def execute(self, stage: StageContext) -> StageResult:
        """Executes one stage."""

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        """Plans a stage and, with `rollback`, its rollback stage at the same index."""
        for stage in self.stages:
            if stage.name == requested.name and stage.options is not None:
                requested.options(stage.options)
        return (PlannedStage(requested.name, requested.index, requested.description),)

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        """Plans all stages of this plugin in the pipeline; override it to plan them together."""
        planned: list[PlannedStage] = []
        for stage in requested:
            planned += await self.plan_stage(stage, rollback=rollback)
        return planned


class DeploymentPlugin(StagePlugin):
    """A plugin that deploys to a platform.

    With `rollback_stage` a pipeline ends with it, and it undoes all stages of this plugin.
    """

    rollback_stage: ClassVar[PlannedStage | None] = None

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = await super().plan_pipeline(requested, rollback=rollback)
        if not rollback or not requested or self.rollback_stage is None:
            return planned
        first = min(stage.index for stage in requested)
        return (*planned, replace(self.rollback_stage, index=first))

    @abstractmethod
    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        """Returns the versions that the target source deploys."""

    @abstractmethod
    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        """Returns the stages of a quick sync."""

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        """Returns pipeline or quick sync for a change; None means the pipeline."""
        return None


class LiveStatePlugin(ABC):
    """Adds live state and drift to a plugin.

    With `tells_changes` it promises to call `live_state_changed` of its host for every change, and
    is polled only rarely.
    """

    tells_changes: ClassVar[bool] = False

    @abstractmethod
    async def live_state(self, look: LiveContext) -> LiveState:
        """Returns the live state; called after each change and about once a minute."""


class PreviewPlugin(ABC):
    """Adds plan previews to a plugin."""

    @abstractmethod
    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        """Returns what deploying the target source would change, for each deploy target."""
