# SPDX-License-Identifier: Apache-2.0
"""The live state of an application: its service, task sets and tasks with their health."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from pipecd.plugins.ecs.api import Ecs, TaskSet
from pipecd.plugins.ecs.definitions import Definitions
from pipecd.plugins.ecs.drift import standalone_sync_state, sync_state
from pipecd.plugins.ecs.snapshots import ServiceState, Snapshots
from pipecd.plugins.ecs.waits import stopped_reason
from pipecd.sdk import Health, LiveContext, LiveState, Resource, SyncState, SyncStatus
from pipecd.sdk.unstructured import Body, map_at, text_at


async def live_state(
    look: LiveContext, ecs: Ecs, snapshots: Snapshots, definitions: Definitions
) -> LiveState:
    """Returns what runs of an application, and whether it is as in Git."""
    commit, ignored = look.source.commit, look.source.ignored_fields()
    if definitions.service is None:
        task = definitions.task
        live = await snapshots.task_definition(ecs, task.family)
        cluster = definitions.settings.input.cluster_arn
        tasks = await snapshots.standalone_tasks(ecs, cluster, task.family) if cluster else []
        return LiveState(
            tuple(_standalone_resources(live, tasks, ecs.account.target)),
            standalone_sync_state(task, live, commit, ignored),
        )
    service = definitions.service
    state = await snapshots.service(ecs, service.cluster, service.name)
    if state is None:
        missing = f"The service {service.name} does not exist in cluster {service.cluster}"
        return LiveState(sync=SyncState(SyncStatus.OUT_OF_SYNC, missing))
    serving = state.task_definition
    live = await snapshots.task_definition(ecs, serving) if serving else None
    return LiveState(
        tuple(resources(state, ecs.account.target)),
        sync_state(definitions, state, live, commit, ignored),
    )


def resources(state: ServiceState, target: str) -> Iterator[Resource]:
    """Yields a service, its task sets and its tasks."""
    service = state.service
    arn = text_at(service, "serviceArn")
    health, why = _service_health(service)
    yield Resource(
        id=arn,
        name=text_at(service, "serviceName"),
        kind="ECS:Service",
        target=target,
        health=health,
        health_text=why,
        metadata={
            "status": text_at(service, "status"),
            **{key: str(service[key]) for key in ("runningCount", "desiredCount", "pendingCount")},
        },
        created_at=_time(service.get("createdAt")),
    )
    for task_set in state.task_sets:
        yield _task_set(task_set, arn, target)
    arns = {task_set.id: task_set.arn for task_set in state.task_sets}
    for task in state.tasks:
        yield _task(task, arns.get(text_at(task, "startedBy"), arn), target)


def _task(task: Body, parent: str, target: str) -> Resource:
    health, why = _task_health(task)
    started = _time(task.get("startedAt"))
    return Resource(
        id=text_at(task, "taskArn"),
        name=_short(text_at(task, "taskArn")),
        kind="ECS:Task",
        target=target,
        health=health,
        health_text=why,
        parents=(parent,) if parent else (),
        metadata={
            "lastStatus": text_at(task, "lastStatus"),
            **({"startedAt": started.isoformat()} if started else {}),
        },
        created_at=_time(task.get("createdAt")),
    )


def _task_set(task_set: TaskSet, service: str, target: str) -> Resource:
    document = task_set.document
    scale = map_at(document, "scale")
    health, why = Health.UNKNOWN, ""
    match text_at(document, "stabilityStatus"):
        case "STEADY_STATE":
            health = Health.HEALTHY
        case "STABILIZING":
            pending = document.get("pendingCount", 0)
            health = _unfinished(pending)
            running = document.get("runningCount", 0)
            why = f"TaskSet is stabilizing: {pending} pending, {running} running"
        case _:
            pass
    return Resource(
        id=task_set.arn,
        name=_short(task_set.id),
        kind="ECS:TaskSet",
        target=target,
        health=health,
        health_text=why,
        parents=(service,),
        metadata={
            "status": text_at(document, "status"),
            "taskDefinition": task_set.task_definition,
            **({"scale": f"{scale['value']:.0f}%"} if "value" in scale else {}),
            **({"commit": task_set.commit} if task_set.commit else {}),
        },
        created_at=_time(document.get("createdAt")),
    )


def _standalone_resources(
    definition: Body | None, tasks: Sequence[Body], target: str
) -> Iterator[Resource]:
    """Yields the newest task definition and the tasks that run, those of older ones without it."""
    if definition is not None:
        yield _task_definition(definition, target)
    newest = text_at(definition, "taskDefinitionArn")
    for task in tasks:
        yield _task(task, newest if text_at(task, "taskDefinitionArn") == newest else "", target)


def _task_definition(task: Body, target: str) -> Resource:
    is_active = text_at(task, "status") == "ACTIVE"
    return Resource(
        id=text_at(task, "taskDefinitionArn"),
        name=_short(text_at(task, "taskDefinitionArn")),
        kind="ECS:TaskDefinition",
        target=target,
        health=Health.HEALTHY if is_active else Health.UNHEALTHY,
        health_text="" if is_active else "The task definition is not active",
        metadata={"status": text_at(task, "status")},
        created_at=_time(task.get("registeredAt")),
    )


def _service_health(service: Body) -> tuple[Health, str]:
    status = text_at(service, "status")
    if status == "ACTIVE":
        running, desired = service["runningCount"], service["desiredCount"]
        pending = service["pendingCount"]
        if pending == 0 and running >= desired:
            return Health.HEALTHY, ""
        why = f"Service has {running} running tasks out of {desired} desired ({pending} pending)"
        return _unfinished(pending), why
    if status in ("DRAINING", "INACTIVE"):
        return Health.UNHEALTHY, f"Service is in {status} state"
    return Health.UNKNOWN, ""


def _unfinished(pending: int) -> Health:
    """Tasks that are missing although none starts do not come by themselves."""
    return Health.PROGRESSING if pending else Health.UNHEALTHY


def _task_health(task: Body) -> tuple[Health, str]:
    match text_at(task, "lastStatus"):
        case "RUNNING" if text_at(task, "healthStatus") == "UNHEALTHY":
            return Health.UNHEALTHY, "Task container health checks are failing"
        case "RUNNING":
            return Health.HEALTHY, ""
        case (
            "PROVISIONING"
            | "PENDING"
            | "ACTIVATING"
            | "DEACTIVATING"
            | "STOPPING"
            | "DEPROVISIONING"
        ):
            return Health.PROGRESSING, f"Task is in {text_at(task, 'lastStatus')} state"
        case "STOPPED":
            return Health.UNHEALTHY, f"Task stopped: {stopped_reason(task)}"
        case _:
            return Health.UNKNOWN, ""


def _short(arn: str) -> str:
    return arn.rpartition("/")[2]


def _time(value: Any) -> datetime | None:
    return value.astimezone(UTC) if isinstance(value, datetime) else None
