# SPDX-License-Identifier: Apache-2.0
"""The metrics of an installation: its jobs, its applications and its pipeds."""

from collections import Counter

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import applications_path, decode_applications
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.usecases.piped_connections import PipedConnections
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import NotFound, PipecdError

log = structlog.get_logger()


class InstallationMetrics:
    """Collects the metrics at each scrape."""

    def __init__(self, stores: Stores, registry: CollectorRegistry, *, now: Now = utc_now) -> None:
        self._stores, self._registry = stores, registry
        self._connections = PipedConnections(stores.cache, now)

    async def page(self) -> bytes:
        """The metrics of this process and the applications, then those each online piped reported.

        While a store is unavailable its metrics are missing, and the others are still there.
        """
        parts = [generate_latest(self._registry)]
        try:
            parts[0] += await self._application_metrics()
            parts += await self._connections.metrics()
        except PipecdError as e:
            log.warning("metrics of applications and pipeds are incomplete", error=str(e))
        return b"\n".join(parts)

    async def _application_metrics(self) -> bytes:
        registry = CollectorRegistry()
        total = Gauge(
            "insight_application_total",
            "Applications by project and kind.",
            ("pipecd_component", "project", "app_kind"),
            registry=registry,
        )
        for project in await self._stores.projects.list():
            path = applications_path(project.id)
            try:
                book = decode_file(path, await self._stores.files.get(path), decode_applications)
            except NotFound:
                continue
            except PipecdError as e:
                log.warning("cannot count applications", project=project.id, error=str(e))
                continue
            for kind, count in Counter(one.kind for one in book.applications).items():
                total.labels("ops", project.id, kind).set(count)
        return generate_latest(registry)
