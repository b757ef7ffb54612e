# SPDX-License-Identifier: Apache-2.0
"""The stage ECS_ROLLBACK: the running commit serves all traffic again."""

import json

from pipecd.plugins.ecs import rolling
from pipecd.plugins.ecs.api import read_tags
from pipecd.plugins.ecs.definitions import EXTERNAL, ServiceDefinition, load_definitions
from pipecd.plugins.ecs.routing import restore_traffic
from pipecd.plugins.ecs.session import CREATED_SERVICE, DESIRED_COUNT, Session
from pipecd.plugins.ecs.stages import start_primary
from pipecd.sdk import StageResult, UserMistake
from pipecd.sdk.aws import APPLICATION_TAG, AwsDenied
from pipecd.sdk.counts import counted


async def rollback(session: Session) -> StageResult:
    """Restores the service of the running commit; `session` has its definitions."""
    if session.definitions.service is None:
        # A task that has run cannot be undone, but whoever starts the next one gets the old one.
        arn = await session.register()
        done = f"The task definition {arn} is the newest again"
    else:
        failed = await _failed_service(session)
        count = await _original_count(session, failed)
        if session.service.controller == EXTERNAL:
            await _restore_task_sets(session, count)
        else:
            await rolling.deploy(session, recreate=False, desired_count=count)
        done = f"The service {session.service.name} is rolled back"
    await _delete_created(session)
    return StageResult.succeeded(done)


async def _restore_task_sets(session: Session, count: int | None) -> None:
    service = await session.apply_service(desired_count=count)
    group = session.target_group("primary")
    before = await session.ecs.task_sets(service)
    primary = next((each for each in before if each.is_primary), None)
    is_kept = primary and primary.is_managed and primary.commit == session.source.commit
    replaced = await session.replaced(
        each
        for each in before
        if (each.is_primary and not is_kept) or (each.is_managed and not each.is_primary)
    )
    if primary and is_kept:
        session.log("The primary task set is of the running commit")
    else:
        primary = await start_primary(session, service, await session.register(), group)
    await restore_traffic(session, group)
    await session.delete_task_sets(service, replaced)
    await session.waits.stable(service, primary)


async def _failed_service(session: Session) -> ServiceDefinition | None:
    """Returns the service of the failed commit, None if it has none or cannot be read."""
    try:
        failed = await load_definitions(session.stage.target, session.stage.plugin.name)
    except UserMistake:
        return None
    return failed.service


def restored_count(stored: int, current: int, failed: int) -> int | None:
    """Returns the number of tasks to restore, None to leave it as it is.

    `stored` tasks ran before a deployment that set `failed` tasks, or stopped them all. Any other
    number that is not lower was chosen by autoscaling since then.
    """
    return stored if current < stored or current == failed else None


async def _original_count(session: Session, failed: ServiceDefinition | None) -> int | None:
    """Returns how many tasks the service had, if the failed deployment changed the number."""
    stored = await session.stage.shared.get(DESIRED_COUNT)
    definition = session.service
    if not stored or definition.desired_count:
        return None
    current = await session.ecs.find_service(definition.cluster, definition.name)
    if current is None:
        return int(stored)
    count = restored_count(
        int(stored), int(current["desiredCount"]), failed.desired_count if failed else 0
    )
    if count is not None:
        session.log(f"The service gets {counted(count, 'task')} again")
    return count


async def _delete_created(session: Session) -> None:
    """Deletes a service that the failed commit named otherwise: its tasks may get traffic."""
    stored = await session.stage.shared.get(CREATED_SERVICE)
    if not stored:
        return
    cluster, name = json.loads(stored)
    running = session.definitions.service
    if running is not None and (running.cluster, running.name) == (cluster, name):
        return
    created = await session.ecs.find_service(cluster, name)
    if created is None:
        return
    if read_tags(created).get(APPLICATION_TAG) != session.stage.deployment.application_id:
        session.log(f"The service {name} has tags of somebody else, so it stays: check it")
        return
    session.log(f"Deleting the service {name}, which the failed deployment has created")
    try:
        await session.ecs.delete_service(created)
    except AwsDenied as e:
        session.log(f"All tasks of the service {name} are stopped instead: {e}")
        await session.ecs.scale_service(cluster, name, 0)
