# SPDX-License-Identifier: Apache-2.0
"""Random faults over whole installations of every layout, and the checks that hold in spite of them.

`make faults SEED=1 MINUTES=30` runs it. Every round follows from the seed; a violation is printed with
the schedule that led to it, which `--schedule` repeats and `--shrink` shortens.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faults import schedule, timeline
from faults.applications import Platform, all_applications
from faults.layouts import Layout
from faults.program import Release
from faults.releases import LAST_RELEASE, built_in_plugins, sources_of
from faults.schedule import Step
from faults.series import ResourceSeries
from faults.shrinking import shrink
from faults.trial import HEALED_SECONDS, Late, Trial, open_trial
from faults.violation import Violation
from faults.whole_installation import DISK_MEGABYTES, Options
from servers.programs import NotInstalled, built_program

ROUND_SECONDS = 30.0
PIPEDS = 3
RESOURCES = ("memory", "threads", "files")
SOAK_MEGABYTES = 512
_PROGRAMS = {Platform.TERRAFORM: "terraform", Platform.KUBERNETES: "kubebed"}


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@dataclass
class Totals:
    """What was counted over all rounds of a layout."""

    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[str] = field(default_factory=Counter[str])
    deployments: int = 0
    recoveries: list[float] = field(default_factory=list[float])
    late: list[Late] = field(default_factory=list[Late])
    growth: dict[str, dict[str, tuple[float, float]]] = field(
        default_factory=dict[str, dict[str, tuple[float, float]]]
    )
    """The resources of each program in the second and in the last quarter of the time."""
    violations: list[str] = field(default_factory=list[str])

    def add(self, trial: Trial) -> None:
        """Adds what an installation counted until its end."""
        self.faults.update(trial.injector.counts)
        self.operations.update(trial.workload.counts)
        self.deployments += len(trial.observer.deployments)
        self.recoveries += trial.recoveries
        self.late += trial.late
        self.violations += map(str, trial.violations)

    def lines(self) -> list[str]:
        recoveries = sorted(self.recoveries) or [0.0]
        return [
            f"{self.rounds} rounds, {self.faults.total()} faults, {self.operations.total()} operations, "
            f"{self.deployments} deployments, {len(self.violations)} violations",
            f"settled after {recoveries[len(recoveries) // 2]:.1f} s (median), {recoveries[-1]:.1f} s (most)",
            *(
                f"late on a busy machine: {each.seconds:.1f} s at load {each.load:.1f}, after "
                f"{HEALED_SECONDS:.0f} s left: {'; '.join(each.left)[:500]}"
                for each in self.late
            ),
            *(
                f"{what} of {name}: {before:.0f} in the second quarter, {after:.0f} in the last"
                for what, programs in self.growth.items()
                for name, (before, after) in programs.items()
            ),
        ]


def require_programs(platforms: Sequence[Platform]) -> None:
    """Raises NotInstalled if this machine lacks the program of a platform."""
    for platform, program in _PROGRAMS.items():
        if platform in platforms:
            built_program(program)


def available_platforms(wanted: Sequence[Platform]) -> list[Platform]:
    """The platforms whose programs this machine has."""
    available: list[Platform] = []
    for platform in wanted:
        try:
            require_programs([platform])
        except NotInstalled as e:
            report(f"without {platform}: {e}")
        else:
            available.append(platform)
    return available


def known_platforms(wanted: Sequence[Platform], plugins: Collection[str]) -> list[Platform]:
    """The platforms that an earlier release has a plugin for; a piped of it refuses the others."""
    plugin_of = {Platform.SCRIPT: "scriptrun"}
    known = [each for each in wanted if plugin_of.get(each, str(each)) in plugins]
    for platform in wanted:
        if platform not in known:
            report(f"without {platform}: the earlier release has no plugin for it")
    return known


async def run_schedule(
    directory: Path,
    options: Options,
    steps: Sequence[Step],
    *,
    first_seconds: float | None = None,
) -> tuple[list[Violation], Trial]:
    """One schedule on a new installation."""
    async with open_trial(directory, options, first_seconds=first_seconds) as trial:
        await trial.run(steps)
    return trial.violations, trial


@dataclass(frozen=True)
class Pace:
    """How many operations and faults there are per second, and which ones there are not."""

    operations: float = 1.2
    faults: float = 1.3
    without: frozenset[str] = frozenset()


RANDOM = Pace()
# The memory of programs is followed for a long time: some faults, and none that begins it anew.
SOAK = Pace(operations=0.8, faults=0.15, without=schedule.RESTARTING)


async def run_layout(
    directory: Path, options: Options, *, seed: int, seconds: float, pace: Pace = RANDOM
) -> Totals:
    """Rounds on one layout for so long, after a violation on a new installation.

    So are those after a round that left applications which cannot be deployed any more. The time of
    installing does not count. The resources of the last installation are written.
    """
    totals, installations = Totals(), 0
    while seconds > 0:
        installations += 1
        place = directory / f"{options.layout}-{installations}"
        async with open_trial(place, options) as trial:
            series = ResourceSeries(trial.used)
            sampling = asyncio.create_task(series.run())
            if trial.violations:
                _report_violations(place, trial, 0, "start")
                seconds = 0.0
            while seconds > 0 and not trial.violations and not trial.has_lost_commits:
                began, first = time.monotonic(), len(trial.history.records)
                totals.rounds += 1
                name = f"{seed}/{options.layout}/{totals.rounds}"
                steps = schedule.generate(
                    name,
                    trial.scene,
                    seconds=ROUND_SECONDS,
                    operations=pace.operations,
                    faults=pace.faults,
                    without=pace.without,
                )
                schedule.save(steps, place / "schedule.json")
                await trial.run(steps)
                seconds -= time.monotonic() - began
                report(
                    f"{name}: {trial.injector.counts.total()} faults so far, "
                    f"{len(trial.observer.deployments)} deployments, settled after "
                    f"{trial.recoveries[-1]:.1f} s, {len(trial.violations)} violations, "
                    f"load {os.getloadavg()[0]:.1f}"
                )
                # After each round, so that a long run that is ended has them too.
                series.save(directory / "resources", str(options.layout))
                if trial.violations:
                    _report_violations(place, trial, first, name)
            sampling.cancel()
            totals.add(trial)
            totals.growth = {what: series.growth(what) for what in RESOURCES}
    return totals


def _report_violations(place: Path, trial: Trial, began: int, name: str) -> None:
    records = trial.history.records[began:]
    truth = [line for line in trial.installed.truth.read() if records and line.at >= records[0].at]  # fmt: skip
    text, page = timeline.write(place, "timeline", timeline.merged(records, truth), f"Faults, round {name}")  # fmt: skip
    for violation in trial.violations:
        report(f"  {str(violation)[:2000]}")
    report(f"  timeline: {text} {page}")
    report(f"  repeat it: make faults ARGS='--layouts {trial.installed.options.layout} --schedule {place}/schedule.json --shrink 20'")  # fmt: skip


async def repeat(directory: Path, options: Options, file: Path, *, runs: int) -> bool:
    """Repeats a schedule and shortens it while it violates a rule; returns whether it did."""
    numbers = iter(range(1, 1000))
    steps = schedule.load(file)

    async def violates(some: Sequence[Step]) -> bool:
        place = directory / f"repeat-{next(numbers)}"
        violations, trial = await run_schedule(place, options, some)
        report(f"{len(some)} steps: {len(violations)} violations")
        if violations:
            schedule.save(some, directory / "shortest.json")
            _report_violations(place, trial, 0, file.name)
        return bool(violations)

    if not await violates(steps):
        report("the schedule violates no rule this time")
        return False
    shortest = await shrink(steps, violates, runs=runs)
    report(f"the shortest schedule found, {directory}/shortest.json:")
    for step in shortest:
        report(f"  {step}")
    return True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--minutes", type=float, default=6, help="for all layouts together")
    parser.add_argument("--layouts", default=",".join(Layout), help="of " + ", ".join(Layout))
    parser.add_argument("--platforms", default=",".join(Platform), help="of " + ", ".join(Platform))
    parser.add_argument("--directory", type=Path, help="for data, logs, schedules and timelines")
    parser.add_argument(
        "--executables", type=Path, help="the bin directory of an installed release"
    )
    parser.add_argument(
        "--releases",
        nargs="?",
        const=LAST_RELEASE,
        metavar="COMMIT",
        help="upgrades and downgrades alternate with this commit, by default the last release",
    )
    parser.add_argument(
        "--soak", action="store_true", help="few faults and no restarts, to follow memory"
    )
    parser.add_argument("--schedule", type=Path, help="repeats a schedule on the first layout")
    parser.add_argument(
        "--shrink", type=int, default=0, metavar="RUNS", help="shortens the schedule"
    )
    return parser.parse_args()


async def campaign(chosen: argparse.Namespace) -> bool:
    """Returns whether a rule was violated."""
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="pipecd-faults-"))
    layouts = [Layout(name) for name in chosen.layouts.split(",")]
    platforms = available_platforms([Platform(name) for name in chosen.platforms.split(",")])
    release = Release(executables=chosen.executables)
    releases: dict[str, Release] = {}
    if chosen.releases:
        earlier = sources_of(chosen.releases, directory / "earlier")
        releases = {"new": release, "earlier": earlier}
        report(f"upgrades and downgrades to and from {chosen.releases}")
        platforms = known_platforms(platforms, built_in_plugins(earlier))
    applications = all_applications(platforms, PIPEDS)
    report(f"seed {chosen.seed}, {len(applications)} applications, directory {directory}")
    options = [
        Options(
            layout,
            applications,
            PIPEDS,
            release=release,
            releases=releases,
            disk_megabytes=SOAK_MEGABYTES if chosen.soak else DISK_MEGABYTES,
        )
        for layout in layouts
    ]
    if chosen.schedule is not None:
        return await repeat(directory, options[0], chosen.schedule, runs=chosen.shrink)
    is_violated, results = False, dict[str, object]()
    for number, of_layout in enumerate(options):
        seconds = chosen.minutes * 60 / len(options)
        pace = SOAK if chosen.soak else RANDOM
        totals = await run_layout(
            directory, of_layout, seed=chosen.seed, seconds=seconds, pace=pace
        )
        is_violated |= bool(totals.violations)
        first, *more = totals.lines()
        report(f"{layouts[number]}: {first}")
        for line in more:
            report(f"  {line}")
        for name, count in sorted((totals.faults + totals.operations).items()):
            report(f"{count:6} {name.replace('_', ' ')}")
        results[layouts[number]] = {
            "rounds": totals.rounds,
            "faults": totals.faults,
            "operations": totals.operations,
            "deployments": totals.deployments,
            "recoveries": [round(seconds, 1) for seconds in totals.recoveries],
            "growth": totals.growth,
            "late": [asdict(late) for late in totals.late],
            "violations": totals.violations,
        }
        (directory / "result.json").write_text(json.dumps(results, indent=1))
    return is_violated


def main() -> None:
    sys.exit(asyncio.run(campaign(arguments())))


if __name__ == "__main__":
    main()
