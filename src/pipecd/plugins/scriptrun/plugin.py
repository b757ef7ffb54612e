# SPDX-License-Identifier: Apache-2.0
"""What a script is told about the deployment, as environment variables."""

import json
from collections.abc import Mapping, Sequence

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


def script_environment(deployment: Deployment, commit: str, *, undoing: bool) -> dict[str, str]:
    """The variables SR_…, one for each fact and one with all of them as JSON."""
    commander = deployment.commander or deployment.commit.author
    triggered_at = int(deployment.created_at.timestamp())
    whole = {
        "deploymentID": deployment.id,
        "applicationID": deployment.application_id,
        "applicationName": deployment.application_name,
        "triggeredAt": triggered_at,
        "triggeredCommitHash": commit,
        "triggeredCommander": commander,
        "repositoryURL": deployment.repository_url,
        "summary": deployment.summary,
        "labels": dict(deployment.labels),
        "isRollback": undoing,
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
        "SR_IS_ROLLBACK": "true" if undoing else "false",
        "SR_CONTEXT_RAW": json.dumps({key: value for key, value in whole.items() if value}),
        **{f"SR_LABELS_{key.upper()}": value for key, value in deployment.labels.items()},
    }


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
