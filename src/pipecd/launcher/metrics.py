# SPDX-License-Identifier: Apache-2.0
"""The metrics of the launcher."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class LauncherMetrics:
    """Metrics in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.starts = Counter(
            "launcher_piped_starts",
            "Starts of piped that passed their trial, or failed.",
            ["result"],
            registry=self.registry,
        )
        for result in ("succeeded", "failed"):
            self.starts.labels(result)
        self.up_to_date = Gauge(
            "launcher_piped_up_to_date",
            "1 while the desired version runs with the desired configuration, 0 otherwise.",
            registry=self.registry,
        )
