# SPDX-License-Identifier: Apache-2.0
"""Background upkeep, one file per job, each under a lease."""

from pipecd.controlplane.bus.signal import Bus
from pipecd.controlplane.jobs.orphan_commands import time_out_orphans
from pipecd.controlplane.jobs.preview_outputs import remove_old_outputs
from pipecd.controlplane.jobs.stale_stats import forget_stale_stats
from pipecd.controlplane.jobs.upkeep import Job, Upkeep
from pipecd.controlplane.stores import Stores

HOUR = 3600.0


def upkeep(stores: Stores, bus: Bus, holder: str) -> Upkeep:
    """Everything that has to be done now and then, for one replica."""
    return Upkeep(
        stores.leases,
        holder,
        (
            Job("orphan-commands", 6 * HOUR, lambda: time_out_orphans(stores.commands, bus)),
            Job("stale-stats", 24 * HOUR, lambda: forget_stale_stats(stores.cache)),
            Job(
                "preview-outputs",
                24 * HOUR,
                lambda: remove_old_outputs(stores.files, stores.commands),
            ),
        ),
    )


__all__ = ["Upkeep", "upkeep"]
