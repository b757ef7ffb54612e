# SPDX-License-Identifier: Apache-2.0
"""The figures of an installation: those of its jobs and what its pipeds tell of themselves."""

from collections import Counter

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import book_path, read_book
from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.usecases.piped_connections import PipedConnections
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import NotFound, PipecdError

log = structlog.get_logger()


class InstallationMetrics:
    """Gathers the figures anew each time they are asked for."""

    def __init__(self, stores: Stores, registry: CollectorRegistry, *, now: Now = utc_now) -> None:
        self._stores, self._registry = stores, registry
        self._connections = PipedConnections(stores.cache, now)

    async def page(self) -> bytes:
        """Our own figures, then those of each piped that is there, as it sent them.

        While a store is away its part is left out, as the rest is needed most of all then.
        """
        parts = [generate_latest(self._registry)]
        try:
            parts[0] += await self._applications()
            parts += await self._connections.metrics()
        except PipecdError as e:
            log.warning("figures of the installation left out", error=str(e))
        return b"\n".join(parts)

    async def _applications(self) -> bytes:
        registry = CollectorRegistry()
        total = Gauge(
            "insight_application_total",
            "Applications by project and kind.",
            ("pipecd_component", "project", "app_kind"),
            registry=registry,
        )
        for project in await self._stores.projects.list():
            for kind, count in (await self._kinds(project.id)).items():
                total.labels("ops", project.id, kind).set(count)
        return generate_latest(registry)

    async def _kinds(self, project: str) -> Counter[str]:
        path = book_path(project)
        try:
            book = decoded(path, await self._stores.files.get(path), read_book)
        except NotFound:
            return Counter()
        except PipecdError as e:
            log.warning("applications not counted", project=project, error=str(e))
            return Counter()
        return Counter(one.kind for one in book.applications)
