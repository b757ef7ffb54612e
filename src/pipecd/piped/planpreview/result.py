# SPDX-License-Identifier: Apache-2.0
"""Results of a plan preview as the control plane and pipectl read them; pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)
from pipecd.proto.plugin.planpreview_pb2 import PlanPreviewResult
from pipecd.secrets.masking import Masking

UNKNOWN_PLUGIN = "<unknown>"
NO_CHANGES = "No changes were detected"

# Servers take messages of four MiB; in JSON, three bytes of details become four.
_MOST_DETAILS = 2 * 1024 * 1024


@dataclass(frozen=True)
class Answer:
    """What one plugin says would happen, target by target."""

    plugin: str
    results: Sequence[PlanPreviewResult]


def described(
    application: Application, wanted: Command.BuildPlanPreview, *, now: int
) -> ApplicationPlanPreviewResult:
    """The result of an application of which nothing but its name is known yet."""
    return ApplicationPlanPreviewResult(
        application_id=application.id,
        application_name=application.name,
        application_kind=application.kind,
        application_directory=application.git_path.path,
        labels=application.labels,
        piped_id=application.piped_id,
        project_id=application.project_id,
        head_branch=wanted.head_branch,
        head_commit=wanted.head_commit,
        plugin_names=[UNKNOWN_PLUGIN],
        created_at=now,
    )


def fill(
    result: ApplicationPlanPreviewResult, strategy: SyncStrategy, answers: Sequence[Answer]
) -> None:
    """Writes what the plugins said, both as a list and as the one text that older readers know."""
    found = [(answer.plugin, each) for answer in answers for each in answer.results]
    result.sync_strategy = common_pb2.SyncStrategy.ValueType(strategy)
    result.no_change = bool(found) and all(each.no_change for _, each in found)
    result.plugin_plan_results.extend(
        PluginPlanPreviewResult(
            plugin_name=plugin,
            deploy_target=each.deploy_target,
            plan_summary=each.summary.encode(),
            plan_details=each.details,
            diff_language=each.diff_language,
        )
        for plugin, each in found
    )
    if len(found) == 1:
        [(_, only)] = found
        result.plan_summary = only.summary.encode()
        result.plan_details = only.details or (NO_CHANGES.encode() if only.no_change else b"")
        return
    result.plan_summary = "\n".join(
        f"{_where(p, each)}: {each.summary}" for p, each in found
    ).encode()
    result.plan_details = b"\n".join(
        f"{_where(p, each)}:\n".encode() + each.details for p, each in found if each.details
    )


def _where(plugin: str, result: PlanPreviewResult) -> str:
    return f"{plugin}({result.deploy_target})"


def hide(result: ApplicationPlanPreviewResult, masking: Masking) -> None:
    """Takes secrets out of everything that people read."""

    def hidden(content: bytes) -> bytes:
        return masking.hide(content.decode("utf-8", "replace")).encode()

    result.error = masking.hide(result.error)
    result.plan_summary = hidden(result.plan_summary)
    result.plan_details = hidden(result.plan_details)
    for each in result.plugin_plan_results:
        each.plan_summary = hidden(each.plan_summary)
        each.plan_details = hidden(each.plan_details)


def fit(result: PlanPreviewCommandResult, *, most: int = _MOST_DETAILS) -> None:
    """Cuts the longest details until the whole can be sent; the short ones stay as they are."""
    shown = [each for application in result.results for each in _with_details(application)]
    sizes = sorted(len(each.plan_details) for each in shown)
    if sum(sizes) <= most:
        return
    limit = _limit(sizes, most)
    for each in shown:
        each.plan_details = _cut(each.plan_details, limit)


def _with_details(
    application: ApplicationPlanPreviewResult,
) -> list[ApplicationPlanPreviewResult | PluginPlanPreviewResult]:
    return [application, *application.plugin_plan_results]


def _limit(sizes: Sequence[int], most: int) -> int:
    """The size to which all may grow alike, given sizes in ascending order."""
    rest = most
    for index, size in enumerate(sizes):
        share = rest // (len(sizes) - index)
        if size > share:
            return share
        rest -= size
    return most


def _cut(details: bytes, limit: int) -> bytes:
    if len(details) <= limit:
        return details
    kept = details[:limit]
    kept = kept[: kept.rfind(b"\n") + 1] or kept.decode("utf-8", "ignore").encode()
    return kept + f"... ({len(details) - len(kept)} more bytes are not shown)\n".encode()
