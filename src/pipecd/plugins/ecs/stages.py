# SPDX-License-Identifier: Apache-2.0
"""The stages that create and delete task sets, and the standalone task."""

import json
from collections.abc import Callable, Sequence

from pipecd.plugins.ecs import rolling
from pipecd.plugins.ecs.api import TaskSet
from pipecd.plugins.ecs.config import EcsCanaryRolloutOptions, TargetGroup
from pipecd.plugins.ecs.definitions import EXTERNAL
from pipecd.plugins.ecs.session import Session
from pipecd.sdk import DISPLAY_KEY, StageResult, UserMistake
from pipecd.sdk.counts import counted
from pipecd.sdk.unstructured import Body, text_at

# The task set of the canary, as upstream's plugin and upstream's first generation store it.
_CANARY, _V0_CANARY = "canary-task-set", "canary-taskset-object"
_TASK = "standalone-task"
# AWS starts only one task for a token.
_LONGEST_TOKEN = 64


async def sync(session: Session) -> StageResult:
    """ECS_SYNC: all tasks become those of the target commit."""
    if session.definitions.service is None:
        return await run_standalone(session)
    if session.service.controller != EXTERNAL:
        return await rolling.deploy(
            session, recreate=session.definitions.settings.quick_sync.recreate
        )
    task_definition = await session.register()
    service = await session.apply_service()
    is_recreated = session.definitions.settings.quick_sync.recreate
    count = await rolling.stop_all(session, service) if is_recreated else 0
    created = await replace_primary(
        session,
        service,
        task_definition,
        session.target_group("primary"),
        replaces=lambda each: each.is_primary or each.is_managed,
    )
    if count:
        session.log(f"Starting {counted(count, 'task')}")
        await session.ecs.scale_service(session.service.cluster, session.service.name, count)
    await session.waits.stable(service, created)
    return StageResult.succeeded(f"The service {session.service.name} is deployed")


async def rollout_primary(session: Session) -> StageResult:
    """ECS_PRIMARY_ROLLOUT: the primary tasks become those of the target commit."""
    if session.service.controller != EXTERNAL:
        return await rolling.deploy(session, recreate=False)
    group = session.required_target_group("primary")
    task_definition = await session.register()
    service = await session.apply_service()
    # A canary still serves its share, and a later stage removes it.
    created = await replace_primary(
        session, service, task_definition, group, replaces=lambda each: each.is_primary
    )
    await session.waits.stable(service, created)
    return StageResult.succeeded("The primary task set is rolled out")


async def replace_primary(
    session: Session,
    service: Body,
    task_definition: str,
    group: TargetGroup | None,
    *,
    replaces: Callable[[TaskSet], bool],
) -> TaskSet:
    """Starts a task set with all tasks, makes it primary, and deletes those that it replaces."""
    before = await session.ecs.task_sets(service)
    replaced = await session.replaced(
        each for each in before if each.task_definition != task_definition and replaces(each)
    )
    created = await start_primary(session, service, task_definition, group)
    await session.delete_task_sets(service, replaced)
    return created


async def start_primary(
    session: Session, service: Body, task_definition: str, group: TargetGroup | None
) -> TaskSet:
    """Starts a task set with all tasks and makes it primary when they are healthy."""
    created = await session.create_task_set(service, task_definition, scale=100, group=group)
    session.log("Waiting until its tasks are healthy")
    steady = await session.waits.steady(service, created)
    if not steady.is_primary:
        # AWS refuses to promote the primary one again, which a stage that was killed may find.
        await session.ecs.promote(service, created)
    session.log("It is the primary task set now")
    return created


async def rollout_canary(session: Session) -> StageResult:
    """ECS_CANARY_ROLLOUT: starts tasks of the target commit beside the primary ones."""
    options = session.stage.options(EcsCanaryRolloutOptions)
    if session.service.controller != EXTERNAL:
        raise UserMistake(
            f"the service {session.service.name} has rolling updates, which have no canary",
            hint="set deploymentController.type to EXTERNAL in the service definition; AWS cannot "
            "change it in a service that exists",
        )
    group = session.required_target_group("canary")
    scale = f"{options.scale:g}"
    await session.stage.metadata.put({"canary-scale": scale, DISPLAY_KEY: f"canary {scale}%"})
    task_definition = await session.register()
    service = await session.apply_service()
    created = await session.create_task_set(
        service, task_definition, scale=options.scale, group=group
    )
    await session.stage.shared.put({_CANARY: json.dumps(_stored(created))})
    session.log("Waiting until its tasks are healthy")
    await session.waits.steady(service, created)
    await session.waits.stable(service, created)
    return StageResult.succeeded(f"The canary runs {scale}% of the tasks")


async def clean_canary(session: Session) -> StageResult:
    """ECS_CANARY_CLEAN: deletes the canary of this deployment."""
    definition = session.service
    service = await session.ecs.find_service(definition.cluster, definition.name)
    if service is None or definition.controller != EXTERNAL:
        return StageResult.succeeded("There is no canary")
    canaries = await _canaries(session, await session.ecs.task_sets(service))
    if not canaries:
        return StageResult.succeeded("There is no canary any more")
    replaced = await session.replaced(canaries)
    await session.delete_task_sets(service, replaced)
    return StageResult.succeeded("The canary is removed")


async def _canaries(session: Session, task_sets: Sequence[TaskSet]) -> list[TaskSet]:
    """Returns the task set that the canary stage has stored, else by its tags."""
    others = [each for each in task_sets if not each.is_primary and each.is_managed]
    stored = await session.stage.shared.get(_CANARY)
    stored = stored or await session.stage.shared.of_all_plugins(_V0_CANARY)
    if stored:
        arn = json.loads(stored).get("TaskSetArn")
        return [each for each in others if each.arn == arn]
    return [each for each in others if each.commit == session.source.commit]


def _stored(task_set: TaskSet) -> dict[str, object]:
    """Returns a task set with the names of fields that upstream reads."""
    return {
        name[:1].upper() + name[1:]: task_set.document.get(name)
        for name in ("clusterArn", "id", "serviceArn", "taskDefinition", "taskSetArn")
    }


async def run_standalone(session: Session) -> StageResult:
    """Registers the task definition and runs one task of it, if the application wants that."""
    given = session.definitions.settings.input
    task_definition = await session.register()
    if not given.run_standalone_task:
        return StageResult.succeeded(f"The task definition {task_definition} is registered")
    cluster = given.cluster_arn or "default"
    arn = await session.stage.metadata.get(_TASK)
    if arn is None:
        vpc = given.awsvpc_configuration
        network = {
            "subnets": list(vpc.subnets),
            **({"securityGroups": list(vpc.security_groups)} if vpc.security_groups else {}),
            **({"assignPublicIp": vpc.assign_public_ip} if vpc.assign_public_ip else {}),
        }
        task = await session.ecs.run_task(
            taskDefinition=task_definition,
            cluster=cluster,
            launchType=given.launch_type,
            tags=[{"key": key, "value": value} for key, value in session.tags.items()],
            clientToken=f"{session.stage.deployment.id}-{session.stage.index}"[:_LONGEST_TOKEN],
            **({"networkConfiguration": {"awsvpcConfiguration": network}} if vpc.subnets else {}),
        )
        arn = text_at(task, "taskArn")
        await session.stage.metadata.put({_TASK: arn})
        session.log(f"Started the task {arn}")
    state = await session.waits.started(cluster, arn)
    return StageResult.succeeded(f"The task {arn} {state}")
