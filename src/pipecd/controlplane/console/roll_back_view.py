# SPDX-License-Identifier: Apache-2.0
"""View model of the way back from an ended deployment, which is a revert in Git."""

import re
import shlex
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pipecd.controlplane.console.pipeline_view import PipelineView
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment

_COMMIT_HASH = re.compile(r"[0-9a-f]{7,64}")


@dataclass(frozen=True)
class RollBackView:
    """What a user types to go back to the state before a deployment, and why it is in Git."""

    text: str
    commands: str


def roll_back_view(
    deployment: Deployment, pipeline: PipelineView, later_commit: str = ""
) -> RollBackView:
    """The way back; `later_commit` is that of a later deployment that has succeeded."""
    repository = deployment.git_path.repo
    was_rolled_back = pipeline.rollback and all(s.status == "SUCCESS" for s in pipeline.rollback)
    why = (
        "It was rolled back, but Git still has its commit, and the next sync deploys it again:"
        if was_rolled_back
        else "Git says what runs, so go back in Git:"
    )
    if deployment.stages and not deployment.running_commit_hash:
        # Only a deployment that was planned knows what was running.
        why = (
            "No deployment has succeeded before this one, so no version can come back. "
            "To undo the commit:"
        )
    if later_commit == deployment.trigger.commit.hash:
        why = "A later deployment of the same commit has succeeded, so it runs. To go back:"
    elif later_commit:
        why = (
            f"A later deployment has succeeded: commit {later_commit[:7]} runs. "
            "If Git still has the change of this one:"
        )
    revert = f"git revert --no-edit {_reverted(deployment.trigger.commit.hash)}"
    if directory := _working_copy(repository):
        text = f"{why} revert the commit in the repository. The revert is deployed by itself."
        return RollBackView(text, f"cd {shlex.quote(directory)}\n{revert}")
    where = f"a clone of {repository.id}" if repository.id else "a clone of the repository"
    text = f"{why} revert the commit in {where} and push. The revert is deployed by itself."
    return RollBackView(text, f"{revert}\ngit push")


def later_success(deployment: Deployment, application: Application | None) -> str:
    """The commit of a deployment that succeeded after this one; empty if there is none."""
    if application is None:
        return ""
    last = application.most_recently_successful_deployment
    is_later = last.deployment_id != deployment.id and last.started_at > deployment.created_at
    return last.trigger.commit.hash if is_later else ""


def sync_again_text(deployment: Deployment, application: Application) -> str:
    """What *Sync again* deploys, in few words; piped reads the commit when the sync begins."""
    last = application.most_recently_triggered_deployment.trigger.commit
    known = last if last.hash else deployment.trigger.commit
    branch = application.git_path.repo.branch or known.branch or deployment.trigger.commit.branch
    head = f"the newest commit of {branch}" if branch else "the newest commit"
    if not known.hash:
        return f"Sync again deploys {head}."
    subject = known.message.partition("\n")[0].strip()
    quoted = f" \N{LEFT DOUBLE QUOTATION MARK}{subject}\N{RIGHT DOUBLE QUOTATION MARK}"
    return f"Sync again deploys {head}: {known.hash[:7]}{quoted if subject else ''} or newer."


def _reverted(commit: str) -> str:
    """The commit; nothing but a commit of Git gets into a shell."""
    return commit[:12] if _COMMIT_HASH.fullmatch(commit) else "HEAD"


def _working_copy(repository: ApplicationGitRepository) -> str:
    """The directory of a repository on the machine of the piped; empty if it is a remote one.

    A bare repository, whose name ends with `.git`, needs a clone like a remote one.
    """
    try:
        remote = urlsplit(repository.remote)
    except ValueError:
        return ""
    path = unquote(remote.path)
    is_local = remote.scheme == "file" and not remote.netloc and path.startswith("/")
    return path if is_local and path.isprintable() and not path.endswith(".git") else ""
