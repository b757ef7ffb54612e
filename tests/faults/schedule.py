# SPDX-License-Identifier: Apache-2.0
"""What is done to an installation and when: a list of steps that follows from a seed alone.

A step carries all of its choices, so that removing others from a schedule does not change it.
"""

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faults.applications import APPROVERS, CONFIGS, FaultyApplication, Platform, Shape
from faults.layouts import Layout

REPORTS = (
    "CreateDeploymentInOrder",
    "ReportDeploymentPlanned",
    "ReportDeploymentStatusChanged",
    "ReportStageStatusChanged",
    "ReportDeploymentCompleted",
    "ReportApplicationMostRecentDeployment",
    "ReportApplicationDeployingStatus",
    "ReportApplicationSyncState",
    "ReportStageLogs",
    "ReportStageLogsFromLastCheckpoint",
    "SaveDeploymentSharedMetadata",
    "SaveStageMetadata",
    "ReportCommandHandled",
    "ReportEventStatuses",
)
# A late one is refused, so that these are only lost.
LEASES = ("AcquirePipedLease", "ReleasePipedLease")
# What scripts, programs and Terraform write when they begin and end.
TARGET_LINES = ("begin", "end", "start", "apply")
CLOCK_STEPS = (-7200, -60, 0, 60, 7200)
SERVERS = ("database", "cache", "bucket")
SERVERS_OF = {
    Layout.SQLITE: (),
    Layout.POSTGRESQL: SERVERS,
    Layout.MYSQL: ("database", "cache"),
}


@dataclass(frozen=True)
class Step:
    """One operation of the workload or one fault."""

    at: float
    """Seconds after the begin of the round."""
    name: str
    is_fault: bool
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __str__(self) -> str:
        options = " ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.at:5.1f}s {'fault ' if self.is_fault else ''}{self.name} {options}".rstrip()


@dataclass(frozen=True)
class Scene:
    """What the steps of a schedule can choose from."""

    layout: Layout
    applications: Sequence[FaultyApplication]
    pipeds: int
    replicas: int
    has_small_disks: bool = True

    def names(self, shape: Shape | None = None) -> list[str]:
        return [each.name for each in self.applications if shape in (None, each.shape)]


Choose = Callable[[random.Random, Scene], dict[str, Any] | None]
"""Chooses the options of a step; None if the scene has nothing for it."""


def _application(shape: Shape | None = None, **more: Any) -> Choose:
    def choose(chance: random.Random, scene: Scene) -> dict[str, Any] | None:
        names = scene.names(shape)
        return {"application": chance.choice(names), **more} if names else None

    return choose


def _push(chance: random.Random, scene: Scene) -> dict[str, Any]:
    return {
        "application": chance.choice(scene.names()),
        "seconds": chance.choice((0.05, 0.2, 1.0, 2.0)),
        "lines": chance.choice((3, 20, 200)),
        "fails": chance.random() < 0.15,
        "is_old": chance.random() < 0.1,
    }


def _burst(chance: random.Random, scene: Scene) -> dict[str, Any]:
    names = scene.names()
    return {"applications": chance.sample(names, min(len(names), 6)), "count": chance.randint(2, 5)}


def _sync(chance: random.Random, scene: Scene) -> dict[str, Any]:
    replica = chance.randrange(scene.replicas)
    return {"application": chance.choice(scene.names()), "replica": replica}


def _cancel(chance: random.Random, scene: Scene) -> dict[str, Any]:
    kind = chance.choice(("", "force_rollback", "force_no_rollback"))
    return {"application": chance.choice(scene.names()), "kind": kind}


def _approve(chance: random.Random, scene: Scene) -> dict[str, Any] | None:
    if not (names := scene.names(Shape.APPROVAL)):
        return None
    person, count = chance.choice(APPROVERS), chance.choice((1, 2))
    return {"application": chance.choice(names), "person": person, "count": count}


def _reject(chance: random.Random, scene: Scene) -> dict[str, Any] | None:
    if not (names := scene.names(Shape.APPROVAL)):
        return None
    return {"application": chance.choice(names), "person": chance.choice(APPROVERS)}


def _edit(chance: random.Random, scene: Scene) -> dict[str, Any]:
    return {"application": chance.choice(scene.names()), "config": chance.choice(CONFIGS)}


def _piped(**ranges: tuple[float, float]) -> Choose:
    def choose(chance: random.Random, scene: Scene) -> dict[str, Any]:
        chosen = {name: round(chance.uniform(*limits), 2) for name, limits in ranges.items()}
        return {"piped": chance.randrange(scene.pipeds), **chosen}

    return choose


def _replica(**ranges: tuple[float, float]) -> Choose:
    def choose(chance: random.Random, scene: Scene) -> dict[str, Any]:
        chosen = {name: round(chance.uniform(*limits), 2) for name, limits in ranges.items()}
        return {"replica": chance.randrange(scene.replicas), **chosen}

    return choose


def _seconds(low: float, high: float, **more: Any) -> Choose:
    return lambda chance, _: {"seconds": round(chance.uniform(low, high), 2), **more}


def _nothing(chance: random.Random, scene: Scene) -> dict[str, Any]:
    return {}


def _kill_at_call(chance: random.Random, scene: Scene) -> dict[str, Any]:
    return {"rpc": chance.choice(REPORTS), "when": chance.choice(("before", "after"))}


def _kill_replica_at_call(chance: random.Random, scene: Scene) -> dict[str, Any]:
    rpc, when = chance.choice(REPORTS), chance.choice(("during", "after"))
    # A call takes some milliseconds.
    delay = round(chance.uniform(0, 0.02), 3)
    return {"replica": chance.randrange(scene.replicas), "rpc": rpc, "when": when, "delay": delay}


def _kill_at_line(chance: random.Random, scene: Scene) -> dict[str, Any]:
    return {"piped": chance.randrange(scene.pipeds), "what": chance.choice(TARGET_LINES)}


def _rpcs(count: int, *, among: Sequence[str] = REPORTS, **ranges: tuple[float, float]) -> Choose:
    def choose(chance: random.Random, scene: Scene) -> dict[str, Any]:
        chosen = {name: round(chance.uniform(*limits), 2) for name, limits in ranges.items()}
        return {"rpcs": chance.sample(list(among), count), **chosen}

    return choose


def _step_clock(what: str) -> Choose:
    def choose(chance: random.Random, scene: Scene) -> dict[str, Any]:
        count = scene.pipeds if what == "piped" else scene.replicas
        return {what: chance.randrange(count), "clock": chance.choice(CLOCK_STEPS)}

    return choose


def _damage(chance: random.Random, scene: Scene) -> dict[str, Any]:
    content = chance.choice(("", "\0garbage", "[]", '{"stages": 7}'))
    return {"piped": chance.randrange(scene.pipeds), "which": chance.random(), "content": content}


def _on_small_disk(choose: Choose) -> Choose:
    return lambda chance, scene: choose(chance, scene) if scene.has_small_disks else None


def _server(*, among: Sequence[str] = SERVERS, **ranges: tuple[float, float]) -> Choose:
    def choose(chance: random.Random, scene: Scene) -> dict[str, Any] | None:
        names = [name for name in SERVERS_OF[scene.layout] if name in among]
        if not names:
            return None
        chosen = {name: round(chance.uniform(*limits), 2) for name, limits in ranges.items()}
        return {"server": chance.choice(names), **chosen}

    return choose


def _only(choose: Choose, *layouts: Layout) -> Choose:
    return lambda chance, scene: choose(chance, scene) if scene.layout in layouts else None


def _seeded(choose: Choose) -> Choose:
    """Adds what chooses later, when the step is carried out."""

    def choose_with_seed(chance: random.Random, scene: Scene) -> dict[str, Any] | None:
        chosen = choose(chance, scene)
        return None if chosen is None else {**chosen, "seed": chance.getrandbits(32)}

    return choose_with_seed


def _with_platform(platform: Platform, choose: Choose) -> Choose:
    def choose_if_present(chance: random.Random, scene: Scene) -> dict[str, Any] | None:
        is_present = any(each.platform is platform for each in scene.applications)
        return choose(chance, scene) if is_present else None

    return choose_if_present


def _with_pipeds(count: int, choose: Choose) -> Choose:
    return lambda chance, scene: choose(chance, scene) if scene.pipeds >= count else None


WORKLOAD: Mapping[str, tuple[float, Choose]] = {
    "push": (24, _push),
    "burst": (3, _burst),
    "force_push": (2, _nothing),
    "revert": (2, _nothing),
    "break_config": (2, _application()),
    "sync": (8, _sync),
    "cancel": (6, _cancel),
    "approve": (6, _approve),
    "reject": (1, _reject),
    "skip": (2, _application(Shape.ANALYSIS)),
    "register_event": (4, _application(Shape.EVENTS)),
    "preview": (2, _application()),
    "add_application": (1, _piped()),
    "edit_application": (3, _edit),
    "disable_application": (1, _application()),
    "delete_application": (1, _nothing),
    "rotate_key": (1, _piped()),
    "restart_piped": (2, _piped()),
    "upgrade_piped": (1, _nothing),
    "upgrade_control_plane": (1, _nothing),
    "flood": (1, _application()),
}
"""The operations of users and operators with their weights."""

FAULTS: Mapping[str, tuple[float, Choose]] = {
    "kill_piped": (6, _piped(pause=(0, 2))),
    "kill_launched_piped": (2, _with_pipeds(3, _nothing)),
    "kill_piped_at_call": (8, _kill_at_call),
    "kill_piped_at_line": (4, _kill_at_line),
    "pause_piped": (3, _piped(seconds=(1, 6))),
    "kill_replica": (4, _replica(pause=(0, 3))),
    "kill_replica_at_call": (3, _kill_replica_at_call),
    "pause_replica": (3, _replica(seconds=(1, 8))),
    "cut_network": (3, _seconds(0.5, 6)),
    "cut_users": (1, _replica(seconds=(0.5, 4))),
    "half_open_users": (1, _replica(seconds=(0.5, 2))),
    "silence_connections": (2, _nothing),
    "half_open_connections": (2, _nothing),
    "slow_network": (2, _seconds(1, 5, delay=0.15)),
    "lose_responses": (4, _rpcs(2, among=(*REPORTS, *LEASES))),
    "hold_requests": (4, _rpcs(2, seconds=(0.5, 3))),
    "repeat_requests": (3, _seeded(_nothing)),
    "double_requests": (3, _rpcs(4, seconds=(1, 4))),
    "reorder_requests": (3, _seeded(_rpcs(4, seconds=(1, 4)))),
    "step_clock_of_piped": (3, _step_clock("piped")),
    "step_clock_of_replica": (3, _step_clock("replica")),
    "lose_workspace": (1, _piped()),
    "restore_old_workspace": (1, _piped()),
    "damage_workspace": (2, _damage),
    "fill_workspace": (2, _on_small_disk(_piped(seconds=(1, 5)))),
    "fill_data": (2, _on_small_disk(_only(_seconds(1, 5), Layout.SQLITE, Layout.MYSQL))),
    "duplicate_piped": (2, _piped(seconds=(2, 6))),
    "kill_plugin": (3, _with_pipeds(2, _nothing)),
    "hang_plugin": (2, _with_pipeds(2, _seconds(1, 6))),
    "flood_plugin": (1, _with_pipeds(2, _nothing)),
    "kill_supervisor": (1, _with_platform(Platform.PROCESS, _piped())),
    "pause_supervisor": (1, _with_platform(Platform.PROCESS, _piped(seconds=(1, 4)))),
    "kill_terraform": (2, _with_platform(Platform.TERRAFORM, _nothing)),
    "pause_terraform": (1, _with_platform(Platform.TERRAFORM, _seconds(1, 4))),
    "kill_git": (2, _piped()),
    "git_away": (2, _seconds(0.5, 5)),
    "recreate_repository": (1, _nothing),
    "kill_server": (4, _server(seconds=(0, 4))),
    "pause_server": (3, _server(seconds=(1, 6))),
    "starve_server": (2, _server(seconds=(1, 4))),
    "slow_server": (2, _server(seconds=(1, 4))),
    "read_only_server": (3, _server(seconds=(1, 5))),
    "fill_server": (2, _on_small_disk(_server(among=("database", "bucket"), seconds=(1, 5)))),
    "cut_server": (3, _server(seconds=(0.5, 5))),
    "silence_server": (1, _server()),
    "half_open_server": (1, _server()),
    "fail_over": (2, _server()),
    "lock_data": (2, _only(_seconds(1, 6), Layout.SQLITE)),
    "receiver_away": (2, _seconds(1, 6)),
    "api_server_away": (2, _with_platform(Platform.KUBERNETES, _seconds(1, 6))),
    "pause_api_server": (1, _with_platform(Platform.KUBERNETES, _seconds(1, 4))),
}
"""The faults with their weights."""

RESTARTING = frozenset(
    {
        *("rotate_key", "restart_piped", "upgrade_piped", "upgrade_control_plane"),
        *("kill_piped", "kill_launched_piped", "kill_piped_at_call", "kill_piped_at_line"),
        *(
            "kill_replica",
            "kill_replica_at_call",
            "lose_workspace",
            "restore_old_workspace",
            "damage_workspace",
        ),
        # A piped ends when another one with its id takes over.
        "duplicate_piped",
    }
)
"""What starts a replica or a piped again, at once or because it could not go on."""


def generate(
    seed: str,
    scene: Scene,
    *,
    seconds: float,
    operations: float = 1.2,
    faults: float = 0.8,
    without: Collection[str] = (),
) -> list[Step]:
    """The schedule of a round: so many operations and faults per second, each at its own time.

    What is `without` is left out.
    """
    chance = random.Random(seed)
    steps: list[Step] = []
    for table, rate, is_fault in ((WORKLOAD, operations, False), (FAULTS, faults, True)):
        weights = {name: weight for name, (weight, _) in table.items() if name not in without}
        at = 0.0
        while (at := at + chance.expovariate(rate)) < seconds:
            (name,) = chance.choices([*weights], [*weights.values()])
            # The choices of a step do not depend on those of the steps before it.
            options = table[name][1](random.Random(chance.getrandbits(64)), scene)
            if options is not None:
                steps.append(Step(round(at, 2), name, is_fault, options))
    return sorted(steps, key=lambda step: step.at)


def save(steps: Sequence[Step], file: Path) -> None:
    file.write_text(json.dumps([asdict(step) for step in steps], indent=1))


def load(file: Path) -> list[Step]:
    return [Step(**step) for step in json.loads(file.read_text())]
