# SPDX-License-Identifier: Apache-2.0
"""Decides what the supervisor does next, from what shall run and what runs; it does no I/O.

A new version of a variant starts beside the old one. Once all of its instances are healthy, the
router sends requests to them instead, and the old ones are drained and stopped. A version that
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
"""How long an instance must run until its earlier exits are forgotten."""
MAX_DRAIN_SECONDS = 30.0


@dataclass(frozen=True)
class Launch:
    """Start an instance, or start it again."""

    variant: str
    index: int
    restarts: int = 0


@dataclass(frozen=True)
class Drain:
    """Send no more requests to an instance."""

    id: str


@dataclass(frozen=True)
class Terminate:
    """Ask an instance to end."""

    id: str


@dataclass(frozen=True)
class Kill:
    """End an instance that did not end in its grace period."""

    id: str


@dataclass(frozen=True)
class Forget:
    """Remove an instance that has ended and is not wanted."""

    id: str


Action: TypeAlias = Launch | Drain | Terminate | Kill | Forget


@dataclass(frozen=True)
class VariantRoute:
    """The share of a variant and the instances that serve it."""

    weight: int
    identity: str
    instances: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """What to do now, and when to decide again even if nothing happens until then."""

    actions: tuple[Action, ...] = ()
    routes: Mapping[str, VariantRoute] = field(default_factory=dict[str, VariantRoute])
    again_at: float | None = None


def backoff(restarts: int) -> float:
    """Returns the seconds to wait before an instance is started again."""
    return min(FIRST_BACKOFF * 2 ** min(restarts, 16), LONGEST_BACKOFF)


def reconcile(
    desired: DesiredApplication,
    instances: Sequence[Instance],
    now: float,
    *,
    drained: frozenset[str] = frozenset(),
    serving: Mapping[str, str] = MappingProxyType({}),
) -> Decision:
    """Decides for one application.

    `drained` are the instances without an open request, `serving` is the identity that each
    variant was routed to before.
    """
    actions: list[Action] = []
    deadlines: list[float] = []
    for name, variant in desired.variants.items():
        actions += _launches(name, variant, instances, now, deadlines)
    for instance in instances:
        chosen = _next_action(desired, instance, instances, drained)
        if chosen and chosen[1] <= now:
            actions.append(chosen[0])
        elif chosen:
            deadlines.append(chosen[1])
    routes = dict(_routes(desired, instances, serving))
    return Decision(tuple(actions), routes, min(deadlines, default=None))


def _launches(
    name: str,
    variant: DesiredVariant,
    instances: Sequence[Instance],
    now: float,
    deadlines: list[float],
) -> Iterator[Launch]:
    identity = variant.program.identity
    known = {i.index: i for i in instances if (i.variant, i.identity) == (name, identity)}
    for index in range(variant.replicas):
        instance = known.get(index)
        if instance is None:
            yield Launch(name, index)
        elif instance.phase is Phase.EXITED:
            ran = instance.since - instance.started_at
            restarts = 0 if ran >= STABLE_SECONDS else instance.restarts
            due = instance.since + backoff(restarts)
            if due <= now:
                yield Launch(name, index, restarts + 1)
            else:
                deadlines.append(due)


def _next_action(
    desired: DesiredApplication,
    instance: Instance,
    instances: Sequence[Instance],
    drained: frozenset[str],
) -> tuple[Action, float] | None:
    """Returns the next action for an instance and when it is due."""
    variant = desired.variants.get(instance.variant)
    is_wanted = variant is not None and _is_wanted(variant, instance)
    chosen: tuple[Action, float] | None = None
    match instance.phase:
        case Phase.EXITED:
            chosen = None if is_wanted else (Forget(instance.id), instance.since)
        case Phase.STOPPING:
            chosen = Kill(instance.id), instance.since + instance.grace_period
        case Phase.DRAINING:
            wait = min(instance.grace_period, MAX_DRAIN_SECONDS)
            wait = 0 if instance.id in drained else wait
            chosen = Terminate(instance.id), instance.since + wait
        case Phase.STARTING | Phase.UNHEALTHY:
            wait = variant.health.timeout if variant and is_wanted else 0
            chosen = Terminate(instance.id), instance.since + wait
        case Phase.HEALTHY:
            # An old version serves until the new one can.
            is_replaced = variant is None or _is_complete(instance.variant, variant, instances)
            if not is_wanted and is_replaced:
                chosen = Drain(instance.id), instance.since
    return chosen


def _is_wanted(variant: DesiredVariant, instance: Instance) -> bool:
    is_current = instance.identity == variant.program.identity
    return is_current and instance.index < variant.replicas


def _is_complete(name: str, variant: DesiredVariant, instances: Sequence[Instance]) -> bool:
    """Reports whether all instances of the desired version of a variant are healthy."""
    healthy = {
        i.index
        for i in instances
        if i.variant == name and i.phase is Phase.HEALTHY and _is_wanted(variant, i)
    }
    return len(healthy) == variant.replicas


def _routes(
    desired: DesiredApplication, instances: Sequence[Instance], before: Mapping[str, str]
) -> Iterator[tuple[str, VariantRoute]]:
    """Yields the routes of the variants that can serve.

    A variant without an instance that can serve yields none, so its share goes to the others.
    """
    for name, variant in desired.variants.items():
        serving = _serving(name, variant, instances, before.get(name, ""))
        weight = desired.weights.get(name, 0)
        if serving and weight > 0:
            ids = tuple(sorted(instance.id for instance in serving))
            yield name, VariantRoute(weight, serving[0].identity, ids)


def _serving(
    name: str, variant: DesiredVariant, instances: Sequence[Instance], before: str
) -> list[Instance]:
    """Returns the instances that requests to a variant go to: all of one version."""
    healthy = [i for i in instances if i.variant == name and i.phase is Phase.HEALTHY]
    wanted = [i for i in healthy if _is_wanted(variant, i)]
    old = [i for i in healthy if i.identity != variant.program.identity]
    if _is_complete(name, variant, instances) or not old:
        # An instance that fails its probes may still answer better than nobody.
        return wanted or [
            i
            for i in instances
            if i.variant == name and i.phase is Phase.UNHEALTHY and _is_wanted(variant, i)
        ]
    identities = [i.identity for i in old]
    chosen = before if before in identities else max(identities, key=identities.count)
    return [i for i in old if i.identity == chosen]
