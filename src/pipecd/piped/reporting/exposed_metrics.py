# SPDX-License-Identifier: Apache-2.0
"""The metrics of a piped as its admin port and its reports show them."""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from pipecd.observe.metrics import ConstantLabels
from pipecd.observe.version import build_version


def expose_metrics(
    metrics: CollectorRegistry, *, project: str, piped: str, launcher_version: str
) -> CollectorRegistry:
    """Adds the metrics of the process, and returns all of them with the labels of this piped."""
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=metrics)
    exposed = CollectorRegistry()
    labels = {
        "pipecd_component": "piped",
        "project": project,
        "piped": piped,
        "piped_version": build_version(),
        "launcher_version": launcher_version,
    }
    exposed.register(ConstantLabels(metrics, labels))
    return exposed
