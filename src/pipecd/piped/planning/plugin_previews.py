# SPDX-License-Identifier: Apache-2.0
"""What the plugins of an application say that a commit changes.

Plan previews of branches and the changes of deployments use the same calls, masks and limits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from pipecd.model.count import counted
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.piped.planning.planner import PlanInput
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PluginPlanPreviewResult,
)
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, PlanPreviewResult
from pipecd.secrets.masking import Masking

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True)
class PluginPreview:
    """The plan preview of one plugin, one result per deploy target."""

    plugin: str
    results: Sequence[PlanPreviewResult]


@dataclass(frozen=True)
class PluginPreviews:
    """The plan previews of all plugins that have one, and the errors of those that failed."""

    previews: Sequence[PluginPreview]
    errors: Sequence[str] = ()

    @property
    def no_change(self) -> bool:
        """Whether there are results, and all of them say that nothing changes."""
        results = [each for preview in self.previews for each in preview.results]
        return bool(results) and all(each.no_change for each in results)

    def to_proto(self) -> list[PluginPlanPreviewResult]:
        """Returns the results as the control plane stores them."""
        return [
            PluginPlanPreviewResult(
                plugin_name=preview.plugin,
                deploy_target=each.deploy_target,
                plan_summary=each.summary.encode(),
                plan_details=each.details,
                diff_language=each.diff_language,
            )
            for preview in self.previews
            for each in preview.results
        ]


async def get_previews(input: PlanInput) -> PluginPreviews:
    """Calls every plugin of an application; the error of one is returned with the other results."""
    deployment = input.deployment
    targets = dict(deployment.deploy_targets_by_plugin)
    running = None if input.running is None else input.running.to_proto()
    previews: list[PluginPreview] = []
    errors: list[str] = []
    for plugin in input.plugins:
        request = GetPlanPreviewRequest(
            application_id=deployment.application_id,
            application_name=deployment.application_name,
            piped_id=deployment.piped_id,
            deploy_targets=targets[plugin.name].deploy_targets if plugin.name in targets else (),
            target_deployment_source=input.target.to_proto(),
            running_deployment_source=running,
        )
        try:
            response = await plugin.GetPlanPreview(request)
            previews.append(PluginPreview(plugin.name, tuple(response.results)))
        except Unsupported:
            log.debug("plugin has no plan preview", plugin=plugin.name)
        except PipecdError as e:
            errors.append(f"[{plugin.name}] {e}")
    return PluginPreviews(previews, errors)


Detailed = ApplicationPlanPreviewResult | PluginPlanPreviewResult


def mask_details(results: Sequence[Detailed], masking: Masking) -> None:
    """Masks secrets in the summaries and details."""

    def masked(content: bytes) -> bytes:
        return masking.hide(content.decode("utf-8", "replace")).encode()

    for each in results:
        each.plan_summary = masked(each.plan_summary)
        each.plan_details = masked(each.plan_details)


def truncate_details(results: Sequence[Detailed], limit: int) -> None:
    """Truncates the longest details until all have `limit` bytes; short ones stay complete."""
    sizes = sorted(len(each.plan_details) for each in results)
    if sum(sizes) <= limit:
        return
    share = _equal_share(sizes, limit)
    for each in results:
        details = each.plan_details
        if len(details) > share:
            start = details[:share]
            # Up to the last complete line, or else the last complete character.
            start = start[: start.rfind(b"\n") + 1] or start.decode("utf-8", "ignore").encode()
            rest = counted(len(details) - len(start), "more byte is", "more bytes are")
            each.plan_details = start + f"... ({rest} not shown)\n".encode()


def _equal_share(sizes: Sequence[int], total: int) -> int:
    """Returns the maximum size of each so that all fit; `sizes` are in ascending order."""
    rest = total
    for index, size in enumerate(sizes):
        share = rest // (len(sizes) - index)
        if size > share:
            return share
        rest -= size
    return total
