# SPDX-License-Identifier: Apache-2.0
"""What has to be true of an application some time after healing, as pure functions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from faults.applications import (
    SETTING_LABEL,
    FaultyApplication,
    Platform,
    Shape,
    description_of,
    setting_of,
)
from faults.evidence import FOREVER, WORKSPACE_FAULTS, InjectedFault, Requested
from faults.violation import Violation
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

# What a fault that is over may still cause, and how late a client may see a deployment, in seconds.
_AFTERMATH, _SEEN_LATE = 10.0, 15.0
IS_GONE = "is not in repository"
"""Why a deployment is refused whose commit, or the one that runs, nobody has any more."""
# How often a plugin may die before a stage fails by that.
_PLUGIN_DEATHS = 3
# A working copy in use that is damaged, or does not fit on the disk.
_OF_A_PIPED = frozenset({"damage_workspace", "fill_workspace"})
# What is deployed comes from these: copies borrow the objects of clones.
_SOURCES = ("deployments/", "git/", "plugin-state/", "tools/")
_OF_A_PLATFORM = {
    "api_server_away": Platform.KUBERNETES,
    "kill_supervisor": Platform.PROCESS,
    "kill_terraform": Platform.TERRAFORM,
}


@dataclass(frozen=True)
class Head:
    """The head of the branch and what is deployed of an application."""

    content: str
    """What identifies the files of the application."""
    is_broken: bool = False
    """Whether the configuration at the head does not parse."""
    running: str | None = None
    """The content that runs according to the target itself; None if it is not known."""
    is_running_ended: bool = True
    fails: bool = False
    """Whether its deployment is meant to fail."""
    nonce: str = ""
    """The revision of the head; empty if it is not known."""


@dataclass(frozen=True)
class SyncState:
    """The sync state of an application as the control plane has it."""

    status: SyncStatus
    reason: str = ""
    is_deploying: bool = False


def may_be_refused(
    deployment: Deployment,
    application: FaultyApplication,
    *,
    requests: Sequence[Requested],
    faults: Sequence[InjectedFault],
    first_seen: float,
    completed_at: float = FOREVER,
) -> bool:
    """Whether a user, or a fault of what it is deployed from or to, explains that a deployment failed.

    Killed pipeds, control planes, databases and networks explain nothing: a deployment goes on. So do a
    repository that is away, a lost workspace, and a plugin that dies once or twice, hangs or floods.
    """
    if any(each.kind in ("cancel", "reject") and each.deployment == deployment.id for each in requests):  # fmt: skip
        return True
    begin, end = first_seen - _SEEN_LATE, completed_at
    if IS_GONE in deployment.status_reason and _is_commit_lost(deployment, faults, begin, end):
        return True
    deaths = sum(
        fault.name == "kill_plugin" and fault.piped == deployment.piped_id and begin <= fault.begin <= end
        for fault in faults
    )  # fmt: skip
    if deaths >= _PLUGIN_DEATHS:
        return True
    return any(
        InjectedFault(fault.name, fault.begin, fault.end + _AFTERMATH).overlaps(begin, end)
        and (
            (
                fault.name in _OF_A_PIPED
                and fault.piped == deployment.piped_id
                and fault.may_lose(_SOURCES)
            )
            or (
                _OF_A_PLATFORM.get(fault.name) is application.platform
                and fault.piped in ("", deployment.piped_id)
            )
        )
        for fault in faults
    )


def _is_commit_lost(
    deployment: Deployment, faults: Sequence[InjectedFault], first_seen: float, end: float
) -> bool:
    """Whether a commit of the past can be in neither the repository nor the copy of its piped.

    As in upstream, no plan is made without the commit that runs.
    """
    before = [fault for fault in faults if fault.begin <= end]
    own = [fault for fault in before if fault.piped == deployment.piped_id]
    return any(fault.name == "recreate_repository" for fault in before) and any(
        fault.name in WORKSPACE_FAULTS
        # Its copy is a new one, and gone with it.
        or (fault.name == "duplicate_piped" and fault.end + _AFTERMATH >= first_seen)
        for fault in own
    )


def unsettled(
    application: FaultyApplication,
    head: Head,
    deployments: Sequence[Deployment],
    content_of: Mapping[str, str],
    *,
    sync: SyncState,
    explained: Collection[str] = (),
) -> list[Violation]:
    """What is not yet as it has to be of an application after healing.

    `deployments` are in the order in which they were created; `content_of` has the contents of commits;
    `explained` has the ids of deployments that may have failed although their commit is good.
    """
    name = application.name
    own = [each for each in deployments if each.application_name == name]
    left = [
        Violation(
            "nothing is stuck", f"{each.id} of {name} is {DeploymentStatus(each.status).name}", name
        )
        for each in own
        if not DeploymentStatus(each.status).is_completed
    ]
    if left:
        return left
    if head.is_broken:
        rule, problem = _problem_of_broken(sync)
    elif application.shape is Shape.FOLLOWER:
        # Commits do not trigger it; the rule of chains says when it is deployed.
        rule, problem = "", ""
    else:
        rule, problem = _problem_of_deployed(application, head, own, content_of, sync, explained)
    if not problem and (sync.status is SyncStatus.DEPLOYING or sync.is_deploying):
        which = "the sync state" if sync.status is SyncStatus.DEPLOYING else "the flag"
        rule, problem = "the sync state is right", f"is still deploying according to {which}"
    elif not problem and sync.status is SyncStatus.INVALID_CONFIG and not head.is_broken:
        rule, problem = "the sync state is right", f"is reported as invalid: {sync.reason}"
    return [Violation(rule, f"{name} {problem}", name)] if problem else []


def unstored_settings(
    application: FaultyApplication,
    head: Head,
    *,
    config: str,
    description: str,
    labels: Mapping[str, str],
) -> list[Violation]:
    """What is stored of an application otherwise than its configuration file at the head says.

    Nobody can read a broken file, and what upstream's pipeds report is not ours.
    """
    if head.is_broken or not head.nonce or application.upstream is not None:
        return []
    name, stored = application.name, (description, labels.get(SETTING_LABEL, ""))
    expected = (description_of(head.nonce, config), setting_of(head.nonce))
    if stored == expected:
        return []
    text = f"{name} is stored with {stored}, and its file at the head has {expected}"
    return [Violation("a saved setting is stored and used", text, name)]


def _problem_of_broken(sync: SyncState) -> tuple[str, str]:
    if sync.status is SyncStatus.INVALID_CONFIG and sync.reason:
        return "", ""
    return "no push is lost", "is not reported as invalid although its file is broken"


def _problem_of_deployed(
    application: FaultyApplication,
    head: Head,
    own: Sequence[Deployment],
    content_of: Mapping[str, str],
    sync: SyncState,
    explained: Collection[str],
) -> tuple[str, str]:
    """The rule that does not hold for a head that can be deployed, and why."""
    of_head = [each for each in own if content_of.get(each.trigger.commit.hash) == head.content]
    last = of_head[-1] if of_head else None
    if last is None or DeploymentStatus(last.status) is not DeploymentStatus.SUCCESS:
        return _problem_of_refused(head, last, own, content_of, explained)
    if head.fails:
        return "a failed stage fails its deployment", "succeeded at a head that fails"
    rule = "the head runs in the end"
    if head.running not in (None, head.content):
        return rule, "does not run the head although its deployment succeeded"
    if not head.is_running_ended:
        return rule, "has a last script that has not ended"
    if application.platform is not Platform.SCRIPT and sync.status is not SyncStatus.SYNCED:
        problem = f"runs the head and is {sync.status.name}: {sync.reason}"
        return "the sync state is right", problem
    return "", ""


def _problem_of_refused(
    head: Head,
    last: Deployment | None,
    own: Sequence[Deployment],
    content_of: Mapping[str, str],
    explained: Collection[str],
) -> tuple[str, str]:
    if last is None:
        return "no push is lost", "was never deployed at the head"
    if not last.status_reason:
        return "no push is lost", "was refused at the head without a reason"
    if not head.fails and last.id not in explained:
        problem = f"failed at the head, which is good: {last.status_reason[:200]}"
        return "no push is lost", problem
    if head.running not in (None, *_contents_since_success(own, content_of)):
        return "the head runs in the end", "runs what was replaced before the head was refused"
    return "", ""


def _contents_since_success(own: Sequence[Deployment], content_of: Mapping[str, str]) -> set[str]:
    """The contents of the last deployment that succeeded and of all since then."""
    contents: set[str] = set()
    for deployment in reversed(own):
        contents.add(content_of.get(deployment.trigger.commit.hash, ""))
        if DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS:
            break
    return contents
