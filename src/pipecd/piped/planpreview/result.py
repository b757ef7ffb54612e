# SPDX-License-Identifier: Apache-2.0
"""Results of a plan preview as the control plane and pipectl read them; does no IO."""

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

# Servers accept messages of 4 MiB; in JSON, three bytes of details become four.
_MAX_DETAILS = 2 * 1024 * 1024


@dataclass(frozen=True)
class PluginPreview:
    """The plan preview of one plugin, one result per deploy target."""

    plugin: str
    results: Sequence[PlanPreviewResult]


def empty_result(
    application: Application, request: Command.BuildPlanPreview, *, now: int
) -> ApplicationPlanPreviewResult:
    """Returns the result of an application before it is planned."""
    return ApplicationPlanPreviewResult(
        application_id=application.id,
        application_name=application.name,
        application_kind=application.kind,
        application_directory=application.git_path.path,
        labels=application.labels,
        piped_id=application.piped_id,
        project_id=application.project_id,
        head_branch=request.head_branch,
        head_commit=request.head_commit,
        plugin_names=[UNKNOWN_PLUGIN],
        created_at=now,
    )


def add_plugin_results(
    result: ApplicationPlanPreviewResult,
    strategy: SyncStrategy,
    previews: Sequence[PluginPreview],
) -> None:
    """Adds the previews of the plugins, as a list and as the single text of older clients."""
    results = [(preview.plugin, each) for preview in previews for each in preview.results]
    result.sync_strategy = common_pb2.SyncStrategy.ValueType(strategy)
    result.no_change = bool(results) and all(each.no_change for _, each in results)
    result.plugin_plan_results.extend(
        PluginPlanPreviewResult(
            plugin_name=plugin,
            deploy_target=each.deploy_target,
            plan_summary=each.summary.encode(),
            plan_details=each.details,
            diff_language=each.diff_language,
        )
        for plugin, each in results
    )
    if len(results) == 1:
        [(_, only)] = results
        result.plan_summary = only.summary.encode()
        result.plan_details = only.details or (NO_CHANGES.encode() if only.no_change else b"")
        return
    result.plan_summary = "\n".join(
        f"{_target(plugin, each)}: {each.summary}" for plugin, each in results
    ).encode()
    result.plan_details = b"\n".join(
        f"{_target(plugin, each)}:\n".encode() + each.details
        for plugin, each in results
        if each.details
    )


def _target(plugin: str, result: PlanPreviewResult) -> str:
    return f"{plugin}({result.deploy_target})"


def mask(result: ApplicationPlanPreviewResult, masking: Masking) -> None:
    """Masks secrets in everything that users read."""

    def masked(content: bytes) -> bytes:
        return masking.hide(content.decode("utf-8", "replace")).encode()

    result.error = masking.hide(result.error)
    result.plan_summary = masked(result.plan_summary)
    result.plan_details = masked(result.plan_details)
    for each in result.plugin_plan_results:
        each.plan_summary = masked(each.plan_summary)
        each.plan_details = masked(each.plan_details)


def truncate(result: PlanPreviewCommandResult, *, limit: int = _MAX_DETAILS) -> None:
    """Truncates the longest details until all fit into one message; short ones stay complete."""
    detailed: list[ApplicationPlanPreviewResult | PluginPlanPreviewResult] = []
    for application in result.results:
        detailed += [application, *application.plugin_plan_results]
    sizes = sorted(len(each.plan_details) for each in detailed)
    if sum(sizes) <= limit:
        return
    share = _equal_share(sizes, limit)
    for each in detailed:
        details = each.plan_details
        if len(details) > share:
            start = details[:share]
            # Up to the last complete line, or else the last complete character.
            start = start[: start.rfind(b"\n") + 1] or start.decode("utf-8", "ignore").encode()
            rest = len(details) - len(start)
            each.plan_details = start + f"... ({rest} more bytes are not shown)\n".encode()


def _equal_share(sizes: Sequence[int], total: int) -> int:
    """Returns the maximum size of each so that all fit; `sizes` are in ascending order."""
    rest = total
    for index, size in enumerate(sizes):
        share = rest // (len(sizes) - index)
        if size > share:
            return share
        rest -= size
    return total
