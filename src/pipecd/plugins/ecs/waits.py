# SPDX-License-Identifier: Apache-2.0
"""Waits for task sets, services and tasks; what never becomes healthy is explained.

ECS starts a task that fails again and again. So a wait ends early when several tasks have failed,
with the reason why they stopped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipecd.plugins.ecs.api import Ecs, TaskSet
from pipecd.plugins.ecs.rollouts import Progress, judge_rollout
from pipecd.plugins.ecs.targets import Targets, target_groups
from pipecd.sdk import Duration, PipecdError, Unavailable, UserMistake
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
    "container health checks": "check the health check of the container, and read its log",
}
_DEFAULT_HINT = "read the logs of the containers, and the stopped task in the console of ECS"


@dataclass(frozen=True)
class Waits:
    """Waits for what ECS does in a cluster."""

    ecs: Ecs
    polling: Polling
    log: Callable[[str], None]

    async def steady(self, service: Body, task_set: TaskSet) -> TaskSet:
        """Waits until all tasks of a task set run and are healthy; returns it as it is then."""
        observed = self._observation(service, task_set.id)

        async def check() -> TaskSet | None:
            current = await self.ecs.task_set(service, task_set.arn)
            if current is None:
                raise _deleted(task_set)
            if current.is_steady:
                return current
            await observed.check(current.document)
            return None

        steady = await self.polling.until(check)
        if steady is None:
            raise await observed.timeout(f"the task set {task_set.arn}", self.polling.within)
        return steady

    async def stable(self, service: Body, task_set: TaskSet) -> None:
        """Waits until a service runs all tasks of its task sets; `task_set` is the new one."""
        name = text_at(service, "serviceName")
        observed = self._observation(service, task_set.id)

        async def check() -> bool | None:
            current = await self._service(service)
            task_sets = [TaskSet(each) for each in list_at(current, "taskSets")]
            if all(each.arn != task_set.arn for each in task_sets):
                raise _deleted(task_set)
            if current["pendingCount"] == 0 and current["runningCount"] >= current["desiredCount"]:
                return True
            await observed.check(*(each.document for each in task_sets))
            return None

        if await self.polling.until(check) is None:
            raise await observed.timeout(f"the service {name}", self.polling.within)

    async def rolled_out(self, service: Body, task_definition: str) -> None:
        """Waits until a service with rolling updates runs only tasks of a task definition."""
        name = text_at(service, "serviceName")
        observed = self._observation(service, judge_rollout(service, task_definition).id)

        async def check() -> bool | None:
            current = await self._service(service)
            rollout = judge_rollout(current, task_definition)
            if observed.started_by and not rollout.id:
                raise UserMistake(
                    f"the service {name} does not deploy the task definition {task_definition} any "
                    "more",
                    hint="read the events of the service; its circuit breaker or somebody else has "
                    "deployed another task definition",
                )
            observed.started_by = rollout.id
            match rollout.progress:
                case Progress.COMPLETED:
                    return True
                case Progress.FAILED:
                    why = await observed.stopped_reason()
                    raise UserMistake(
                        f"the service {name} was not updated: {rollout.reason}"
                        + (f": {why}" if why else ""),
                        hint=_hint(why),
                    )
                case Progress.REPLACED:
                    raise UserMistake(
                        f"somebody else deploys another task definition of the service {name}",
                        hint="only the piped may deploy it; deploy again",
                    )
                case Progress.WAITING:
                    await observed.check(current)
                    return None

        if await self.polling.until(check) is None:
            raise await observed.timeout(f"the service {name}", self.polling.within)

    async def _service(self, service: Body) -> Body:
        name = text_at(service, "serviceName")
        current = await self.ecs.find_service(text_at(service, "clusterArn"), name)
        if current is None:
            raise UserMistake(
                f"the service {name} was deleted while it was deployed", hint="deploy again"
            )
        return current

    async def empty(self, cluster: str, name: str) -> None:
        """Waits until a service runs no task."""

        async def check() -> bool | None:
            service = await self.ecs.find_service(cluster, name) or {}
            return True if not service.get("runningCount") else None

        if await self.polling.until(check) is None:
            raise Unavailable(
                f"the tasks of the service {name} did not stop in {Duration(self.polling.within)}",
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
                f"the task {arn} did not start in {Duration(self.polling.within)}",
                hint="look at the task in the console of ECS",
            )
        return state

    def _observation(self, service: Body, started_by: str) -> "_Observation":
        return _Observation(self.ecs, self.log, service, started_by)


def _deleted(task_set: TaskSet) -> UserMistake:
    return UserMistake(
        f"the task set {task_set.arn} was deleted while it started",
        hint="only the piped may change task sets that it created",
    )


@dataclass
class _Observation:
    """What happens to the tasks that a wait is for.

    It ends a wait early and explains it. A wait does not fail because AWS does not explain it.
    """

    ecs: Ecs
    log: Callable[[str], None]
    service: Body
    started_by: str
    """The id of the task set or deployment; empty as long as it is not known."""
    _unhealthy: str = ""
    _unexplained: str = ""

    async def check(self, *documents: Body) -> None:
        """Logs unhealthy targets of the services or task sets; raises if several tasks failed."""
        targets = Targets(self.ecs.account)
        unhealthy = await targets.describe_unhealthy(target_groups(*documents))
        if unhealthy and unhealthy != self._unhealthy:
            self.log(f"Still waiting: {unhealthy}")
        self._unhealthy = unhealthy
        failed = self._own(await self._failed())
        if len(failed) >= _FAILED_TASKS:
            raise _failure(self.service, failed, unhealthy)

    async def stopped_reason(self) -> str:
        """Returns why the last task stopped, empty if none did."""
        failed = self._own(await self._failed())
        return stopped_reason(failed[-1]) if failed else ""

    async def timeout(self, what: str, within: float) -> Exception:
        """Returns why something did not become stable in time."""
        failed = await self._failed()
        if failed:
            # Tasks that others start may be why the service does not become stable.
            return _failure(self.service, self._own(failed) or failed, self._unhealthy)
        causes = [each for each in (self._unhealthy, *await self._events()) if each]
        said = f": {'; '.join(causes)}" if causes else ""
        return Unavailable(
            f"{what} did not become stable in {Duration(within)}{said}",
            hint=_HINTS[_HEALTH_CHECKS]
            if self._unhealthy
            else "check the capacity of the cluster and the health of the targets",
        )

    def _own(self, tasks: Sequence[Body]) -> list[Body]:
        return [task for task in tasks if text_at(task, "startedBy") == self.started_by]

    async def _failed(self) -> list[Body]:
        try:
            # AWS does not combine `startedBy` with other filters.
            stopped = await self.ecs.tasks(
                text_at(self.service, "clusterArn"),
                serviceName=text_at(self.service, "serviceName"),
                desiredStatus="STOPPED",
            )
        except PipecdError as e:
            if str(e) != self._unexplained:
                self._unexplained = str(e)
                self.log(f"It is not known why tasks stop: {e}")
            return []
        return [
            task
            for task in stopped
            if text_at(task, "stoppedReason")
            and not text_at(task, "stoppedReason").startswith(_PLANNED_STOPS)
        ]

    async def _events(self) -> list[str]:
        try:
            current = await self.ecs.find_service(
                text_at(self.service, "clusterArn"), text_at(self.service, "serviceName")
            )
        except PipecdError as e:
            return [str(e)]
        return [text_at(each, "message") for each in list_at(current, "events")[:_SHOWN_EVENTS]]


def _failure(service: Body, failed: Sequence[Body], unhealthy: str) -> UserMistake:
    reason = stopped_reason(failed[-1])
    name = text_at(service, "serviceName")
    # The reason names the target group, and the load balancer what its health check got.
    more = f"; {unhealthy}" if unhealthy and _HEALTH_CHECKS in reason else ""
    number = "1 task" if len(failed) == 1 else f"{len(failed)} tasks"
    return UserMistake(
        f"{number} of the service {name} stopped: {reason}{more}", hint=_hint(reason)
    )


def _hint(reason: str) -> str:
    """Returns what to do about tasks that stop for a reason."""
    return next((hint for mark, hint in _HINTS.items() if mark in reason), _DEFAULT_HINT)


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
        raise UserMistake(
            f"the task {text_at(task, 'taskArn')} stopped: {reason}", hint=_hint(reason)
        )
    return "has ended"
