# SPDX-License-Identifier: Apache-2.0
"""Plans a deployment: its version, and pipeline or quick sync by what changes."""

from collections.abc import Mapping

from pipecd.plugins.process.release_files import ReleaseFile
from pipecd.plugins.process.releases import SourceTree
from pipecd.plugins.process.wanted import WantedApplication, name_some
from pipecd.sdk import Strategy, SyncStrategy

_MAX_NAMED = 3


def changed_names(running: Mapping[str, ReleaseFile], target: SourceTree) -> list[str]:
    """Returns the files that are added, changed or removed."""
    wanted = target.contents
    return [
        name
        for name in dict.fromkeys((*running, *wanted))
        if name not in running
        or name not in wanted
        or not running[name].has_content_of(wanted[name])
    ]


def decide_strategy(
    running: WantedApplication, target: WantedApplication, changed: list[str]
) -> Strategy:
    """Returns the pipeline if another program would run, else quick sync."""
    differences = target.differences(running.variant, running.listener)
    keys = [difference.key for difference in differences]
    if not target.changes_program(running):
        what = f"only {', '.join(keys)} changed" if keys else "nothing that runs has changed"
        return Strategy(SyncStrategy.QUICK_SYNC, f"Quick sync because {what}")
    if changed:
        what = f"of changes in {name_some(changed, _MAX_NAMED)}"
    else:
        what = f"{', '.join(keys)} changed"
    return Strategy(SyncStrategy.PIPELINE, f"Sync progressively because {what}")
