# SPDX-License-Identifier: Apache-2.0
"""The background jobs of a control plane; each runs on one replica at a time, under a lease."""

from datetime import timedelta

from pipecd.config.controlplane import InsightCollectorSpec
from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs.chains import ChainController
from pipecd.controlplane.jobs.insight_days import DayTotalsWriter
from pipecd.controlplane.jobs.insights import (
    CHUNK_MILESTONE,
    MONTH_MILESTONE,
    ChunkWriter,
    MonthWriter,
    collect_applications,
    collect_deployments,
)
from pipecd.controlplane.jobs.maintenance import (
    delete_expired_keys,
    delete_expired_sign_ins,
    delete_old_outputs,
    delete_stale_stats,
    store_key_uses,
    time_out_commands,
)
from pipecd.controlplane.jobs.runner import (
    ContinuousJob,
    Job,
    JobMetrics,
    PeriodicJob,
    run_jobs,
)
from pipecd.controlplane.jobs.schedule import Every, parse_schedule

_MINUTE = Every(timedelta(minutes=1))
_TEN_MINUTES = Every(timedelta(minutes=10))
_SIX_HOURS = Every(timedelta(hours=6))
_DAY = Every(timedelta(days=1))


def background_jobs(stores: Stores, bus: Bus, insights: InsightCollectorSpec) -> list[Job]:
    """The jobs that the replicas of a control plane share."""
    jobs: list[Job] = [
        ContinuousJob("chains", ChainController(stores, bus).run),
        PeriodicJob("orphan-commands", _SIX_HOURS, lambda: time_out_commands(stores.commands, bus)),
        PeriodicJob("stale-stats", _DAY, lambda: delete_stale_stats(stores.cache)),
        PeriodicJob(
            "preview-outputs", _DAY, lambda: delete_old_outputs(stores.files, stores.commands)
        ),
        PeriodicJob(
            "expired-sign-ins",
            _DAY,
            lambda: delete_expired_sign_ins(
                stores.sessions, stores.session_endings, stores.used_codes
            ),
        ),
        PeriodicJob("label-index", _DAY, stores.deployments.index_other_releases),
        PeriodicJob("deployment-history", _MINUTE, stores.deployments.pack_history),
        PeriodicJob("expired-keys", _DAY, lambda: delete_expired_keys(stores.verified_keys)),
        PeriodicJob(
            "key-uses", _TEN_MINUTES, lambda: store_key_uses(stores.cache, stores.api_keys)
        ),
    ]
    if insights.application.enabled:
        schedule = parse_schedule(insights.application.schedule)
        jobs.append(
            PeriodicJob("insight-applications", schedule, lambda: collect_applications(stores))
        )
    if insights.deployment.enabled:
        schedule = parse_schedule(insights.deployment.schedule)
        chunks = ChunkWriter(stores.files, chunk_size=insights.deployment.chunk_max_count)
        months, totals = MonthWriter(stores.files), DayTotalsWriter(stores.files)

        async def collect() -> None:
            await totals.discard_outdated()
            await collect_deployments(stores, CHUNK_MILESTONE, chunks)
            await collect_deployments(stores, MONTH_MILESTONE, months)
            await totals.update()

        jobs.append(PeriodicJob("insight-deployments", schedule, collect))
    return jobs


__all__ = ["Job", "JobMetrics", "background_jobs", "run_jobs"]
