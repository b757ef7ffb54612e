# SPDX-License-Identifier: Apache-2.0
"""Reports the plugins and deploy targets that this piped runs without."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipecd.model.errors import PipecdError, Unsupported
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.pluginhost.registry import PluginRegistry, StartFailure
from pipecd.proto.service.pluginfailures_pb2 import PluginFailure, ReportPluginFailuresRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The safety net for a missed change, and the time until a report that failed is sent again.
_INTERVAL = 60.0


@dataclass(kw_only=True)
class PluginFailureReporter:
    """Sends the failures to the control plane whenever they change."""

    api: ControlPlaneClient
    plugins: PluginRegistry
    hide: Callable[[str], str]
    """Masks secrets."""

    async def run(self) -> None:
        # When piped registers, the control plane forgets what was reported before.
        reported: tuple[StartFailure, ...] = ()
        changes = self.plugins.changes.watch()
        while True:
            if (failures := self.plugins.failures) != reported:
                try:
                    await self.api.report_plugin_failures(self._request(failures))
                    reported = failures
                except Unsupported:
                    # A control plane of upstream shows them nowhere; applications have the reason.
                    return
                except PipecdError as e:
                    log.warning("plugins that do not run not reported", error=str(e))
            await changes.wait(_INTERVAL)

    def _request(self, failures: Iterable[StartFailure]) -> ReportPluginFailuresRequest:
        return ReportPluginFailuresRequest(
            failures=[
                PluginFailure(
                    plugin=each.plugin,
                    target=each.target,
                    reason=self.hide(each.reason),
                    since=each.since,
                )
                for each in failures
            ]
        )


class PluginFailureMetrics(Collector):
    """One sample for each plugin and deploy target that does not run."""

    def __init__(self, plugins: PluginRegistry) -> None:
        self._plugins = plugins

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "piped_plugin_failures",
            "Plugins that do not run, and deploy targets that cannot be used.",
            labels=("plugin", "target"),
        )
        for failure in self._plugins.failures:
            family.add_metric((failure.plugin, failure.target), 1)
        return (family,)
