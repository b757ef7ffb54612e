# SPDX-License-Identifier: Apache-2.0
"""View model of what a commit changes: deploy targets with their resources.

Deployments and plan previews show the same results of plugins.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from pipecd.controlplane.console.diff_view import (
    MAX_LINES,
    ChangeCounts,
    DiffView,
    in_thread_if_long,
    preview_view,
)
from pipecd.controlplane.console.formatting import Timestamp, clause, plural, sentence, timestamp
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import PluginPlanPreviewResult
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges

# All targets share the lines of one diff, but each shows some.
_MIN_LINES = 200
_MAX_TARGETS = 100
# The language of plans, which compare with the live state and not with the running commit.
_PLAN_LANGUAGE = "hcl"
# As pipeds write it, those of upstream too.
_MANIFEST_COUNTS = re.compile(
    r"(?P<added>\d{1,9}) added manifests, (?P<changed>\d{1,9}) changed manifests, "
    r"(?P<deleted>\d{1,9}) deleted manifests"
)
# Pipeds compute the changes for at most two minutes, and some at a time.
_REPORTED_WITHIN = timedelta(minutes=5)


@dataclass(frozen=True)
class TargetChanges:
    """What changes on one deploy target."""

    name: str
    summary: str
    diff: DiffView
    is_plan: bool = False


@dataclass(frozen=True)
class ResourceChanges:
    """What changes on all deploy targets; `error` says why some of it is not known.

    `missing` says why nothing is known, and `is_expected` whether it may still arrive.
    """

    targets: tuple[TargetChanges, ...] = ()
    no_change: bool = False
    error: str = ""
    # A plan was made while the deployment ran already, so it lacks what was applied by then.
    is_late: bool = False
    omitted_targets: int = 0
    created: Timestamp | None = None
    missing: str = ""
    is_expected: bool = False

    @property
    def counts(self) -> ChangeCounts:
        """The resources of all deploy targets together."""
        if self.no_change:
            return ChangeCounts()
        return sum((target.diff.counts for target in self.targets), ChangeCounts())

    @property
    def has_lines(self) -> bool:
        """Whether any resource has lines to fold, or to show side by side."""
        return any(section.blocks for target in self.targets for section in target.diff.sections)


async def resource_changes(
    results: Sequence[PluginPlanPreviewResult],
    *,
    no_change: bool = False,
    error: str = "",
    scope: str = "",
    max_lines: int = MAX_LINES,
) -> ResourceChanges:
    """The results of plugins by deploy target and resource.

    `scope` tells the resources of several applications on a page apart, which share its lines.
    """
    shown = results[:_MAX_TARGETS]
    share = max(min(_MIN_LINES, max_lines), max_lines // max(len(shown), 1))
    targets = [await _target(each, share, scope) for each in shown]
    return ResourceChanges(
        targets=tuple(targets),
        no_change=no_change,
        error=clause(error),
        omitted_targets=len(results) - len(shown),
    )


async def _target(result: PluginPlanPreviewResult, max_lines: int, scope: str) -> TargetChanges:
    name = " · ".join(part for part in (result.deploy_target, result.plugin_name) if part)
    details = result.plan_details.decode("utf-8", "replace")
    view = partial(preview_view, scope=f"{scope}/{name}", max_lines=max_lines)
    return TargetChanges(
        name=name,
        summary=sentence(_readable(result.plan_summary.decode("utf-8", "replace"))),
        diff=await in_thread_if_long(view, details),
        is_plan=result.diff_language == _PLAN_LANGUAGE,
    )


def _readable(summary: str) -> str:
    """The summary with the plurals of the Kubernetes plugin set right, and without zeros."""
    found = _MANIFEST_COUNTS.fullmatch(summary.strip())
    if found is None:
        return summary
    parts = [(int(each), word) for word, each in found.groupdict().items() if int(each)]
    if not parts:
        return summary
    (first, what), *others = parts
    return ", ".join(
        (f"{plural(first, 'manifest')} {what}", *(f"{count} {word}" for count, word in others))
    )


async def deployment_resource_changes(changes: DeploymentChanges, now: datetime) -> ResourceChanges:
    """What a deployment changes, as its piped has reported it."""
    view = await resource_changes(changes.results, no_change=changes.no_change, error=changes.error)
    is_late = changes.stages_had_started and any(target.is_plan for target in view.targets)
    return replace(view, is_late=is_late, created=timestamp(changes.created_at, now))


def missing_changes(
    deployment: Deployment, *, has_own_piped: bool, now: datetime
) -> ResourceChanges:
    """The view of a deployment whose piped has not reported what it changes."""
    status = DeploymentStatus(deployment.status)
    if not has_own_piped:
        return ResourceChanges(
            missing="The piped of this deployment does not report which resources change."
        )
    if status is DeploymentStatus.PENDING:
        text = "The resources that change appear here once the deployment is planned."
        return ResourceChanges(missing=text, is_expected=True)
    is_recent = now.timestamp() - deployment.completed_at < _REPORTED_WITHIN.total_seconds()
    if not status.is_completed or is_recent:
        text = "The piped has not reported yet which resources change."
        return ResourceChanges(missing=text, is_expected=True)
    return ResourceChanges(missing="The piped has not reported which resources changed.")
