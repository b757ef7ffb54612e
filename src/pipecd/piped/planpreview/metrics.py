# SPDX-License-Identifier: Apache-2.0
"""What is counted of plan previews, at the names that dashboards know."""

from prometheus_client import CollectorRegistry, Counter, Histogram

_PREFIX = "plan_preview_command"
_SECONDS = (1, 10, 30, 60, 120, 300, 600)


class PreviewMetrics:
    """Counts commands for previews; without a registry nobody reads what was counted."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._received = Counter(
            f"{_PREFIX}_received_total", "Plan preview commands received.", registry=registry
        )
        self._handled = Counter(
            f"{_PREFIX}_handled_total",
            "Plan preview commands handled.",
            ("status",),
            registry=registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_handling_seconds",
            "How long plan preview commands took.",
            ("status",),
            buckets=_SECONDS,
            registry=registry,
        )

    def received(self) -> None:
        self._received.inc()

    def handled(self, *, is_success: bool, seconds: float) -> None:
        status = "success" if is_success else "failure"
        self._handled.labels(status).inc()
        self._seconds.labels(status).observe(seconds)
