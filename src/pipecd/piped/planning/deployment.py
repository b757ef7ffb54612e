# SPDX-License-Identifier: Apache-2.0
"""Builds the deployment, the chain request and the references that a trigger creates."""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime

from pipecd.config.application import ApplicationSpec
from pipecd.config.spec import plain
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.giturl import commit_page
from pipecd.piped.notify.event import NOTIFICATION_KEY
from pipecd.proto.model import common_pb2, deployment_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentMetadata, DeploymentTrigger
from pipecd.proto.service.piped_pb2 import CreateDeploymentChainRequest

TRACE_TRAILER = "Pipecd-Dev-Trace-Trigger-Commit-Hash"
PENDING = "The deployment is waiting to be planned"

_BY_COMMAND = "because piped received a command from user via web console or pipectl"
COMMAND_SUMMARIES = {
    SyncStrategy.AUTO: f"Sync with the specified pipeline {_BY_COMMAND}",
    SyncStrategy.PIPELINE: f"Sync with the specified pipeline {_BY_COMMAND}",
    SyncStrategy.QUICK_SYNC: f"Quick sync {_BY_COMMAND}",
}

_NAMESPACE = uuid.UUID("6f6d3f0e-52f5-5d5b-9d07-3f1b6b3c2a11")


@dataclass(frozen=True)
class Cause:
    """Why a deployment is created.

    The id of the deployment follows from `key`, so that a piped that is killed in between does not
    create a second deployment for the same cause. `after` is the deployment that it follows, if
    the cause determines it.
    """

    key: str
    after: str | None = None
    commander: str = ""
    strategy: SyncStrategy = SyncStrategy.AUTO
    summary: str = ""
    chain_id: str = ""
    chain_block_index: int = 0


def commit_cause(last_deployment_id: str, head: str, reason: str) -> Cause:
    """Returns the cause of a new head; a revert to an earlier commit is another cause."""
    return _automatic_cause("commit", last_deployment_id, head, reason)


def drift_cause(last_deployment_id: str, head: str, reason: str) -> Cause:
    """Returns the cause of an application that is out of sync."""
    return _automatic_cause("drift", last_deployment_id, head, reason)


def _automatic_cause(kind: str, last_deployment_id: str, head: str, reason: str) -> Cause:
    """Upstream leaves the summary of such a deployment empty; here it has the reason."""
    key = f"{kind}\0{last_deployment_id}\0{head}"
    return Cause(key=key, after=last_deployment_id, summary=f"Sync because {reason}")


def new_deployment(
    application: Application,
    spec: ApplicationSpec,
    cause: Cause,
    *,
    commit: Commit,
    repository: Repository,
    now: datetime,
) -> Deployment:
    """Returns a pending deployment."""
    deployment = Deployment(
        id=str(uuid.uuid5(_NAMESPACE, f"{application.id}\0{cause.key}")),
        application_id=application.id,
        application_name=application.name,
        piped_id=application.piped_id,
        project_id=application.project_id,
        kind=application.kind,
        git_path=application.git_path,
        cloud_provider=application.cloud_provider,
        platform_provider=application.platform_provider,
        deploy_targets_by_plugin=application.deploy_targets_by_plugin,
        labels=application.labels,
        trigger=DeploymentTrigger(
            commit=deployment_pb2.Commit(
                hash=commit.hash,
                # Validation rejects what Git allows: no message, no author, a date before 1970.
                message=commit_message(commit),
                author=commit.author or "(unknown)",
                branch=repository.branch,
                url=commit_page(repository.remote, commit.hash),
                created_at=max(1, to_unix(commit.created_at)),
            ),
            commander=cause.commander,
            timestamp=to_unix(now),
            sync_strategy=common_pb2.SyncStrategy.ValueType(cause.strategy),
            strategy_summary=cause.summary,
        ),
        status=deployment_pb2.DeploymentStatus.ValueType(DeploymentStatus.PENDING),
        status_reason=PENDING,
        # Upstream's server cannot add metadata to a deployment that was created without any.
        metadata_v2=DeploymentMetadata(shared=DeploymentMetadata.KeyValues()),
        deployment_chain_id=cause.chain_id,
        deployment_chain_block_index=cause.chain_block_index,
        deployment_trace_commit_hash=commit.trailers.get(TRACE_TRAILER, ""),
        created_at=to_unix(now),
        updated_at=to_unix(now),
    )
    if spec.notification is not None:
        mentions = json.dumps(plain(spec.notification))
        deployment.metadata[NOTIFICATION_KEY] = mentions
        deployment.metadata_v2.shared.keyValues[NOTIFICATION_KEY] = mentions
    return deployment


def commit_message(commit: Commit) -> str:
    """Returns the message of a commit, which is never empty."""
    return commit.message or "(no message)"


def deployment_reference(deployment: Deployment) -> ApplicationDeploymentReference:
    """Returns what an application stores of its most recently triggered deployment."""
    return ApplicationDeploymentReference(
        deployment_id=deployment.id,
        trigger=deployment.trigger,
        summary=deployment.summary,
        config_filename=deployment.git_path.config_filename,
        versions=deployment.versions,
        started_at=deployment.created_at,
    )


def chain_request(
    deployment: Deployment, spec: ApplicationSpec
) -> CreateDeploymentChainRequest | None:
    """Returns the request for the chain that a deployment starts, or None."""
    if spec.post_sync is None or spec.post_sync.chain is None:
        return None
    first = Deployment()
    first.CopyFrom(deployment)
    # An application in the middle of a chain starts a new chain as its first block.
    first.deployment_chain_id = ""
    first.deployment_chain_block_index = 0
    return CreateDeploymentChainRequest(
        first_deployment=first,
        matchers=[
            CreateDeploymentChainRequest.ApplicationMatcher(
                name=each.name, kind=each.kind, labels=each.labels
            )
            for each in spec.post_sync.chain.applications
        ],
    )
