# SPDX-License-Identifier: Apache-2.0
"""The deployment that a reason leads to, as it is first written."""

import json
import uuid
from dataclasses import dataclass
from datetime import datetime

from pipecd.config.application.spec import ApplicationSpec
from pipecd.config.spec import plain
from pipecd.git.commit import Commit
from pipecd.git.mirror import Repository
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.giturl import commit_page
from pipecd.piped.notify.mentions import NOTIFICATION_KEY
from pipecd.proto.model import common_pb2, deployment_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.deployment_pb2 import Deployment, DeploymentMetadata, DeploymentTrigger
from pipecd.proto.service.piped_pb2 import CreateDeploymentChainRequest

TRACE_TRAILER = "Pipecd-Dev-Trace-Trigger-Commit-Hash"
PENDING = "The deployment is waiting to be planned"

BY_COMMAND = "because piped received a command from user via web console or pipectl"
SUMMARIES = {
    SyncStrategy.AUTO: f"Sync with the specified pipeline {BY_COMMAND}",
    SyncStrategy.PIPELINE: f"Sync with the specified pipeline {BY_COMMAND}",
    SyncStrategy.QUICK_SYNC: f"Quick sync {BY_COMMAND}",
}

_NAMESPACE = uuid.UUID("6f6d3f0e-52f5-5d5b-9d07-3f1b6b3c2a11")


@dataclass(frozen=True)
class Cause:
    """Why a deployment is made.

    `key` names the cause itself: the same cause always makes the deployment with the same id, so
    that a piped that was killed in between does not make a second one. `after` is the deployment
    that such a deployment follows, where the cause tells.
    """

    key: str
    after: str | None = None
    commander: str = ""
    strategy: SyncStrategy = SyncStrategy.AUTO
    summary: str = ""
    chain_id: str = ""
    chain_block_index: int = 0


def commit_cause(last_deployment_id: str, head: str, reason: str) -> Cause:
    """A new head after the last deployment; going back to an earlier commit is another cause."""
    return _own_cause("commit", last_deployment_id, head, reason)


def drift_cause(last_deployment_id: str, head: str, reason: str) -> Cause:
    """What runs is not what the last deployment brought about."""
    return _own_cause("drift", last_deployment_id, head, reason)


def _own_cause(kind: str, last_deployment_id: str, head: str, reason: str) -> Cause:
    """One that nobody asked for; upstream says nothing then, where we say why."""
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
    """A deployment that waits to be planned."""
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
        trigger=_trigger(cause, commit, repository, now),
        status=deployment_pb2.DeploymentStatus.ValueType(DeploymentStatus.PENDING),
        status_reason=PENDING,
        # Upstream's server cannot add metadata to a deployment that was made without any.
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


def _trigger(
    cause: Cause, commit: Commit, repository: Repository, now: datetime
) -> DeploymentTrigger:
    return DeploymentTrigger(
        commit=deployment_pb2.Commit(
            hash=commit.hash,
            # The wire refuses what Git allows: no message, no author, a date before 1970.
            message=message_of(commit),
            author=commit.author or "(unknown)",
            branch=repository.branch,
            url=commit_page(repository.remote, commit.hash),
            created_at=max(1, to_unix(commit.created_at)),
        ),
        commander=cause.commander,
        timestamp=to_unix(now),
        sync_strategy=common_pb2.SyncStrategy.ValueType(cause.strategy),
        strategy_summary=cause.summary,
    )


def message_of(commit: Commit) -> str:
    """What a commit says, or that it says nothing."""
    return commit.message or "(no message)"


def reference(deployment: Deployment) -> ApplicationDeploymentReference:
    """What an application remembers of the deployment triggered last."""
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
    """The chain that a deployment begins, if its application asks for one."""
    if spec.post_sync is None or spec.post_sync.chain is None:
        return None
    first = Deployment()
    first.CopyFrom(deployment)
    # An application in the middle of a chain begins a new one of which it is the first block.
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
