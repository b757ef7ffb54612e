# SPDX-License-Identifier: Apache-2.0
"""The stage ECS_TRAFFIC_ROUTING, and how a rollback returns the traffic."""

import json

from pipecd.plugins.ecs.config import EcsTrafficRoutingOptions, TargetGroup
from pipecd.plugins.ecs.session import Session
from pipecd.plugins.ecs.traffic import (
    TrafficSplit,
    choose_rules,
    read_listeners,
    split_metadata,
)
from pipecd.sdk import DISPLAY_KEY, StageResult, UserMistake

_CANARY_GROUP, _LISTENERS = "canary-target-group-arn", "current-listeners"
_ROUTED = "routed-rules"


async def route_traffic(session: Session) -> StageResult:
    """ECS_TRAFFIC_ROUTING: splits the traffic between the primary and the canary tasks."""
    if session.definitions.settings.input.access_type != "ELB":
        raise UserMistake(
            f"the stage {session.stage.name} needs a load balancer",
            hint="set accessType: ELB with both targetGroups in the input, or remove the stage",
        )
    primary, canary = (
        session.required_target_group("primary"),
        session.required_target_group("canary"),
    )
    if primary is None or canary is None:
        raise UserMistake("both target groups must be set")
    shares = session.stage.options(EcsTrafficRoutingOptions).shares()
    split = TrafficSplit(primary.target_group_arn, canary.target_group_arn, *shares)
    shared = session.stage.shared
    await shared.put({_CANARY_GROUP: split.canary_group, **split_metadata(shares)})
    await session.stage.metadata.put({**split_metadata(shares), DISPLAY_KEY: str(split)})
    listeners = list(read_listeners(await shared.get(_LISTENERS)))
    if not listeners:
        listeners = await session.listeners.of_target_group(split.primary_group)
        await shared.put({_LISTENERS: ",".join(listeners)})
    routed = json.loads(await shared.get(_ROUTED) or "[]")
    rules = choose_rules(await session.listeners.rules(listeners), split, routed)
    await shared.put({_ROUTED: json.dumps([rule.name for rule in rules])})
    for name in await session.listeners.apply(rules, split):
        session.log(f"Changed {name}")
    return StageResult.succeeded(f"Traffic is routed: {split}")


async def restore_traffic(session: Session, primary: TargetGroup | None) -> None:
    """Routes all traffic to the primary tasks, on every rule that still splits it.

    What somebody else has edited meanwhile stays as it is.
    """
    if primary is None:
        return
    shared = session.stage.shared
    canary = session.target_group("canary")
    groups = {canary.target_group_arn} if canary else set[str]()
    # The target commit may have another canary group than the running one.
    stored = await shared.get(_CANARY_GROUP) or await shared.of_all_plugins(_CANARY_GROUP)
    groups |= {stored} if stored else set()
    listeners = list(
        read_listeners(await shared.get(_LISTENERS) or await shared.of_all_plugins(_LISTENERS))
    )
    if not groups:
        return
    if not listeners:
        try:
            listeners = await session.listeners.of_target_group(primary.target_group_arn)
        except UserMistake as e:
            # Traffic that was never routed needs no listener.
            session.log(f"No traffic is restored: {e}")
            return
    rules = await session.listeners.rules(listeners)
    for group in groups:
        split = TrafficSplit(primary.target_group_arn, group, 100, 0)
        chosen = [rule for rule in rules if rule.splits(frozenset(split.weights))]
        for name in await session.listeners.apply(chosen, split):
            session.log(f"All traffic of {name} goes to the primary target group")
    names = {rule.name for rule in rules if any(rule.splits(_pair(primary, g)) for g in groups)}
    for name in json.loads(await shared.get(_ROUTED) or "[]"):
        if name not in names:
            session.log(f"Somebody else has edited {name}, so it stays as it is: check it")


def _pair(primary: TargetGroup, canary: str) -> frozenset[str]:
    return frozenset({primary.target_group_arn, canary})
