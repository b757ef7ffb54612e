# SPDX-License-Identifier: Apache-2.0
"""View models of plan previews: the list of recent ones, and what one of them would deploy."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pipecd.controlplane.console.diff_view import MAX_LINES, ChangeCounts
from pipecd.controlplane.console.formatting import (
    Timestamp,
    clause,
    label_texts,
    plural,
    timestamp,
)
from pipecd.controlplane.console.resource_changes import ResourceChanges, resource_changes
from pipecd.controlplane.console.status_badge import Badge, PipedStatus, Tone, piped_status
from pipecd.controlplane.usecases.plan_previews import RequestedPreview
from pipecd.controlplane.usecases.preview_counts import PreviewCounts, parse_counts
from pipecd.model.command import PREVIEW_COUNTS_KEY, CommandStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PluginPlanPreviewResult,
)

# So many applications are shown with their differences, and share the lines of a page; the others
# are listed, and each can be shown alone.
MAX_DIFFS = 50
_MAX_LINES_OF_ALL = 2 * MAX_LINES
_SHORT_COMMIT = 7

BUILDING = Badge(Tone.RUN, "run", "Running")
WAITING = Badge(Tone.OFF, "clock", "Waiting")
READY = Badge(Tone.OK, "check", "Ready")
PARTLY_FAILED = Badge(Tone.BAD, "warn", "Partly failed")
FAILED = Badge(Tone.BAD, "cross", "Failed")
EXPIRED = Badge(Tone.OFF, "clock", "Expired")
# The first of them that any piped has is the status of a request of several pipeds.
_ENTRY_STATUSES = (FAILED, BUILDING, WAITING, PARTLY_FAILED, READY)
_CHANGES = Badge(Tone.WAIT, "differ", "Changes")
_NO_CHANGE = Badge(Tone.OFF, "dots", "No change")
_STRATEGIES = {
    SyncStrategy.AUTO: "Decided after the merge",
    SyncStrategy.QUICK_SYNC: "Quick sync",
    SyncStrategy.PIPELINE: "Pipeline",
}


@dataclass(frozen=True)
class PreviewRow:
    """A plan preview of one piped in lists; `commit` is short."""

    id: str
    badge: Badge
    branch: str
    base: str
    commit: str
    repository: str
    piped: PipedStatus
    requested: Timestamp | None
    # None before it is ready.
    counts: PreviewCounts | None = None


@dataclass(frozen=True)
class PreviewEntry:
    """What a branch would deploy, by the pipeds that were asked for it at the same time.

    `previews` are in the order of their badges; that of the first is the one of the entry.
    """

    id: str
    previews: tuple[PreviewRow, ...]

    @property
    def first(self) -> PreviewRow:
        return self.previews[0]

    @property
    def progress(self) -> str:
        """How many pipeds are ready, while some are not."""
        ready = sum(each.badge in (READY, PARTLY_FAILED) for each in self.previews)
        is_partial = 0 < ready < len(self.previews)
        return f"{ready} of {len(self.previews)} ready" if is_partial else ""

    @property
    def result(self) -> str:
        """What a merge would do, as far as the previews are ready; empty if none is."""
        ready = [each.counts for each in self.previews if each.counts is not None]
        if not ready:
            return ""
        total = sum(ready, PreviewCounts())
        deployed = total.changed + total.unchanged
        parts = [plural(deployed, "application")] if deployed else []
        parts += [f"{total.unchanged} without changes"] if total.unchanged else []
        return ", ".join(parts) or ("" if total.failed else "nothing")

    @property
    def failed(self) -> str:
        """Of how many applications the preview has failed; `result` does not count them."""
        failed = sum(each.counts.failed for each in self.previews if each.counts)
        return f"{plural(failed, 'preview')} failed" if failed else ""

    @property
    def repositories(self) -> tuple[str, ...]:
        """The names that the pipeds have for the repository."""
        return tuple(dict.fromkeys(each.repository for each in self.previews))


@dataclass(frozen=True)
class PreviewedApplication:
    """What the branch would deploy of one application."""

    id: str
    anchor: str
    name: str
    directory: str
    labels: tuple[str, ...]
    strategy: str
    badge: Badge
    changes: ResourceChanges
    # False if the page has too many applications for the differences of all.
    has_diff: bool = True


@dataclass(frozen=True)
class PreviewView:
    """The page of a plan preview; `text` says in a sentence what a merge would do."""

    row: PreviewRow
    text: str
    applications: tuple[PreviewedApplication, ...] = ()
    error: str = ""
    hidden: int = 0
    is_running: bool = False
    has_expired: bool = False
    # The application that the page is limited to.
    only: str = ""
    # How many applications the preview has, also those that are not among `applications`.
    total: int = 0

    @property
    def counts(self) -> ChangeCounts:
        """The resources of all applications together."""
        return sum((each.changes.counts for each in self.applications), ChangeCounts())

    @property
    def without_diff(self) -> int:
        """How many applications are only listed."""
        return sum(not each.has_diff for each in self.applications)

    @property
    def has_lines(self) -> bool:
        return any(each.has_diff and each.changes.has_lines for each in self.applications)


def preview_row(command: Command, pipeds: Iterable[Piped] | None, now: datetime) -> PreviewRow:
    """The row of the command that requested a preview."""
    request, piped = command.build_plan_preview, piped_status(command.piped_id, pipeds)
    counts = parse_counts(command.metadata.get(PREVIEW_COUNTS_KEY, ""))
    badge = _badge(CommandStatus(command.status), piped)
    if badge == READY and counts is not None:
        badge = _ready_badge(counts.failed, counts.changed + counts.unchanged)
    return PreviewRow(
        id=command.id,
        badge=badge,
        branch=request.head_branch,
        base=request.base_branch,
        commit=request.head_commit[:_SHORT_COMMIT],
        repository=request.repository_id,
        piped=piped,
        requested=timestamp(command.created_at, now),
        counts=counts,
    )


def preview_entries(
    commands: Iterable[Command], pipeds: Iterable[Piped] | None, now: datetime
) -> tuple[PreviewEntry, ...]:
    """The entries of a list of commands, which are newest first.

    A request has a command for each piped, and one of a piped that has one already belongs to an
    earlier request.
    """
    known = None if pipeds is None else tuple(pipeds)
    entries: list[list[Command]] = []
    latest: dict[tuple[str, str, str], list[Command]] = {}
    for command in commands:
        request = command.build_plan_preview
        key = (request.head_branch, request.base_branch, request.head_commit)
        entry = latest.get(key)
        if entry is None or command.piped_id in {each.piped_id for each in entry}:
            entry = latest[key] = []
            entries.append(entry)
        entry.append(command)
    return tuple(_entry([preview_row(each, known, now) for each in entry]) for entry in entries)


def _entry(rows: Sequence[PreviewRow]) -> PreviewEntry:
    ordered = sorted(rows, key=lambda row: (_ENTRY_STATUSES.index(row.badge), row.piped.name))
    return PreviewEntry(rows[0].id, tuple(ordered))


def _badge(status: CommandStatus, piped: PipedStatus) -> Badge:
    if status is CommandStatus.NOT_HANDLED_YET:
        return WAITING if piped.is_unavailable else BUILDING
    return READY if status is CommandStatus.SUCCEEDED else FAILED


def _ready_badge(failed: int, others: int) -> Badge:
    """The badge of a finished preview by the applications that failed in it and the others."""
    if not failed:
        return READY
    return PARTLY_FAILED if others else FAILED


async def preview_view(
    preview: RequestedPreview,
    pipeds: Iterable[Piped] | None,
    now: datetime,
    *,
    only: str = "",
) -> PreviewView:
    """The page of a preview, or of one application of it."""
    row = preview_row(preview.command, pipeds, now)
    if preview.has_expired:
        text = "Results are stored for a day. Push to the branch to request a new one."
        return PreviewView(replace(row, badge=EXPIRED), text, has_expired=True)
    if preview.result is None:
        wait = f"Piped {row.piped.name} merges the branch and compares what would be deployed."
        offline = (
            f"Piped {row.piped.name} is {row.piped.badge.text.lower()}; "
            f"the preview begins when it {row.piped.remedy}."
        )
        is_away = row.piped.is_unavailable
        return PreviewView(row, offline if is_away else wait, is_running=True)
    result = preview.result
    if result.error:
        return PreviewView(replace(row, badge=FAILED), "", error=clause(result.error))
    results = sorted(result.results, key=_order)
    chosen = [each for each in results if each.application_id == only] if only else results
    shown = chosen or results
    applications = await _applications(shown)
    failed = sum(bool(each.error) for each in results)
    return PreviewView(
        row=replace(row, badge=_ready_badge(failed, len(results) - failed)),
        text=_text(results),
        applications=applications,
        hidden=preview.hidden,
        only=shown[0].application_name if chosen and only else "",
        total=len(results),
    )


def _order(result: ApplicationPlanPreviewResult) -> tuple[bool, bool, str]:
    """Failed applications first, unchanged ones last."""
    return (not result.error, result.no_change, result.application_name)


def _text(results: Sequence[ApplicationPlanPreviewResult]) -> str:
    """What a merge does, in a sentence."""
    if not results:
        return "No application changes: merging deploys nothing."
    failed = sum(bool(each.error) for each in results)
    parts = [f"Merging deploys {_deployed(results)}"] if len(results) > failed else []
    if failed:
        parts.append(f"the preview of {plural(failed, 'application')} failed")
    text = ", and ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _deployed(results: Sequence[ApplicationPlanPreviewResult]) -> str:
    """How many applications are deployed; a commit may trigger one and change nothing of it."""
    deployed = [each for each in results if not each.error]
    unchanged = sum(each.no_change for each in deployed)
    text = plural(len(deployed), "application")
    if unchanged == len(deployed):
        return f"{text} without changes"
    return f"{text}, {unchanged} of them without changes" if unchanged else text


async def _applications(
    results: Sequence[ApplicationPlanPreviewResult],
) -> tuple[PreviewedApplication, ...]:
    max_lines = min(MAX_LINES, _MAX_LINES_OF_ALL // min(max(len(results), 1), MAX_DIFFS))
    return tuple(
        [
            await _application(each, max_lines, has_diff=index < MAX_DIFFS)
            for index, each in enumerate(results)
        ]
    )


async def _application(
    result: ApplicationPlanPreviewResult, max_lines: int, *, has_diff: bool
) -> PreviewedApplication:
    changes = await resource_changes(
        _plugin_results(result),
        no_change=result.no_change,
        error=result.error,
        scope=result.application_id,
        max_lines=max_lines,
    )
    badge = FAILED if result.error else _NO_CHANGE if result.no_change else _CHANGES
    return PreviewedApplication(
        id=result.application_id,
        anchor=f"app-{result.application_id}",
        name=result.application_name,
        directory=result.application_directory,
        labels=label_texts(result.labels),
        strategy="" if result.error else _STRATEGIES[SyncStrategy(result.sync_strategy)],
        badge=badge,
        changes=changes,
        has_diff=has_diff,
    )


def _plugin_results(result: ApplicationPlanPreviewResult) -> Sequence[PluginPlanPreviewResult]:
    """The results of the plugins; pipeds of the first generation have one text for all."""
    if result.plugin_plan_results or not (result.plan_details or result.plan_summary):
        return result.plugin_plan_results
    return [
        PluginPlanPreviewResult(plan_summary=result.plan_summary, plan_details=result.plan_details)
    ]
