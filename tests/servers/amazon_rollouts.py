# SPDX-License-Identifier: Apache-2.0
"""The deployments of services with rolling updates, which moto completes at once.

A deployment is in progress for some reads of the service. One whose tasks stop goes on for ever,
or fails if the service has a circuit breaker; with `rollback` the breaker deploys the task
definition that was completed before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servers.amazon import Parameters

_STARTED = "ECS deployment circuit breaker: tasks failed to start."


@dataclass
class Rollouts:
    """The deployments by the ARN of their service, the primary one first."""

    reads: int = 1
    """How often a service is read before its deployment is completed, or broken off."""
    is_failed_one_listed: bool = False
    """Whether a deployment that failed stays listed, as while its tasks drain."""
    _deployments: dict[str, list[Parameters]] = field(default_factory=dict[str, list[Parameters]])
    _completed: dict[str, str] = field(default_factory=dict[str, str])
    _number: int = 0

    def reset(self) -> None:
        self.reads, self.is_failed_one_listed = 1, False
        self._deployments.clear()
        self._completed.clear()

    def of(self, arn: str) -> list[Parameters]:
        """Returns the deployments of a service."""
        return self._deployments.get(arn, [])

    def begin(self, arn: str, task_definition: str, reason: str = "") -> None:
        """Makes a task definition that of the primary deployment."""
        known = self._deployments.setdefault(arn, [])
        if known and known[0]["taskDefinition"] == task_definition:
            return
        # The tasks of a task definition that is deployed again are those of the new deployment.
        known[:] = [each for each in known if each["taskDefinition"] != task_definition]
        for each in known:
            each["status"] = "ACTIVE"
        self._number += 1
        number = f"{self._number:019d}"
        created: Parameters = {
            "id": f"ecs-svc/{number}",
            "status": "PRIMARY",
            "taskDefinition": task_definition,
            "rolloutState": "IN_PROGRESS",
            "rolloutStateReason": reason or f"ECS deployment ecs-svc/{number} in progress.",
            "createdAt": 1700000000 + self._number,
            "reads": 0,
        }
        known.insert(0, created)

    def read(
        self, arn: str, service: Any, breaker: Parameters, is_failing: Callable[[str], bool]
    ) -> None:
        """Continues the deployments of a service, because somebody reads it."""
        known = self._deployments[arn]
        primary = known[0]
        primary["reads"] += 1
        if primary["rolloutState"] == "FAILED" or primary["reads"] <= self.reads:
            return
        if not is_failing(primary["taskDefinition"]):
            number = primary["id"]
            primary["rolloutState"] = "COMPLETED"
            primary["rolloutStateReason"] = f"ECS deployment {number} completed."
            self._completed[arn] = primary["taskDefinition"]
            is_kept = self.is_failed_one_listed
            known[1:] = [each for each in known[1:] if is_kept and each["rolloutState"] == "FAILED"]
        elif breaker.get("enable"):
            primary |= {"rolloutState": "FAILED", "rolloutStateReason": _STARTED}
            before = self._completed.get(arn)
            if breaker.get("rollback") and before:
                service.task_definition = before
                self.begin(arn, before, "ECS deployment circuit breaker: rolling back.")

    def shown(
        self, arn: str, desired: int, is_failing: Callable[[str], bool]
    ) -> tuple[list[Parameters], int]:
        """Returns the deployments as AWS shows them, and how many tasks run."""
        documents: list[Parameters] = []
        for each in self.of(arn):
            fails = is_failing(each["taskDefinition"])
            document = {key: value for key, value in each.items() if key != "reads"}
            is_counted = not fails and not documents
            counts = {"desiredCount": desired, "pendingCount": 0, "failedTasks": 3 * fails}
            documents.append({**document, **counts, "runningCount": desired * is_counted})
        runs = any(not is_failing(each["taskDefinition"]) for each in self.of(arn))
        return documents, desired if runs else 0
