# SPDX-License-Identifier: Apache-2.0
"""The live state of functions: one function and its alias for each application."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pipecd.plugins.aws_lambda.functions import Functions
from pipecd.plugins.aws_lambda.traffic import Traffic
from pipecd.sdk import Health, Resource
from pipecd.sdk.aws import APPLICATION_TAG
from pipecd.sdk.unstructured import map_at, text_at

# Lambda is preparing a function whose state is pending.
_HEALTHS = {
    "Active": Health.HEALTHY,
    "Pending": Health.PROGRESSING,
    "Inactive": Health.UNHEALTHY,
    "Failed": Health.UNHEALTHY,
}


@dataclass(frozen=True)
class LiveFunction:
    """A function with its tags and traffic."""

    function: Mapping[str, Any]
    traffic: Traffic | None

    def belongs_to(self, application_id: str) -> bool:
        """Reports whether the function has the tag of an application."""
        return text_at(self.function, "Tags", APPLICATION_TAG) == application_id


@dataclass
class LiveFunctions:
    """The functions of a deploy target by name, read again after `interval` seconds."""

    functions: Functions
    interval: float
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, LiveFunction | None]] = field(
        default_factory=dict[str, tuple[float, LiveFunction | None]]
    )

    def invalidate(self) -> None:
        """Reads functions at the next call, because a stage has changed one."""
        self._known.clear()

    async def find(self, name: str) -> LiveFunction | None:
        """Returns a function, or None if it does not exist."""
        until, known = self._known.get(name, (float("-inf"), None))
        if self.clock() < until:
            return known
        function = await self.functions.find(name)
        found = LiveFunction(function, await self.functions.traffic(name)) if function else None
        self._known[name] = (self.clock() + self.interval, found)
        return found


def resource(live: LiveFunction, target: str) -> Resource:
    """Returns a function as a resource."""
    shown = map_at(live.function, "Configuration")
    health, reason = function_health(shown)
    metadata = {
        "Traffic": str(live.traffic) if live.traffic else "no alias",
        "Runtime": text_at(shown, "Runtime"),
        "Image": text_at(live.function, "Code", "ImageUri"),
    }
    return Resource(
        id=text_at(shown, "FunctionArn"),
        name=text_at(shown, "FunctionName"),
        kind="Function",
        target=target,
        health=health,
        health_text=reason,
        metadata={key: value for key, value in metadata.items() if value},
    )


def function_health(shown: Mapping[str, Any]) -> tuple[Health, str]:
    """Returns the health of a function by its state, and why."""
    state, update = text_at(shown, "State"), text_at(shown, "LastUpdateStatus")
    if state == "Active" and update == "InProgress":
        return Health.PROGRESSING, _explain(
            shown, "The function is being updated", "LastUpdateStatus"
        )
    if state == "Active" and update == "Failed":
        # What was deployed before the update continues to serve.
        return Health.HEALTHY, _explain(shown, "The last update has failed", "LastUpdateStatus")
    if state == "Active":
        return Health.HEALTHY, ""
    text = _explain(shown, f"The function is {state.lower() or 'unknown'}", "State")
    return _HEALTHS.get(state, Health.UNKNOWN), text


def _explain(shown: Mapping[str, Any], text: str, field: str) -> str:
    details = (text_at(shown, f"{field}{part}") for part in ("Reason", "ReasonCode"))
    return ": ".join(filter(None, (text, *details)))
