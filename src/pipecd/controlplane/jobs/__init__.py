# SPDX-License-Identifier: Apache-2.0
"""Background upkeep, one file per job, each under a lease."""

from datetime import timedelta

from pipecd.config.controlplane import InsightCollectorSpec
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.chains import ChainController
from pipecd.controlplane.jobs.insights.applications import collect_applications
from pipecd.controlplane.jobs.insights.chunks import ChunkWriter
from pipecd.controlplane.jobs.insights.milestone import OUR_MILESTONE, UPSTREAM_MILESTONE, hand_on
from pipecd.controlplane.jobs.insights.months import MonthWriter
from pipecd.controlplane.jobs.key_uses import keep_key_uses
from pipecd.controlplane.jobs.metrics import JobMetrics
from pipecd.controlplane.jobs.orphan_commands import time_out_orphans
from pipecd.controlplane.jobs.preview_outputs import remove_old_outputs
from pipecd.controlplane.jobs.schedule import Every, parse_schedule
from pipecd.controlplane.jobs.stale_stats import forget_stale_stats
from pipecd.controlplane.jobs.upkeep import REAL_TIME, Job, Pace, Upkeep, periodic

_TEN_MINUTES = Every(timedelta(minutes=10))
_SIX_HOURS = Every(timedelta(hours=6))
_DAY = Every(timedelta(days=1))


def upkeep(
    stores: Stores,
    bus: Bus,
    holder: str,
    insights: InsightCollectorSpec,
    pace: Pace = REAL_TIME,
) -> Upkeep:
    """Everything that has to be done now and then, for one replica."""
    now = pace.now
    jobs = [
        periodic(
            "orphan-commands",
            _SIX_HOURS,
            lambda: time_out_orphans(stores.commands, bus, now=now),
            pace,
        ),
        periodic("stale-stats", _DAY, lambda: forget_stale_stats(stores.cache, now=now), pace),
        periodic(
            "preview-outputs",
            _DAY,
            lambda: remove_old_outputs(stores.files, stores.commands, now=now),
            pace,
        ),
        periodic(
            "key-uses", _TEN_MINUTES, lambda: keep_key_uses(stores.cache, stores.api_keys), pace
        ),
        Job("chains", ChainController(stores, bus, now=now).run),
        *_insight_jobs(stores, insights, pace),
    ]
    return Upkeep(stores.leases, holder, jobs)


def _insight_jobs(stores: Stores, spec: InsightCollectorSpec, pace: Pace) -> list[Job]:
    jobs: list[Job] = []
    if spec.application.enabled:
        schedule = parse_schedule(spec.application.schedule)
        jobs.append(
            periodic(
                "insight-applications",
                schedule,
                lambda: collect_applications(stores, now=pace.now),
                pace,
            )
        )
    if spec.deployment.enabled:
        schedule = parse_schedule(spec.deployment.schedule)
        chunks = ChunkWriter(stores.files, most=spec.deployment.chunk_max_count)
        months = MonthWriter(stores.files)

        async def collect() -> None:
            await hand_on(stores, UPSTREAM_MILESTONE, chunks.take, now=pace.now)
            await hand_on(stores, OUR_MILESTONE, months.take, now=pace.now)

        jobs.append(periodic("insight-deployments", schedule, collect, pace))
    return jobs


__all__ = ["JobMetrics", "Pace", "Upkeep", "upkeep"]
