# SPDX-License-Identifier: Apache-2.0
"""Figures about the jobs, for whoever watches a control plane."""

from prometheus_client import CollectorRegistry, Counter, Gauge


class JobMetrics:
    """How often each job ran, and when it last did what it should."""

    def __init__(self, registry: CollectorRegistry, component: str) -> None:
        self._component = component
        labels = ("pipecd_component", "job")
        self._runs = Counter(
            "pipecd_job_runs",
            "Runs of background jobs by result.",
            (*labels, "result"),
            registry=registry,
        )
        self._last = Gauge(
            "pipecd_job_last_success_timestamp_seconds",
            "When a background job last succeeded.",
            labels,
            registry=registry,
        )

    def succeeded(self, job: str) -> None:
        self._runs.labels(self._component, job, "success").inc()
        self._last.labels(self._component, job).set_to_current_time()

    def failed(self, job: str) -> None:
        self._runs.labels(self._component, job, "failure").inc()
