# SPDX-License-Identifier: Apache-2.0
"""The trigger rules: whether to deploy an application, and the reason that is shown for it."""

import posixpath
from dataclasses import dataclass
from datetime import datetime

from pipecd.config.application import (
    OnChainSpec,
    OnCommandSpec,
    OnCommitSpec,
    OnOutOfSyncSpec,
)
from pipecd.config.units import Duration
from pipecd.model.application import ApplicationKind
from pipecd.model.errors import UserMistake
from pipecd.piped.plan.paths import path_patterns


@dataclass(frozen=True)
class Decision:
    """Whether to deploy, and why."""

    deploy: bool
    reason: str


@dataclass(frozen=True)
class CommitFacts:
    """The facts about a new head commit of the branch.

    `last` is the commit that was last triggered or ignored, empty before the first deployment.
    `changed` are the paths that differ since, or None if `last` no longer exists.
    """

    application_path: str
    last: str
    head: str
    changed: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class LastDeployment:
    """The most recently triggered deployment; `completed_at` is None while it runs."""

    completed_at: datetime | None


def needs_changed_files(spec: OnCommitSpec, *, last: str, head: str) -> bool:
    """Whether the decision on a commit depends on the changed files."""
    return not spec.disabled and last not in ("", head)


def on_commit(spec: OnCommitSpec, facts: CommitFacts) -> Decision:
    """Decides whether a new head commit of the branch deploys the application."""
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
    return _by_changed_files(spec, facts.application_path, facts.changed)


def _by_changed_files(
    spec: OnCommitSpec, application_path: str, changed: tuple[str, ...]
) -> Decision:
    # As in upstream each pattern is matched alone, so that an exclusion never matches.
    for pattern in spec.ignores:
        ignored = next(filter(path_patterns([pattern]).match, changed), None)
        if ignored is not None:
            return Decision(False, f"{_printable(ignored)} matches {pattern!r} of onCommit.ignores")
    for pattern in spec.paths:
        included = next(filter(path_patterns([pattern]).match, changed), None)
        if included is not None:
            return Decision(True, f"{_printable(included)} matches {pattern!r} of onCommit.paths")
    prefix = directory_prefix(application_path)
    own = next((path for path in changed if path.startswith(prefix)), None)
    if own is not None:
        return Decision(True, f"{_printable(own)} changed")
    return Decision(False, "no file of the application changed")


def directory_prefix(application_path: str) -> str:
    """Returns the prefix of paths in the directory of an application; empty for the root."""
    clean = posixpath.normpath(application_path) if application_path else "."
    return "" if clean == "." else f"{clean}/"


def _printable(path: str) -> str:
    # File names are bytes and need not be valid UTF-8.
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def on_command(spec: OnCommandSpec) -> Decision:
    """Decides on the sync command of a user."""
    if spec.disabled:
        return Decision(False, "commands do not trigger, as trigger.onCommand is disabled")
    return Decision(True, "a sync was requested")


def on_chain(spec: OnChainSpec) -> Decision:
    """Decides on the sync command of a deployment chain."""
    if spec.disabled:
        return Decision(
            False, "chains do not trigger; set trigger.onChain.disabled to false to take part"
        )
    return Decision(True, "a chain reached the application")


def on_out_of_sync(
    spec: OnOutOfSyncSpec, last: LastDeployment | None, *, now: datetime
) -> Decision:
    """Decides on an application that is out of sync: its live state differs from Git."""
    if spec.disabled:
        return Decision(False, "drift does not trigger, as trigger.onOutOfSync is disabled")
    if last is None:
        return Decision(True, "the application is out of sync and was never deployed")
    if last.completed_at is None:
        return Decision(False, "the application is being deployed already")
    passed = (now - last.completed_at).total_seconds()
    # A completion in the future means that the clock was set back.
    if -spec.min_window < passed < spec.min_window:
        rest = Duration(max(1, round(spec.min_window - passed)))
        return Decision(False, f"onOutOfSync.minWindow has not passed, {rest} are left")
    return Decision(True, "the application is out of sync")


def invalid_patterns(spec: OnCommitSpec) -> str:
    """Returns what is wrong with the path patterns of a trigger, or an empty string."""
    try:
        path_patterns([*spec.paths, *spec.ignores])
    except UserMistake as e:
        return f"trigger.onCommit: {e}"
    return ""


def invalid_kind(
    configured: ApplicationKind | None, registered: ApplicationKind, *, has_provider: bool
) -> str:
    """Returns an error text if a v0 application changed its kind, or an empty string.

    Only applications with a platform provider are registered with a kind.
    """
    if configured is None or not has_provider or configured is registered:
        return ""
    return (
        "invalid application kind in the application config file, "
        f"got: {configured.name}, expected: {registered.name}"
    )
