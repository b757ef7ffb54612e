# SPDX-License-Identifier: Apache-2.0
"""The metrics of an installation: its applications and its pipeds."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import cast

import structlog
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import applications_path, decode_applications
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.usecases.piped_connections import PipedConnections
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import NotFound, PipecdError

log = structlog.get_logger()


class _Families:
    """Metrics by name, as a registry collects them."""

    def __init__(self) -> None:
        self._by_name: dict[str, Metric] = {}

    def add(self, family: Metric, samples: list[Sample]) -> None:
        """Adds samples to the family of that name; the type is that of whoever was first."""
        known = self._by_name.setdefault(
            family.name, Metric(family.name, family.documentation, family.type)
        )
        if known.type == family.type:
            known.samples += samples

    def collect(self) -> Iterator[Metric]:
        yield from self._by_name.values()


def relabelled(reports: Mapping[str, bytes], projects: Mapping[str, str]) -> bytes:
    """The metrics of pipeds by their ids, written anew.

    A piped reports what it likes. The labels that say where a sample comes from are set here, so
    that it cannot speak for another piped, another project or the control plane.
    """
    families = _Families()
    for piped, report in reports.items():
        origin = {
            "pipecd_component": "piped",
            "piped": piped,
            "project": projects.get(piped, ""),
        }
        try:
            for family in text_string_to_metric_families(report.decode()):
                samples = [
                    Sample(sample.name, {**sample.labels, **origin}, sample.value)
                    for sample in family.samples
                ]
                families.add(family, samples)
        except (ValueError, KeyError, IndexError) as e:
            log.warning("metrics of a piped are not readable", piped=piped, error=str(e))
    return generate_latest(cast("CollectorRegistry", families))


class InstallationMetrics:
    """Collects the metrics of applications and pipeds at each scrape."""

    def __init__(self, stores: Stores, *, now: Now = utc_now) -> None:
        self._stores = stores
        self._connections = PipedConnections(stores.cache, now)

    async def page(self) -> bytes:
        """The metrics of the applications, then those that each online piped reported.

        While a store is unavailable its metrics are missing, and the others are still there.
        """
        parts: list[bytes] = []
        try:
            parts.append(await self._application_metrics())
            parts.append(await self._piped_metrics())
        except PipecdError as e:
            log.warning("metrics of applications and pipeds are incomplete", error=str(e))
        return b"".join(parts)

    async def _piped_metrics(self) -> bytes:
        reports = await self._connections.metrics()
        if not reports:
            return b""
        projects = {
            piped.id: project.id
            for project in await self._stores.projects.list()
            for piped in await self._stores.pipeds.list(project.id)
        }
        return await asyncio.to_thread(relabelled, reports, projects)

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
