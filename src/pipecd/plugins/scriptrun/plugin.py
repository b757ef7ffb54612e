# SPDX-License-Identifier: Apache-2.0
"""SCRIPT_RUN runs a shell script in the application's directory, and another one to undo it."""

from collections.abc import Mapping, Sequence

from pipecd.plugins.scriptrun.config import ScriptRunOptions
from pipecd.plugins.scriptrun.context import script_environment
from pipecd.sdk import (
    PlannedStage,
    RequestedStage,
    Stage,
    StageContext,
    StagePlugin,
    StageResult,
)
from pipecd.sdk.host import program_variables

RUN = "SCRIPT_RUN"
ROLLBACK = "SCRIPT_RUN_ROLLBACK"


class ScriptRunPlugin(StagePlugin):
    """Runs scripts; only a script that was started is undone."""

    stages = (Stage(RUN, ScriptRunOptions), Stage(ROLLBACK))

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        options = requested.options(ScriptRunOptions)
        planned = PlannedStage(requested.name, requested.index, requested.description)
        if not (rollback and options.on_rollback):
            return (planned,)
        undo = PlannedStage(ROLLBACK, requested.index, requested.description, is_rollback=True)
        return planned, undo

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(ScriptRunOptions)
        started = f"started-{stage.index}"
        if stage.name != ROLLBACK:
            await stage.shared.put({started: "_"})
            return await _run(stage, options.run, options.env)
        if await stage.shared.get(started) is None:
            return StageResult.succeeded("The script was never started, there is nothing to undo")
        if not options.on_rollback:
            return StageResult.succeeded("The stage has no onRollback, there is nothing to undo")
        return await _run(stage, options.on_rollback, options.env)


async def _run(stage: StageContext, script: str, env: Mapping[str, str]) -> StageResult:
    facts = script_environment(
        stage.deployment, stage.target.commit, undoing=stage.name == ROLLBACK
    )
    ours = program_variables(stage.host.git_variables)
    done = await stage.run(["/bin/sh", "-l", "-c", script], env={**ours, **facts, **env})
    if done.code:
        return StageResult.failed(f"The script exited with code {done.code}: {done.last_line}")
    return StageResult.succeeded("The script succeeded")


PLUGIN = ScriptRunPlugin
