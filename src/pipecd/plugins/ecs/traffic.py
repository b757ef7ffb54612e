# SPDX-License-Identifier: Apache-2.0
"""Splits the traffic between two target groups on the listeners of their load balancers.

Only actions that forward to exactly these two target groups are changed. All other rules, and the
other actions of a rule, stay as they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.sdk import UserMistake
from pipecd.sdk.aws import AwsAccount, AwsMissing
from pipecd.sdk.unstructured import Body, list_at, map_at, text_at

_FORWARD = "forward"


@dataclass(frozen=True)
class TrafficSplit:
    """The weights of the primary and of the canary target group."""

    primary_group: str
    canary_group: str
    primary: int
    canary: int

    @property
    def weights(self) -> dict[str, int]:
        """The weights by the ARN of the target group."""
        return {self.primary_group: self.primary, self.canary_group: self.canary}

    def __str__(self) -> str:
        return f"primary {self.primary}%, canary {self.canary}%"


@dataclass(frozen=True)
class Rule:
    """A rule of a listener; the default one has no conditions and belongs to the listener."""

    listener: str
    arn: str
    is_default: bool
    actions: tuple[Body, ...]

    @property
    def name(self) -> str:
        """What people find it by."""
        return f"the default rule of {self.listener}" if self.is_default else f"the rule {self.arn}"

    @property
    def forwards(self) -> list[frozenset[str]]:
        """The target groups of each of its forward actions."""
        return [_groups(action) for action in self.actions if _is_forward(action)]

    def splits(self, groups: frozenset[str]) -> bool:
        """Reports whether it forwards to exactly these target groups."""
        return groups in self.forwards


def _is_forward(action: Body) -> bool:
    return text_at(action, "Type") == _FORWARD


def _groups(action: Body) -> frozenset[str]:
    groups = list_at(action, "ForwardConfig", "TargetGroups")
    listed = [text_at(group, "TargetGroupArn") for group in groups]
    return frozenset(listed or [text_at(action, "TargetGroupArn")])


def _weights(action: Body) -> dict[str, int]:
    groups = list_at(action, "ForwardConfig", "TargetGroups")
    return {text_at(group, "TargetGroupArn"): group.get("Weight", 1) for group in groups}


def changed_actions(rule: Rule, split: TrafficSplit) -> list[Body] | None:
    """Returns all actions of a rule with the new weights; None if nothing changes.

    The stickiness of the target groups is kept, which routes a client to the one it knows.
    """
    groups = frozenset(split.weights)
    if all(
        _weights(action) == split.weights
        for action in rule.actions
        if _is_forward(action) and _groups(action) == groups
    ):
        return None
    actions: list[Body] = []
    for action in rule.actions:
        if not _is_forward(action) or _groups(action) != groups:
            actions.append(_resendable(action))
            continue
        config = {
            **map_at(action, "ForwardConfig"),
            "TargetGroups": [
                {"TargetGroupArn": arn, "Weight": weight} for arn, weight in split.weights.items()
            ],
        }
        kept = {key: action[key] for key in ("Type", "Order") if key in action}
        actions.append({**kept, "ForwardConfig": config})
    return actions


def _resendable(action: Body) -> Body:
    """Returns an action as AWS accepts it again; it never shows the secret of an OIDC client."""
    oidc = map_at(action, "AuthenticateOidcConfig")
    if not oidc or "ClientSecret" in oidc:
        return action
    return {**action, "AuthenticateOidcConfig": {**oidc, "UseExistingClientSecret": True}}


@dataclass(frozen=True)
class Listeners:
    """The listeners of the load balancers of one account and region."""

    account: AwsAccount

    async def of_target_group(self, arn: str) -> list[str]:
        """Returns the ARNs of the listeners of all load balancers that use a target group."""
        try:
            answer = await self._call(
                "describe_target_groups", f"target group {arn}", TargetGroupArns=[arn]
            )
        except AwsMissing as e:
            raise UserMistake(
                f"the target group {arn} does not exist in region {self.account.region}",
                hint="correct targetGroups in the input of the application",
            ) from e
        balancers = dict.fromkeys(list_at(answer["TargetGroups"][0], "LoadBalancerArns"))
        listeners: list[str] = []
        for balancer in balancers:
            found = await self.account.collect(
                "elbv2",
                "describe_listeners",
                "Listeners",
                about=f"the listeners of {balancer}",
                LoadBalancerArn=balancer,
            )
            listeners += [text_at(listener, "ListenerArn") for listener in found]
        if not listeners:
            raise UserMistake(
                f"no listener of a load balancer uses the target group {arn}",
                hint="create a rule that forwards to the target groups of primary and canary",
            )
        return listeners

    async def rules(self, listeners: Sequence[str]) -> list[Rule]:
        """Returns the rules of listeners; a listener that was deleted has none."""
        rules: list[Rule] = []
        for listener in listeners:
            try:
                rules += await self._rules(listener)
            except AwsMissing:
                continue
        return rules

    async def _rules(self, listener: str) -> list[Rule]:
        answer = await self._call(
            "describe_listeners", f"listener {listener}", ListenerArns=[listener]
        )
        default = list_at(answer["Listeners"][0], "DefaultActions")
        described = await self.account.collect(
            "elbv2",
            "describe_rules",
            "Rules",
            about=f"the rules of the listener {listener}",
            ListenerArn=listener,
        )
        return [
            Rule(listener, "", True, tuple(default)),
            *(
                Rule(listener, text_at(rule, "RuleArn"), False, tuple(list_at(rule, "Actions")))
                for rule in described
                if not rule.get("IsDefault")
            ),
        ]

    async def apply(self, rules: Sequence[Rule], split: TrafficSplit) -> list[str]:
        """Changes the weights of rules that have others; returns the names of those changed."""
        changed: list[str] = []
        for rule in rules:
            actions = changed_actions(rule, split)
            if actions is None:
                continue
            if rule.is_default:
                await self._call(
                    "modify_listener",
                    f"listener {rule.listener}",
                    ListenerArn=rule.listener,
                    DefaultActions=actions,
                )
            else:
                await self._call(
                    "modify_rule", f"rule {rule.arn}", RuleArn=rule.arn, Actions=actions
                )
            changed.append(rule.name)
        return changed

    async def _call(self, operation: str, about: str, **request: Any) -> dict[str, Any]:
        return await self.account.call("elbv2", operation, about=f"the {about}", **request)


def choose_rules(rules: Sequence[Rule], split: TrafficSplit, routed: Sequence[str]) -> list[Rule]:
    """Returns the rules that split the traffic between the two target groups.

    `routed` are the names of rules that an earlier stage has changed: if one of them does not
    forward to the two target groups any more, somebody else has edited it.
    """
    groups = frozenset(split.weights)
    chosen = [rule for rule in rules if rule.splits(groups)]
    names = {rule.name for rule in chosen}
    edited = [name for name in routed if name not in names]
    if edited:
        raise UserMistake(
            f"somebody else has edited {edited[0]}: {_describe(rules, edited[0])}",
            hint="let it forward to both target groups again, and deploy again",
        )
    if not chosen:
        near = [rule for rule in rules if any(groups & forward for forward in rule.forwards)]
        seen = "; ".join(f"{rule.name} {_describe(rules, rule.name)}" for rule in near)
        raise UserMistake(
            "no listener rule forwards to exactly the target groups of primary and canary"
            + (f": {seen}" if seen else ""),
            hint="give a rule a forward action with both target groups, with any weights",
        )
    return chosen


def _describe(rules: Sequence[Rule], name: str) -> str:
    rule = next((rule for rule in rules if rule.name == name), None)
    if rule is None:
        return "it was deleted"
    targets = " and ".join(
        ", ".join(sorted(group.rpartition(":targetgroup/")[2] for group in groups))
        for groups in rule.forwards
    )
    return f"forwards to {targets}" if targets else "does not forward"


def split_metadata(shares: tuple[int, int]) -> Mapping[str, str]:
    """Returns the percentages as upstream stores them."""
    primary, canary = shares
    return {"primary-percentage": str(primary), "canary-percentage": str(canary)}


def read_listeners(stored: str | None) -> Iterator[str]:
    """Yields the listeners that an earlier stage has stored."""
    yield from (arn for arn in (stored or "").split(",") if arn)
