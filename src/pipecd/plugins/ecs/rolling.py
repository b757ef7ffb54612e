# SPDX-License-Identifier: Apache-2.0
"""Services whose tasks ECS replaces itself, with rolling updates."""

from pipecd.plugins.ecs.api import read_tags
from pipecd.plugins.ecs.definitions import ROLLING
from pipecd.plugins.ecs.session import DESIRED_COUNT, Session, require_deployable
from pipecd.sdk import StageResult, UserMistake
from pipecd.sdk.unstructured import text_at


async def deploy(session: Session, *, recreate: bool) -> StageResult:
    """Lets ECS replace the tasks of a service, and waits until it has."""
    definition, tags = session.service, session.service_tags
    if definition.controller != ROLLING:
        raise UserMistake(
            f"the service {definition.name} has the deployment controller {definition.controller}",
            hint="set deploymentController.type in the service definition to EXTERNAL or ECS",
        )
    group = session.target_group("primary")
    task_definition = await session.register()
    current = await session.ecs.find_service(definition.cluster, definition.name)
    if current is None:
        session.log(f"Creating the service {definition.name}")
        await session.ecs.create_service(
            definition, tags, task_definition=task_definition, group=group
        )
    else:
        require_deployable(current, definition)
        count = None
        if recreate:
            stored = await session.stage.shared.get(DESIRED_COUNT)
            count = int(stored) if stored else int(current["desiredCount"])
            await session.stage.shared.put({DESIRED_COUNT: str(count)})
            session.log(f"Stopping all {count} tasks, because quickSync.recreate is set")
            await session.ecs.scale_service(definition.cluster, definition.name, 0)
            await session.waits.empty(definition.cluster, definition.name)
        session.log(f"Updating the service {definition.name}")
        await session.ecs.update_service(
            definition,
            task_definition=task_definition,
            group=group,
            desired_count=definition.desired_count or count,
        )
        await session.ecs.replace_tags(text_at(current, "serviceArn"), read_tags(current), tags)
    session.log("Waiting until ECS has replaced the tasks")
    await session.waits.stable(definition.cluster, definition.name)
    return StageResult.succeeded(f"The service {definition.name} is deployed")
