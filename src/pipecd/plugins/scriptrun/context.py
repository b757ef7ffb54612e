# SPDX-License-Identifier: Apache-2.0
"""What a script is told about the deployment, as environment variables."""

import json

from pipecd.sdk import Deployment


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
