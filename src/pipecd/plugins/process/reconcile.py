# SPDX-License-Identifier: Apache-2.0
"""Decides what the supervisor does next, from what shall run and what runs; it does no I/O.

A new version of a variant starts beside the old one. Once all of its instances are healthy, the
router sends requests to them instead, and the old ones are drained and stopped. Until then the old
version is supervised like the new one: its instances are restarted when they exit. A version that
never becomes healthy therefore never takes a request from the one before it, and going back only
stops the new instances.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from pipecd.plugins.process.desired import DesiredApplication, DesiredVariant
from pipecd.plugins.process.instance import Instance, Phase

FIRST_BACKOFF, LONGEST_BACKOFF = 0.5, 30.0
STABLE_SECONDS = 60.0
"""How long an instance must run until its earlier exits do not count any more."""
MAX_DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Launch:
    """Start an instance of a version, or start it again."""

    variant: str
    version: DesiredVariant
    index: int
    restarts: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class Drain:
    """Send no more requests to an instance."""

    id: str


@dataclass(frozen=True)
class Terminate:
    """Ask an instance to end, because it is not needed or because it is not healthy."""

    id: str
    is_unhealthy: bool = False


@dataclass(frozen=True)
class Kill:
    """End an instance that did not end in its grace period."""

    id: str


@dataclass(frozen=True)
class Forget:
    """Remove an instance that has ended and is not wanted."""

    id: str


Action: TypeAlias = Launch | Drain | Terminate | Kill | Forget
Versions: TypeAlias = Mapping[str, Sequence[DesiredVariant]]


@dataclass(frozen=True)
class VariantRoute:
    """The share of a variant and the instances that serve it."""

    weight: int
    identity: str
    instances: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """What to do now, and when to decide again even if nothing happens until then.

    `previous` are the versions that are still needed, by variant.
    """

    actions: tuple[Action, ...] = ()
    routes: Mapping[str, VariantRoute] = field(default_factory=dict[str, VariantRoute])
    again_at: float | None = None
    previous: Mapping[str, DesiredVariant] = field(default_factory=dict[str, DesiredVariant])


def backoff(crashes: int) -> float:
    """Returns the seconds to wait before an instance is started again."""
    return min(FIRST_BACKOFF * 2 ** min(max(crashes - 1, 0), 16), LONGEST_BACKOFF)


def crashes_after(instance: Instance, now: float) -> int:
    """Returns how often an instance that exits now has exited without a stable run between."""
    return 1 if now - instance.started_at >= STABLE_SECONDS else instance.crashes + 1


def previous_versions(
    before: DesiredApplication,
    after: DesiredApplication,
    previous: Mapping[str, DesiredVariant],
    serving: Mapping[str, str],
) -> dict[str, DesiredVariant]:
    """Returns the version of each variant that must serve until the desired one can.

    That is the one that was desired before, if it served; a version that was still rolled out when
    the next one came is left out.
    """
    found: dict[str, DesiredVariant] = {}
    for name, variant in after.variants.items():
        former = before.variants.get(name)
        if former is not None and serving.get(name) != former.program.identity:
            former = None
        kept = previous.get(name, former)
        if kept is not None and kept.program.identity != variant.program.identity:
            found[name] = kept
    return found


def reconcile(
    desired: DesiredApplication,
    instances: Sequence[Instance],
    now: float,
    *,
    drained: frozenset[str] = frozenset(),
    serving: Mapping[str, str] = MappingProxyType({}),
    previous: Mapping[str, DesiredVariant] = MappingProxyType({}),
) -> Decision:
    """Decides for one application.

    `drained` are the instances without an open request, `serving` is the identity that each
    variant was routed to before, `previous` the versions that `previous_versions` returned.
    """
    actions: list[Action] = []
    deadlines: list[float] = []
    needed = {
        name: version
        for name, version in previous.items()
        if name in desired.variants and not _is_complete(name, desired.variants[name], instances)
    }
    versions = {
        name: (variant, needed[name]) if name in needed else (variant,)
        for name, variant in desired.variants.items()
    }
    for name, each in versions.items():
        for version in each:
            actions += _launches(name, version, instances, now, deadlines)
    for instance in instances:
        chosen = _next_action(versions, instance, instances, drained)
        if chosen and chosen[1] <= now:
            actions.append(chosen[0])
        elif chosen:
            deadlines.append(chosen[1])
    routes = dict(_routes(desired, versions, instances, serving))
    return Decision(tuple(actions), routes, min(deadlines, default=None), needed)


def _launches(
    name: str,
    version: DesiredVariant,
    instances: Sequence[Instance],
    now: float,
    deadlines: list[float],
) -> Iterator[Launch]:
    identity = version.program.identity
    known = {i.index: i for i in instances if (i.variant, i.identity) == (name, identity)}
    for index in range(version.replicas):
        instance = known.get(index)
        if instance is None:
            yield Launch(name, version, index)
        elif instance.phase is Phase.EXITED:
            due = instance.since + backoff(instance.crashes)
            if due <= now:
                yield Launch(name, version, index, instance.restarts + 1, instance.crashes)
            else:
                deadlines.append(due)


def _next_action(
    versions: Versions,
    instance: Instance,
    instances: Sequence[Instance],
    drained: frozenset[str],
) -> tuple[Action, float] | None:
    """Returns the next action for an instance and when it is due."""
    version = _version_of(versions, instance)
    chosen: tuple[Action, float] | None = None
    match instance.phase:
        case Phase.EXITED:
            chosen = None if version else (Forget(instance.id), instance.since)
        case Phase.STOPPING:
            chosen = Kill(instance.id), instance.since + instance.grace_period
        case Phase.DRAINING:
            wait = min(instance.grace_period, MAX_DRAIN_SECONDS)
            wait = 0 if instance.id in drained else wait
            chosen = Terminate(instance.id), instance.since + wait
        case Phase.STARTING | Phase.UNHEALTHY if version:
            due = instance.since + version.health.timeout
            chosen = Terminate(instance.id, is_unhealthy=True), due
        case Phase.STARTING | Phase.UNHEALTHY:
            chosen = Terminate(instance.id), instance.since
        case Phase.HEALTHY:
            # An old version serves until the new one can.
            desired = versions.get(instance.variant, (None,))[0]
            is_replaced = desired is None or _is_complete(instance.variant, desired, instances)
            if not version and is_replaced:
                chosen = Drain(instance.id), instance.since
    return chosen


def _version_of(versions: Versions, instance: Instance) -> DesiredVariant | None:
    """Returns the version that needs an instance."""
    found = (v for v in versions.get(instance.variant, ()) if _is_of(v, instance))
    return next(found, None)


def _is_of(version: DesiredVariant, instance: Instance) -> bool:
    is_current = instance.identity == version.program.identity
    return is_current and instance.index < version.replicas


def _is_complete(name: str, version: DesiredVariant, instances: Sequence[Instance]) -> bool:
    """Reports whether all instances of a version are healthy."""
    return len(_in_phase(Phase.HEALTHY, name, version, instances)) == version.replicas


def _in_phase(
    phase: Phase, name: str, version: DesiredVariant, instances: Sequence[Instance]
) -> list[Instance]:
    return [i for i in instances if i.variant == name and i.phase is phase and _is_of(version, i)]


def _routes(
    desired: DesiredApplication,
    versions: Versions,
    instances: Sequence[Instance],
    before: Mapping[str, str],
) -> Iterator[tuple[str, VariantRoute]]:
    """Yields the routes of the variants that can serve.

    A variant without a healthy instance yields none, so its share goes to the others. If no
    variant has one, those that fail their probes may still answer better than nobody.
    """
    routed = {name: each for name, each in versions.items() if desired.weights.get(name, 0) > 0}
    healthy = {
        name: _serving(name, each, instances, before.get(name, "")) for name, each in routed.items()
    }
    can_serve = any(healthy.values())
    for name, each in routed.items():
        serving = healthy[name] if can_serve else _failing(name, each, instances)
        if serving:
            ids = tuple(sorted(instance.id for instance in serving))
            yield name, VariantRoute(desired.weights[name], serving[0].identity, ids)


def _serving(
    name: str, versions: Sequence[DesiredVariant], instances: Sequence[Instance], before: str
) -> list[Instance]:
    """Returns the healthy instances that requests to a variant go to: all of one version."""
    desired = versions[0]
    healthy = _in_phase(Phase.HEALTHY, name, desired, instances)
    if len(healthy) == desired.replicas:
        return healthy
    old = [
        i
        for i in instances
        if i.variant == name and i.phase is Phase.HEALTHY and i.identity != desired.program.identity
    ]
    if old:
        identities = [i.identity for i in old]
        chosen = before if before in identities else max(identities, key=identities.count)
        return [i for i in old if i.identity == chosen]
    return healthy


def _failing(
    name: str, versions: Sequence[DesiredVariant], instances: Sequence[Instance]
) -> list[Instance]:
    """Returns the instances of the oldest version that fail their probes."""
    found = (_in_phase(Phase.UNHEALTHY, name, each, instances) for each in reversed(versions))
    return next((each for each in found if each), list[Instance]())
