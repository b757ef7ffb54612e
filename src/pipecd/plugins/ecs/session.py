# SPDX-License-Identifier: Apache-2.0
"""One stage on one account: its definitions, its requests, and what it has done before.

A stage may be killed at any request and run again. It finds its task definition by the metadata of
the stage, and its task set by that task definition, because every stage registers a revision of
its own.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID, uuid5

from pipecd.plugins.ecs.api import MANAGED_BY, V0_MANAGED_BY, Ecs, TaskSet, read_tags
from pipecd.plugins.ecs.config import TargetGroup
from pipecd.plugins.ecs.definitions import ROLLING, Definitions, ServiceDefinition
from pipecd.plugins.ecs.traffic import Listeners
from pipecd.plugins.ecs.waits import Waits
from pipecd.sdk import Source, StageContext, UserMistake
from pipecd.sdk.aws import AwsAccount, AwsMissing, AwsRejection, Polling, ownership_tags
from pipecd.sdk.unstructured import Body, text_at

_TASK_DEFINITION, _REPLACED = "task-definition", "replaced-task-sets"
# How many tasks the service had before this deployment set another number.
DESIRED_COUNT = "desired-count"
# The service that this deployment has created, as [cluster, name].
CREATED_SERVICE = "created-service"
_TOKENS = UUID("6f1c5a0e-52a8-4c55-9b0e-0a4f8f4e7c11")
_V1_KIND = "Application"


@dataclass(frozen=True)
class Session:
    """A stage with the definitions of one commit: the target, or the running one to roll back."""

    stage: StageContext
    source: Source
    definitions: Definitions
    account: AwsAccount
    polling: Polling

    @property
    def ecs(self) -> Ecs:
        """The requests to ECS."""
        return Ecs(self.account)

    @property
    def waits(self) -> Waits:
        """The waits for ECS."""
        return Waits(self.ecs, self.polling, self.log)

    @property
    def listeners(self) -> Listeners:
        """The listeners of load balancers."""
        return Listeners(self.account)

    @property
    def service(self) -> ServiceDefinition:
        """The service definition, which the stage needs."""
        if self.definitions.service is None:
            raise UserMistake(
                f"the stage {self.stage.name} needs a service",
                hint="set serviceDefinitionFile in the input of the application",
            )
        return self.definitions.service

    @property
    def tags(self) -> dict[str, str]:
        """The tags that mark what this piped deploys, with the commit that is deployed."""
        return ownership_tags(
            piped_id=self.stage.deployment.piped_id,
            application_id=self.stage.deployment.application_id,
            commit=self.source.commit,
            managed_by=MANAGED_BY if self.source.kind == _V1_KIND else V0_MANAGED_BY,
        )

    @property
    def service_tags(self) -> dict[str, str]:
        """The tags of the service and its task sets."""
        return {**self.service.tags, **self.tags}

    def log(self, line: str) -> None:
        """Writes to the stage log."""
        self.stage.log.info(line)

    def token(self, *what: str) -> str:
        """Returns a token for a creation; AWS carries it out only once in this stage."""
        stage = self.stage
        names = (stage.deployment.id, stage.id, stage.name, self.source.commit, *what)
        return str(uuid5(_TOKENS, "/".join(names)))

    def target_group(self, variant: str) -> TargetGroup | None:
        """Returns the target group of a variant; None if the service is not behind a balancer."""
        given = self.definitions.settings.input
        if given.access_type != "ELB":
            return None
        groups = given.target_groups
        return groups.primary if variant == "primary" else groups.canary

    def required_target_group(self, variant: str) -> TargetGroup | None:
        """Returns the target group of a variant, which a service behind a balancer must have."""
        group = self.target_group(variant)
        if group is None and self.definitions.settings.input.access_type == "ELB":
            raise UserMistake(
                f"the stage {self.stage.name} needs the target group of {variant}",
                hint=f"set targetGroups.{variant} in the input, or accessType: SERVICE_DISCOVERY",
            )
        return group

    async def register(self) -> str:
        """Registers the task definition once in this stage and returns its ARN."""
        known = await self.stage.metadata.get(_TASK_DEFINITION)
        if known:
            return known
        arn = await self.ecs.register(self.definitions.task)
        await self.stage.metadata.put({_TASK_DEFINITION: arn})
        self.log(f"Registered the task definition {arn}")
        return arn

    async def apply_service(self, *, desired_count: int | None = None) -> Body:
        """Creates or updates a service whose tasks are started by task sets."""
        definition, tags = self.service, self.service_tags
        current = await self.ecs.find_service(definition.cluster, definition.name)
        if current is None:
            return await self.create_service(desired_count=desired_count)
        require_deployable(current, definition)
        await self.store_count(current)
        self.log(f"Updating the service {definition.name}")
        service = await self.ecs.update_service(definition, desired_count=desired_count)
        await self.ecs.replace_tags(text_at(service, "serviceArn"), read_tags(current), tags)
        return service

    async def create_service(
        self,
        *,
        task_definition: str = "",
        group: TargetGroup | None = None,
        desired_count: int | None = None,
    ) -> Body:
        """Creates the service; a rollback to another one deletes it again."""
        definition = self.service
        if not self.stage.is_rollback:
            place = json.dumps([definition.cluster, definition.name])
            await self.stage.shared.put({CREATED_SERVICE: place})
        self.log(f"Creating the service {definition.name}")
        return await self.ecs.create_service(
            definition,
            self.service_tags,
            token=self.token("service", definition.cluster, definition.name),
            task_definition=task_definition,
            group=group,
            desired_count=desired_count,
        )

    async def store_count(self, service: Body, *, recreates: bool = False) -> int:
        """Stores how many tasks a service has, if this deployment changes the number.

        Autoscaling may own the number, which only the service knows. Returns what is stored.
        """
        stored = await self.stage.shared.get(DESIRED_COUNT)
        count = int(stored) if stored else int(service["desiredCount"])
        changes = recreates or self.service.desired_count not in (0, count)
        if stored is None and changes and not self.stage.is_rollback:
            await self.stage.shared.put({DESIRED_COUNT: str(count)})
        return count

    async def create_task_set(
        self, service: Body, task_definition: str, *, scale: float, group: TargetGroup | None
    ) -> TaskSet:
        """Creates the task set of this stage, or finds the one that it has created before."""
        existing = [
            each
            for each in await self.ecs.task_sets(service)
            if each.task_definition == task_definition
        ]
        if existing:
            self.log(f"Continuing with the task set {existing[0].arn}")
            return existing[0]
        created = await self.ecs.create_task_set(
            service,
            self.service,
            task_definition,
            self.service_tags,
            token=self.token("task set", task_definition),
            scale=scale,
            group=group,
        )
        self.log(f"Created the task set {created.arn} with {scale:g}% of the tasks")
        return created

    async def replaced(self, task_sets: Iterable[TaskSet]) -> list[dict[str, str]]:
        """Remembers which task sets this stage replaces, so that a restart finds them again."""
        stored = await self.stage.metadata.get(_REPLACED)
        if stored is None:
            stored = json.dumps(
                [{"arn": each.arn, "task": each.task_definition} for each in task_sets]
            )
            await self.stage.metadata.put({_REPLACED: stored})
        return json.loads(stored)

    async def delete_task_sets(self, service: Body, replaced: Sequence[dict[str, str]]) -> None:
        """Deletes task sets, and marks the task definitions inactive that nothing uses any more."""
        cluster, arn = text_at(service, "clusterArn"), text_at(service, "serviceArn")
        for each in replaced:
            self.log(f"Deleting the task set {each['arn']}")
            await self.ecs.delete_task_set(cluster, arn, each["arn"])
        used = {each.task_definition for each in await self.ecs.task_sets(service)}
        for task_definition in {each["task"] for each in replaced} - used:
            try:
                await self.ecs.deregister(task_definition)
            except (AwsMissing, AwsRejection) as e:
                self.log(f"The task definition {task_definition} stays active: {e}")


def require_deployable(service: Body, definition: ServiceDefinition) -> None:
    """Refuses a service that is being deleted, or that starts its tasks in another way."""
    if text_at(service, "status") != "ACTIVE":
        raise UserMistake(
            f"the service {definition.name} is {text_at(service, 'status')}",
            hint="wait until it is deleted and deploy again, which creates it anew",
        )
    controller = text_at(service.get("deploymentController"), "type") or ROLLING
    if controller != definition.controller:
        raise UserMistake(
            f"the service {definition.name} exists with the deployment controller {controller}",
            hint="AWS cannot change it: set the same one in the service definition, or delete the "
            "service",
        )
