# SPDX-License-Identifier: Apache-2.0
"""The options of the ECS stages."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from pipecd.sdk.config import Percentage, Section, Spec


def _without_sign(value: object) -> object:
    # Upstream's plugin wants plain numbers; the spelling of the first generation costs nothing.
    return int(Percentage.parse(value)) if isinstance(value, str) else value


class CanaryRolloutOptions(Spec):
    """ECS_CANARY_ROLLOUT: the share of the desired tasks that the canary runs."""

    scale: Annotated[float, BeforeValidator(_without_sign), Field(ge=0, le=100)] = 0


class TrafficRoutingOptions(Spec):
    """ECS_TRAFFIC_ROUTING: the share of one variant, the other gets the rest."""

    primary: Annotated[int, BeforeValidator(_without_sign)] = 0
    canary: Annotated[int, BeforeValidator(_without_sign)] = 0

    def shares(self) -> tuple[int, int]:
        """Return the percentages of primary and canary."""
        if 0 < self.primary <= 100:
            return self.primary, 100 - self.primary
        if 0 < self.canary <= 100:
            return 100 - self.canary, self.canary
        return 100, 0


class V0SyncOptions(Spec):
    """ECS_SYNC of the first generation; `quickSync.recreate` decides, this is not used."""

    recreate: bool = False


class V0CanaryRolloutOptions(Spec):
    """ECS_CANARY_ROLLOUT of the first generation."""

    scale: Percentage = Percentage(0)


class V0TrafficRoutingOptions(Spec):
    """ECS_TRAFFIC_ROUTING of the first generation."""

    primary: Percentage = Percentage(0)
    canary: Percentage = Percentage(0)


def plain_scale(options: V0CanaryRolloutOptions) -> Section:
    """Return the options of the canary as the plugin reads them."""
    return {"scale": int(options.scale)}


def plain_shares(options: V0TrafficRoutingOptions) -> Section:
    """Return the options of traffic routing as the plugin reads them."""
    return {"primary": int(options.primary), "canary": int(options.canary)}
