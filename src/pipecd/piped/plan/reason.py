# SPDX-License-Identifier: Apache-2.0
"""Whether there is a reason to deploy, and the sentence that tells people why or why not."""

import posixpath
from dataclasses import dataclass
from datetime import datetime

from pipecd.config.application.trigger import (
    OnChainSpec,
    OnCommandSpec,
    OnCommitSpec,
    OnOutOfSyncSpec,
)
from pipecd.config.duration import Duration
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.paths import path_patterns


@dataclass(frozen=True)
class Decision:
    """To deploy or not; the reason is shown to people."""

    deploy: bool
    reason: str


@dataclass(frozen=True)
class CommitFacts:
    """What is known about a new head.

    `last` is the commit that was last triggered or found not to matter, empty before the first
    deployment. `changed` are the paths that differ since, or None when that cannot be known.
    """

    application_path: str
    last: str
    head: str
    changed: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class LastDeployment:
    """The deployment that was triggered last; `completed_at` is None while it goes on."""

    completed_at: datetime | None


def needs_changes(spec: OnCommitSpec, *, last: str, head: str) -> bool:
    """Whether the decision on a commit depends on which files changed."""
    return not spec.disabled and last not in ("", head)


def on_commit(spec: OnCommitSpec, facts: CommitFacts) -> Decision:
    """Decides on a head of the branch."""
    if spec.disabled:
        return Decision(False, "commits do not trigger, as trigger.onCommit is disabled")
    if not facts.last:
        return Decision(True, "the application was never deployed")
    if facts.last == facts.head:
        return Decision(False, "nothing was committed since the last deployment was triggered")
    if facts.changed is None:
        return Decision(
            True, f"commit {facts.last[:7]} is gone, so what changed since cannot be known"
        )
    return _touched(spec, facts.application_path, facts.changed)


def _touched(spec: OnCommitSpec, application_path: str, changed: tuple[str, ...]) -> Decision:
    # Each pattern is tried alone, so an exclusion among them never fits, as upstream has it.
    for pattern in spec.ignores:
        ignored = next(filter(path_patterns([pattern]).match, changed), None)
        if ignored is not None:
            return Decision(False, f"{_shown(ignored)} matches {pattern!r} of onCommit.ignores")
    for pattern in spec.paths:
        wanted = next(filter(path_patterns([pattern]).match, changed), None)
        if wanted is not None:
            return Decision(True, f"{_shown(wanted)} matches {pattern!r} of onCommit.paths")
    prefix = directory_prefix(application_path)
    own = next((path for path in changed if path.startswith(prefix)), None)
    if own is not None:
        return Decision(True, f"{_shown(own)} changed")
    return Decision(False, "no file of the application changed")


def directory_prefix(application_path: str) -> str:
    """What paths below the directory of an application begin with; the root has everything."""
    clean = posixpath.normpath(application_path) if application_path else "."
    return "" if clean == "." else f"{clean}/"


def _shown(path: str) -> str:
    # Names of files are bytes and need not be text.
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def on_command(spec: OnCommandSpec) -> Decision:
    """Decides on the request of a person."""
    if spec.disabled:
        return Decision(False, "commands do not trigger, as trigger.onCommand is disabled")
    return Decision(True, "a sync was requested")


def on_chain(spec: OnChainSpec) -> Decision:
    """Decides on the request of a chain."""
    if spec.disabled:
        return Decision(
            False, "chains do not trigger; set trigger.onChain.disabled to false to take part"
        )
    return Decision(True, "a chain reached the application")


def on_out_of_sync(
    spec: OnOutOfSyncSpec, last: LastDeployment | None, *, now: datetime
) -> Decision:
    """Decides on an application whose live state differs from Git."""
    if spec.disabled:
        return Decision(False, "drift does not trigger, as trigger.onOutOfSync is disabled")
    if last is None:
        return Decision(True, "the application is out of sync and was never deployed")
    if last.completed_at is None:
        return Decision(False, "the application is being deployed already")
    passed = (now - last.completed_at).total_seconds()
    # A deployment that ends in the future ended before the clock was set back.
    if -spec.min_window < passed < spec.min_window:
        rest = Duration(max(1, round(spec.min_window - passed)))
        return Decision(False, f"onOutOfSync.minWindow has not passed, {rest} are left")
    return Decision(True, "the application is out of sync")


def pattern_mistake(spec: OnCommitSpec) -> str:
    """What is wrong with the path patterns of a trigger; empty when nothing is."""
    try:
        path_patterns([*spec.paths, *spec.ignores])
    except UserMistake as e:
        return f"trigger.onCommit: {e}"
    return ""


def kind_mistake(
    configured: ApplicationKind | None, registered: ApplicationKind, *, has_provider: bool
) -> str:
    """What is wrong when a first-generation application changes its kind; empty when nothing is.

    Only an application with a platform provider was registered with a kind of its own.
    """
    if configured is None or not has_provider or configured is registered:
        return ""
    return (
        "invalid application kind in the application config file, "
        f"got: {configured.name}, expected: {registered.name}"
    )
