# SPDX-License-Identifier: Apache-2.0
"""The plugin `scriptrun`: the stage SCRIPT_RUN runs a shell script of the application."""

import json
from collections.abc import Sequence

from pipecd.plugins.scriptrun.config import ScriptRunOptions
from pipecd.sdk import (
    Deployment,
    PlannedStage,
    RequestedStage,
    Stage,
    StageContext,
    StagePlugin,
    StageResult,
)
from pipecd.sdk.host import program_variables


def script_environment(deployment: Deployment, commit: str, *, is_rollback: bool) -> dict[str, str]:
    """Returns the variables SR_* that describe the deployment, SR_CONTEXT_RAW all of it as JSON."""
    commander = deployment.commander or deployment.commit.author
    triggered_at = int(deployment.created_at.timestamp())
    context = {
        "deploymentID": deployment.id,
        "applicationID": deployment.application_id,
        "applicationName": deployment.application_name,
        "triggeredAt": triggered_at,
        "triggeredCommitHash": commit,
        "triggeredCommander": commander,
        "repositoryURL": deployment.repository_url,
        "summary": deployment.summary,
        "labels": dict(deployment.labels),
        "isRollback": is_rollback,
    }
    return {
        "SR_DEPLOYMENT_ID": deployment.id,
        "SR_APPLICATION_ID": deployment.application_id,
        "SR_APPLICATION_NAME": deployment.application_name,
        "SR_TRIGGERED_AT": str(triggered_at),
        "SR_TRIGGERED_COMMIT_HASH": commit,
        "SR_TRIGGERED_COMMANDER": commander,
        "SR_REPOSITORY_URL": deployment.repository_url,
        "SR_SUMMARY": deployment.summary,
        "SR_IS_ROLLBACK": "true" if is_rollback else "false",
        "SR_CONTEXT_RAW": json.dumps({key: value for key, value in context.items() if value}),
        **{f"SR_LABELS_{key.upper()}": value for key, value in deployment.labels.items()},
    }


RUN = "SCRIPT_RUN"
ROLLBACK = "SCRIPT_RUN_ROLLBACK"


class ScriptRunPlugin(StagePlugin):
    """Runs scripts; the script at `onRollback` runs only if the first one was started."""

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
        started, is_rollback = f"started-{stage.index}", stage.name == ROLLBACK
        script = options.on_rollback if is_rollback else options.run
        if is_rollback and not await self._was_started(stage, started):
            return StageResult.succeeded("The script was never started, there is nothing to undo")
        if not script:
            return StageResult.succeeded("The stage has no onRollback, there is nothing to undo")
        if options.on_rollback and not is_rollback:
            await stage.shared.put({started: "_"})
        environment = {
            **program_variables(stage.host.git_variables),
            **script_environment(stage.deployment, stage.target.commit, is_rollback=is_rollback),
            **options.env,
        }
        result = await stage.run(["/bin/sh", "-l", "-c", script], env=environment)
        if result.code:
            output = f": {result.last_line}" if result.last_line else " and printed nothing"
            return StageResult.failed(f"The script exited with code {result.code}{output}")
        return StageResult.succeeded("The script succeeded")

    async def _was_started(self, stage: StageContext, key: str) -> bool:
        # A first-generation piped has left the rollback only of a script that was started.
        return (await stage.shared.get(key) or await stage.metadata.get("baseStageID")) is not None


PLUGIN = ScriptRunPlugin
