# SPDX-License-Identifier: Apache-2.0
"""The targets of a load balancer that do not get traffic, and why.

A task may run and yet get no traffic, because it does not pass the health check of its target
group. ECS then says nothing for minutes and stops it; the load balancer knows the reason at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.sdk import PipecdError
from pipecd.sdk.aws import AwsAccount
from pipecd.sdk.unstructured import Body, list_at, map_at, text_at

# A target that is draining or not in use is on its way out and needs nobody's help.
_WAITED_FOR = frozenset({"initial", "unhealthy", "unavailable"})
_SHOWN = 5


def target_groups(*documents: Body) -> list[str]:
    """Returns the ARNs of the target groups of services or task sets."""
    groups = (
        text_at(balancer, "targetGroupArn")
        for document in documents
        for balancer in list_at(document, "loadBalancers")
    )
    return [arn for arn in dict.fromkeys(groups) if arn]


@dataclass(frozen=True)
class Targets:
    """The targets of one account and region."""

    account: AwsAccount

    async def describe_unhealthy(self, groups: Sequence[str]) -> str:
        """Returns what the load balancer says about targets without traffic, empty if nothing."""
        return "; ".join(filter(None, [await self._describe(arn) for arn in groups]))

    async def _describe(self, arn: str) -> str:
        name = _group_name(arn)
        try:
            answer = await self.account.call(
                "elbv2",
                "describe_target_health",
                about=f"the health of the targets of {name}",
                TargetGroupArn=arn,
            )
        except PipecdError as e:
            # It explains a wait; a wait does not fail because of it.
            return str(e)
        waited = [
            each
            for each in list_at(answer, "TargetHealthDescriptions")
            if text_at(each, "TargetHealth", "State") in _WAITED_FOR
        ]
        if not waited:
            return ""
        shown = ", ".join(map(_describe_target, waited[:_SHOWN]))
        more = f" and {len(waited) - _SHOWN} more" if len(waited) > _SHOWN else ""
        return f"the target group {name} has targets that are not healthy: {shown}{more}"


def _describe_target(described: Body) -> str:
    target, health = map_at(described, "Target"), map_at(described, "TargetHealth")
    said = (text_at(health, key) for key in ("State", "Reason", "Description"))
    return f"{text_at(target, 'Id')}:{target.get('Port', '')} ({': '.join(filter(None, said))})"


def _group_name(arn: str) -> str:
    # arn:aws:elasticloadbalancing:REGION:ACCOUNT:targetgroup/NAME/ID
    _, _, path = arn.partition(":targetgroup/")
    return path.partition("/")[0] or arn
