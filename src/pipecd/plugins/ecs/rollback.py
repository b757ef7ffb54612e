# SPDX-License-Identifier: Apache-2.0
"""The stage ECS_ROLLBACK: the running commit serves all traffic again."""

from pipecd.plugins.ecs import rolling
from pipecd.plugins.ecs.definitions import EXTERNAL
from pipecd.plugins.ecs.routing import restore_traffic
from pipecd.plugins.ecs.session import DESIRED_COUNT, Session
from pipecd.plugins.ecs.stages import start_primary
from pipecd.sdk import StageResult
from pipecd.sdk.unstructured import Body


async def rollback(session: Session) -> StageResult:
    """Restores the service of the running commit; `session` has its definitions."""
    if session.definitions.service is None:
        # A task that has run cannot be undone, but whoever starts the next one gets the old one.
        arn = await session.register()
        return StageResult.succeeded(f"The task definition {arn} is the newest again")
    if session.service.controller != EXTERNAL:
        await rolling.deploy(session, recreate=False)
        if await _restore_count(session):
            await session.waits.stable(session.service.cluster, session.service.name)
        return StageResult.succeeded(f"The service {session.service.name} is rolled back")
    service = await session.apply_service()
    await _restore_count(session)
    group = session.target_group("primary")
    before = await session.ecs.task_sets(service)
    primary = next((each for each in before if each.is_primary), None)
    is_kept = primary and primary.is_managed and primary.commit == session.source.commit
    replaced = await session.replaced(
        each
        for each in before
        if (each.is_primary and not is_kept) or (each.is_managed and not each.is_primary)
    )
    if is_kept:
        session.log("The primary task set is of the running commit")
    else:
        await start_primary(session, service, await session.register(), group)
    await restore_traffic(session, group)
    await session.delete_task_sets(service, replaced)
    await session.waits.stable(session.service.cluster, session.service.name)
    return StageResult.succeeded(f"The service {session.service.name} is rolled back")


async def _restore_count(session: Session) -> bool:
    """Lets as many tasks run as before a stage stopped all of them; returns whether it did."""
    stored = await session.stage.shared.get(DESIRED_COUNT)
    definition = session.service
    if not stored or definition.desired_count:
        return False
    current: Body = await session.ecs.find_service(definition.cluster, definition.name) or {}
    if current.get("desiredCount"):
        return False
    session.log(f"Starting {stored} tasks again")
    await session.ecs.scale_service(definition.cluster, definition.name, int(stored))
    return True
