# SPDX-License-Identifier: Apache-2.0
"""The labels and tags that mark what a piped deploys on a cloud; upstream writes the same ones."""

MANAGED_BY_TAG = "pipecd-dev-managed-by"
PIPED_TAG = "pipecd-dev-piped"
APPLICATION_TAG = "pipecd-dev-application"
COMMIT_TAG = "pipecd-dev-commit-hash"


def ownership_tags(
    *, piped_id: str, application_id: str, commit: str, managed_by: str = "piped"
) -> dict[str, str]:
    """Returns the tags of a resource that a piped deploys for an application."""
    return {
        MANAGED_BY_TAG: managed_by,
        PIPED_TAG: piped_id,
        APPLICATION_TAG: application_id,
        COMMIT_TAG: commit,
    }
