# SPDX-License-Identifier: Apache-2.0
"""Waits for task sets, services and tasks; what never becomes healthy is explained.

ECS starts a task that fails again and again. So a wait ends early when several tasks have failed,
with the reason why they stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipecd.plugins.ecs.api import Ecs, TaskSet
from pipecd.plugins.ecs.targets import Targets, target_groups
from pipecd.sdk import Unavailable, UserMistake
from pipecd.sdk.aws import Polling
from pipecd.sdk.unstructured import Body, list_at, map_at, text_at

_FAILED_TASKS = 3
_SHOWN_EVENTS = 3
# Why a task stops that has not failed.
_PLANNED_STOPS = ("Scaling activity initiated by", "Task stopped by user")
_HEALTH_CHECKS = "ELB health checks"
_HINTS = {
    "CannotPullContainerError": "check the image in the task definition, and that the task may "
    "pull it: its execution role and its network",
    "ResourceInitializationError": "check the secrets, the volumes and the network of the task",
    "OutOfMemory": "give the task more memory",
    _HEALTH_CHECKS: "check the health check of the target group, and the security groups",
    "Essential container": "read the log of the container that exited",
}


@dataclass(frozen=True)
class Waits:
    """Waits for what ECS does in a cluster."""

    ecs: Ecs
    polling: Polling
    log: Callable[[str], None]

    async def steady(self, service: Body, task_set: TaskSet) -> None:
        """Waits until all tasks of a task set run and are healthy."""
        targets = self._targets()

        async def check() -> bool | None:
            current = await self.ecs.task_set(service, task_set.arn)
            if current is None:
                raise UserMistake(
                    f"the task set {task_set.arn} was deleted while it started",
                    hint="only the piped may change task sets that it created",
                )
            if current.is_steady:
                return True
            await targets.observe(current.document)
            await self._require_starts(service, task_set.id, targets)
            return None

        if await self.polling.until(check) is None:
            what = f"the task set {task_set.arn}"
            raise await self._timeout(service, what, task_set.id, targets.unhealthy)

    async def stable(self, cluster: str, name: str) -> None:
        """Waits until a service runs as many tasks as it should, and no rolling update goes on."""
        service: Body = {}
        targets = self._targets()

        async def check() -> bool | None:
            nonlocal service
            service = await self.ecs.find_service(cluster, name) or {}
            if not service:
                raise UserMistake(
                    f"the service {name} was deleted while it was deployed", hint="deploy again"
                )
            deployments = list_at(service, "deployments")
            for deployment in deployments:
                if text_at(deployment, "rolloutState") == "FAILED":
                    raise UserMistake(
                        f"the service {name} was not updated: "
                        f"{text_at(deployment, 'rolloutStateReason')}"
                        f"{await self._reason(service, text_at(deployment, 'id'))}"
                    )
            is_complete = (
                service["pendingCount"] == 0
                and service["runningCount"] >= service["desiredCount"]
                and len(deployments) <= 1
                and all(text_at(each, "rolloutState") != "IN_PROGRESS" for each in deployments)
            )
            if is_complete:
                return True
            await targets.observe(service, *list_at(service, "taskSets"))
            for deployment in deployments[:1]:
                await self._require_starts(service, text_at(deployment, "id"), targets)
            return None

        if await self.polling.until(check) is None:
            started_by = next((text_at(d, "id") for d in list_at(service, "deployments")), "")
            what = f"the service {name}"
            raise await self._timeout(service, what, started_by, targets.unhealthy)

    async def empty(self, cluster: str, name: str) -> None:
        """Waits until a service runs no task."""

        async def check() -> bool | None:
            service = await self.ecs.find_service(cluster, name) or {}
            return True if not service.get("runningCount") else None

        if await self.polling.until(check) is None:
            raise Unavailable(
                f"the tasks of the service {name} did not stop in {self.polling.within / 60:g} "
                "minutes",
                hint="check the stop timeout of the containers",
            )

    async def started(self, cluster: str, arn: str) -> str:
        """Waits until a standalone task runs or has ended; returns what it does."""

        async def check() -> str | None:
            found = await self.ecs.describe_tasks(cluster, [arn])
            status = text_at(found[0], "lastStatus") if found else ""
            if status == "STOPPED":
                return _ended(found[0])
            return "runs" if status in ("RUNNING", "DEACTIVATING", "STOPPING") else None

        state = await self.polling.until(check)
        if state is None:
            raise Unavailable(
                f"the task {arn} did not start in {self.polling.within / 60:g} minutes",
                hint="look at the task in the console of ECS",
            )
        return state

    def _targets(self) -> "_ObservedTargets":
        return _ObservedTargets(Targets(self.ecs.account), self.log)

    async def _require_starts(
        self, service: Body, started_by: str, targets: "_ObservedTargets"
    ) -> None:
        failed = await self._failed(service, started_by)
        if len(failed) >= _FAILED_TASKS:
            raise _failure(service, failed, targets.unhealthy)

    async def _failed(self, service: Body, started_by: str) -> list[Body]:
        stopped = await self.ecs.tasks(
            text_at(service, "clusterArn"), startedBy=started_by, desiredStatus="STOPPED"
        )
        return [
            task
            for task in stopped
            if text_at(task, "stoppedReason")
            and not text_at(task, "stoppedReason").startswith(_PLANNED_STOPS)
        ]

    async def _reason(self, service: Body, started_by: str) -> str:
        failed = await self._failed(service, started_by)
        return f": {stopped_reason(failed[-1])}" if failed else ""

    async def _timeout(
        self, service: Body, what: str, started_by: str, unhealthy: str
    ) -> Exception:
        failed = await self._failed(service, started_by)
        if failed:
            return _failure(service, failed, unhealthy)
        current = await self.ecs.find_service(
            text_at(service, "clusterArn"), text_at(service, "serviceName")
        )
        events = [text_at(each, "message") for each in list_at(current, "events")[:_SHOWN_EVENTS]]
        causes = [unhealthy, *events] if unhealthy else events
        said = f": {'; '.join(causes)}" if causes else ""
        return Unavailable(
            f"{what} did not become stable in {self.polling.within / 60:g} minutes{said}",
            hint=_HINTS[_HEALTH_CHECKS]
            if unhealthy
            else "check the capacity of the cluster and the health of the targets",
        )


@dataclass
class _ObservedTargets:
    """The targets that a wait is for; what is wrong with them is logged when it changes."""

    targets: Targets
    log: Callable[[str], None]
    unhealthy: str = ""

    async def observe(self, *documents: Body) -> None:
        unhealthy = await self.targets.describe_unhealthy(target_groups(*documents))
        if unhealthy and unhealthy != self.unhealthy:
            self.log(f"Still waiting: {unhealthy}")
        self.unhealthy = unhealthy


def _failure(service: Body, failed: Sequence[Body], unhealthy: str) -> UserMistake:
    reason = stopped_reason(failed[-1])
    hint = next((hint for mark, hint in _HINTS.items() if mark in reason), "")
    name = text_at(service, "serviceName")
    # The reason names the target group, and the load balancer what its health check got.
    more = f"; {unhealthy}" if unhealthy and _HEALTH_CHECKS in reason else ""
    return UserMistake(
        f"{len(failed)} tasks of the service {name} stopped: {reason}{more}", hint=hint
    )


def stopped_reason(task: Body) -> str:
    """Returns why a task stopped, with what its containers say."""
    containers = [
        f"container {text_at(each, 'name')}: "
        + (text_at(each, "reason") or f"exit code {each.get('exitCode')}")
        for each in list_at(task, "containers")
        if text_at(each, "reason") or each.get("exitCode")
    ]
    reason = text_at(task, "stoppedReason") or "it does not say why"
    return f"{reason} ({', '.join(containers)})" if containers else reason


def _ended(task: Body) -> str:
    has_failed = text_at(task, "stopCode") == "TaskFailedToStart" or any(
        each.get("exitCode") or map_at(each).get("reason") for each in list_at(task, "containers")
    )
    if has_failed:
        reason = stopped_reason(task)
        hint = next((hint for mark, hint in _HINTS.items() if mark in reason), "")
        raise UserMistake(f"the task {text_at(task, 'taskArn')} stopped: {reason}", hint=hint)
    return "has ended"
