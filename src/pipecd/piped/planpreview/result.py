# SPDX-License-Identifier: Apache-2.0
"""Results of a plan preview as the control plane and pipectl read them; does no IO."""

from pipecd.model.deployment import SyncStrategy
from pipecd.piped.planning.plugin_previews import PluginPreviews, mask_details, truncate_details
from pipecd.proto.model import common_pb2
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
    PluginPlanPreviewResult,
)
from pipecd.secrets.masking import Masking

UNKNOWN_PLUGIN = "<unknown>"
NO_CHANGES = "No changes were detected"

# Servers accept messages of 4 MiB; in JSON, three bytes of details become four.
_MAX_DETAILS = 2 * 1024 * 1024


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
    result: ApplicationPlanPreviewResult, strategy: SyncStrategy, previews: PluginPreviews
) -> None:
    """Adds the previews of the plugins, as a list and as the single text of older clients."""
    results = previews.to_proto()
    result.sync_strategy = common_pb2.SyncStrategy.ValueType(strategy)
    result.no_change = previews.no_change
    result.plugin_plan_results.extend(results)
    if len(results) == 1:
        [only] = results
        result.plan_summary = only.plan_summary
        no_details = NO_CHANGES.encode() if result.no_change else b""
        result.plan_details = only.plan_details or no_details
        return
    result.plan_summary = b"\n".join(
        f"{_target(each)}: ".encode() + each.plan_summary for each in results
    )
    result.plan_details = b"\n".join(
        f"{_target(each)}:\n".encode() + each.plan_details for each in results if each.plan_details
    )


def _target(result: PluginPlanPreviewResult) -> str:
    return f"{result.plugin_name}({result.deploy_target})"


def mask(result: ApplicationPlanPreviewResult, masking: Masking) -> None:
    """Masks secrets in everything that users read."""
    result.error = masking.hide(result.error)
    mask_details([result, *result.plugin_plan_results], masking)


def truncate(result: PlanPreviewCommandResult, *, limit: int = _MAX_DETAILS) -> None:
    """Truncates the longest details until all fit into one message; short ones stay complete."""
    truncate_details(
        [
            each
            for application in result.results
            for each in (application, *application.plugin_plan_results)
        ],
        limit,
    )
