# SPDX-License-Identifier: Apache-2.0
"""The plugin `terraform`: deploys with Terraform or OpenTofu.

The stages are in `stages`, live state and previews in `livestate`, the commands in `terraform`, and
what a plan means in `plan`.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pipecd.plugins.terraform.config import CONFIG
from pipecd.plugins.terraform.configuration import module_versions
from pipecd.plugins.terraform.livestate import LiveStates
from pipecd.plugins.terraform.saved_plan import remove_forgotten
from pipecd.plugins.terraform.stages import StageRun
from pipecd.plugins.terraform.terraform import TerraformRunner
from pipecd.sdk import (
    DeploymentPlugin,
    LiveContext,
    LiveState,
    LiveStatePlugin,
    PipecdError,
    PlanContext,
    PlannedStage,
    Preview,
    PreviewContext,
    PreviewPlugin,
    RequestedStage,
    Stage,
    StageContext,
    StageResult,
    StartContext,
    Version,
)

_PLAN, _APPLY, _ROLLBACK = "TERRAFORM_PLAN", "TERRAFORM_APPLY", "TERRAFORM_ROLLBACK"


class TerraformPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Plans and applies the configuration in the directory of an application."""

    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_ROLLBACK),
    )
    config = CONFIG
    _directory: Path
    _runner: TerraformRunner
    _live_states: LiveStates

    async def prepare(self, start: StartContext) -> None:
        self._directory = start.host.private_directory(start.plugin.name)
        self._runner = TerraformRunner(self._directory)
        self._live_states = LiveStates(self._runner, self._directory)
        for name in ("plans", "temporary"):
            await asyncio.to_thread(remove_forgotten, self._directory / name)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return await asyncio.to_thread(module_versions, plan.target)

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(_APPLY, description="Sync by applying any detected changes")
        return (planned, _rollback_stage(0)) if rollback else (planned,)

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = list(await super().plan_pipeline(requested, rollback=rollback))
        if rollback and requested:
            planned.append(_rollback_stage(min(stage.index for stage in requested)))
        return planned

    async def execute(self, stage: StageContext) -> StageResult:
        run = StageRun(stage, self._runner, self._directory)
        handlers = {_PLAN: run.plan, _APPLY: run.apply, _ROLLBACK: run.rollback}
        with self._live_states.deploying(stage.deployment.application_id):
            try:
                return await handlers[stage.name]()
            except PipecdError as e:
                return StageResult.failed(str(e))

    async def live_state(self, look: LiveContext) -> LiveState:
        return await self._live_states.live_state(look)

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        return (await self._live_states.preview(change),)


def _rollback_stage(index: int) -> PlannedStage:
    return PlannedStage(_ROLLBACK, index, "Rollback the deployment", is_rollback=True)


PLUGIN = TerraformPlugin
