# SPDX-License-Identifier: Apache-2.0
"""Services whose tasks ECS replaces itself, with rolling updates."""

from pipecd.plugins.ecs.api import read_tags
from pipecd.plugins.ecs.definitions import ROLLING
from pipecd.plugins.ecs.session import Session, require_deployable
from pipecd.sdk import StageResult, UserMistake
from pipecd.sdk.counts import counted
from pipecd.sdk.unstructured import Body, text_at


async def deploy(
    session: Session, *, recreate: bool, desired_count: int | None = None
) -> StageResult:
    """Lets ECS replace the tasks of a service, and waits until it has."""
    definition = session.service
    if definition.controller != ROLLING:
        raise UserMistake(
            f"the service {definition.name} has the deployment controller {definition.controller}",
            hint="set deploymentController.type in the service definition to EXTERNAL or ECS",
        )
    group = session.target_group("primary")
    task_definition = await session.register()
    current = await session.ecs.find_service(definition.cluster, definition.name)
    if current is None:
        service = await session.create_service(
            task_definition=task_definition, group=group, desired_count=desired_count
        )
    else:
        require_deployable(current, definition)
        if recreate:
            desired_count = await stop_all(session, current)
        else:
            await session.store_count(current)
        session.log(f"Updating the service {definition.name}")
        service = await session.ecs.update_service(
            definition,
            task_definition=task_definition,
            group=group,
            desired_count=definition.desired_count or desired_count,
        )
        await session.ecs.replace_tags(
            text_at(current, "serviceArn"), read_tags(current), session.service_tags
        )
    session.log("Waiting until ECS has replaced the tasks")
    await session.waits.rolled_out(service, task_definition)
    return StageResult.succeeded(f"The service {definition.name} is deployed")


async def stop_all(session: Session, service: Body) -> int:
    """Stops all tasks of a service and returns how many it had."""
    count = await session.store_count(service, recreates=True)
    tasks = counted(count, "task", "tasks, all of them")
    session.log(f"Stopping {tasks}, because quickSync.recreate is set")
    await session.ecs.scale_service(session.service.cluster, session.service.name, 0)
    await session.waits.empty(session.service.cluster, session.service.name)
    return count
