# SPDX-License-Identifier: Apache-2.0
"""The requests to ECS: task definitions, services, task sets and tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.ecs.config import TargetGroup
from pipecd.plugins.ecs.definitions import EXTERNAL, ServiceDefinition, TaskDefinition
from pipecd.sdk import UserMistake
from pipecd.sdk.aws import COMMIT_TAG, MANAGED_BY_TAG, AwsAccount, AwsMissing, AwsRejection
from pipecd.sdk.unstructured import Body, list_at, text_at

# The values of the tag that mark what a piped deploys: of the first and of the second generation.
V0_MANAGED_BY, MANAGED_BY = "piped", "piped-ecs-plugin"
_MANAGED_BY = frozenset({V0_MANAGED_BY, MANAGED_BY})
# AWS writes such tags itself, and refuses to remove them.
_RESERVED_TAGS = "aws:"
# The task sets of an EXTERNAL service have these settings, not the service.
_OF_TASK_SETS = (
    *("capacityProviderStrategy", "launchType", "networkConfiguration", "platformVersion"),
    "serviceRegistries",
)
_NOT_OF_EXTERNAL_SERVICES = (*_OF_TASK_SETS, "loadBalancers", "taskDefinition", "tags")
_UPDATED = (
    *("healthCheckGracePeriodSeconds", "placementConstraints", "placementStrategy"),
    "propagateTags",
)
_UPDATED_BY_ROLLING = (
    *_UPDATED,
    *("availabilityZoneRebalancing", "capacityProviderStrategy", "deploymentConfiguration"),
    *("loadBalancers", "networkConfiguration", "platformVersion", "serviceConnectConfiguration"),
    *("serviceRegistries", "volumeConfigurations", "vpcLatticeConfigurations"),
)
MAX_SERVICES, MAX_TASKS = 10, 100


@dataclass(frozen=True)
class TaskSet:
    """A task set of a service."""

    document: Body

    @property
    def arn(self) -> str:
        """The ARN of the task set."""
        return text_at(self.document, "taskSetArn")

    @property
    def id(self) -> str:
        """The id, which its tasks have as `startedBy`."""
        return text_at(self.document, "id")

    @property
    def task_definition(self) -> str:
        """The ARN of its task definition."""
        return text_at(self.document, "taskDefinition")

    @property
    def is_primary(self) -> bool:
        """Whether it is the one that the service has as primary."""
        return text_at(self.document, "status") == "PRIMARY"

    @property
    def is_steady(self) -> bool:
        """Whether all of its tasks run and are healthy."""
        return text_at(self.document, "stabilityStatus") == "STEADY_STATE"

    @property
    def tags(self) -> dict[str, str]:
        """The tags; they are read only by `task_sets`."""
        return read_tags(self.document)

    @property
    def is_managed(self) -> bool:
        """Whether a piped of either generation created it."""
        return self.tags.get(MANAGED_BY_TAG) in _MANAGED_BY

    @property
    def commit(self) -> str:
        """The commit that it was created for."""
        return self.tags.get(COMMIT_TAG, "")


def read_tags(document: Body) -> dict[str, str]:
    """Returns the tags of a resource."""
    return {text_at(tag, "key"): text_at(tag, "value") for tag in list_at(document, "tags")}


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Returns tags as ECS reads them."""
    return [{"key": key, "value": value} for key, value in tags.items()]


def load_balancers(group: TargetGroup | None) -> list[dict[str, Any]]:
    """Returns the target group as ECS reads it."""
    if group is None:
        return []
    document: dict[str, Any] = {
        "targetGroupArn": group.target_group_arn,
        "containerName": group.container_name,
        "containerPort": group.container_port,
    }
    if group.load_balancer_name:
        document["loadBalancerName"] = group.load_balancer_name
    return [document]


@dataclass(frozen=True)
class Ecs:
    """The requests to one account and region."""

    account: AwsAccount

    async def register(self, task: TaskDefinition) -> str:
        """Registers a new revision and returns its ARN."""
        answer = await self._call(
            "register_task_definition",
            about=f"the task definition {task.family}",
            **task.document,
        )
        return text_at(answer["taskDefinition"], "taskDefinitionArn")

    async def deregister(self, task_definition: str) -> None:
        """Marks a revision as inactive; its tasks continue to run."""
        await self._call(
            "deregister_task_definition",
            about=f"the task definition {task_definition}",
            taskDefinition=task_definition,
        )

    async def find_services(self, cluster: str, names: Sequence[str]) -> list[Body]:
        """Returns up to 10 services with their tags; those that are deleted are left out."""
        answer = await self._call(
            "describe_services",
            about=f"the service {', '.join(names)} in cluster {cluster}",
            cluster=cluster,
            services=list(names),
            include=["TAGS"],
        )
        return [each for each in answer["services"] if text_at(each, "status") != "INACTIVE"]

    async def find_service(self, cluster: str, name: str) -> Body | None:
        """Returns the service with its tags; None if there is none, or only a deleted one."""
        found = await self.find_services(cluster, [name])
        return found[0] if found else None

    async def create_service(
        self,
        service: ServiceDefinition,
        tags: Mapping[str, str],
        *,
        token: str,
        task_definition: str = "",
        group: TargetGroup | None = None,
        desired_count: int | None = None,
    ) -> Body:
        """Creates a service; one with rolling updates also gets its task definition.

        AWS creates only one for a token, also if the first answer is lost.
        """
        request = {key: value for key, value in service.document.items() if value != ""}
        if text_at(request, "schedulingStrategy") != "DAEMON":
            request["desiredCount"] = service.desired_count or desired_count or 0
        if service.controller == EXTERNAL:
            for key in _NOT_OF_EXTERNAL_SERVICES:
                request.pop(key, None)
        else:
            request["taskDefinition"] = task_definition
            request["loadBalancers"] = list_at(request, "loadBalancers") or load_balancers(group)
        request["tags"] = tag_list(tags)
        answer = await self._call(
            "create_service",
            about=f"the service {service.name} in cluster {service.cluster}",
            **{**request, "cluster": service.cluster, "clientToken": token},
        )
        return answer["service"]

    async def update_service(
        self,
        service: ServiceDefinition,
        *,
        task_definition: str = "",
        group: TargetGroup | None = None,
        desired_count: int | None = None,
    ) -> Body:
        """Updates a service; its number of tasks only if the file or the caller has one."""
        keys = _UPDATED if service.controller == EXTERNAL else _UPDATED_BY_ROLLING
        request: dict[str, Any] = {
            key: service.document[key] for key in keys if key in service.document
        }
        # A setting that is removed from the file is switched off.
        for key in ("enableECSManagedTags", "enableExecuteCommand"):
            request[key] = bool(service.document.get(key))
        if task_definition:
            request["taskDefinition"] = task_definition
            if groups := list_at(request, "loadBalancers") or load_balancers(group):
                request["loadBalancers"] = groups
        count = service.desired_count if desired_count is None else desired_count
        if count or desired_count is not None:
            request["desiredCount"] = count
        answer = await self._call(
            "update_service",
            about=f"the service {service.name} in cluster {service.cluster}",
            cluster=service.cluster,
            service=service.name,
            **request,
        )
        return answer["service"]

    async def delete_service(self, service: Body) -> None:
        """Deletes a service with its tasks."""
        name = text_at(service, "serviceName")
        await self._call(
            "delete_service",
            about=f"the service {name}",
            cluster=text_at(service, "clusterArn"),
            service=name,
            # Without it AWS refuses to delete a service that has tasks.
            force=True,
        )

    async def scale_service(self, cluster: str, service: str, count: int) -> None:
        """Sets the number of tasks of a service."""
        await self._call(
            "update_service",
            about=f"the service {service} in cluster {cluster}",
            cluster=cluster,
            service=service,
            desiredCount=count,
        )

    async def replace_tags(self, arn: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
        """Sets the tags of a service and removes all others, except those of AWS."""
        about = f"the tags of {arn}"
        removed = [key for key in old if key not in new and not key.startswith(_RESERVED_TAGS)]
        if removed:
            await self._call("untag_resource", about=about, resourceArn=arn, tagKeys=removed)
        if any(old.get(key) != value for key, value in new.items()):
            await self._call("tag_resource", about=about, resourceArn=arn, tags=tag_list(new))

    async def task_sets(self, service: Body) -> list[TaskSet]:
        """Returns the task sets of a service that are not being removed, with their tags."""
        arn = text_at(service, "serviceArn")
        answer = await self._call(
            "describe_task_sets",
            about=f"the task sets of {arn}",
            cluster=text_at(service, "clusterArn"),
            service=arn,
            include=["TAGS"],
        )
        sets = [TaskSet(each) for each in answer["taskSets"]]
        return [each for each in sets if text_at(each.document, "status") != "DRAINING"]

    async def task_set(self, service: Body, arn: str) -> TaskSet | None:
        """Returns a task set of a service, None if it is removed."""
        return next((each for each in await self.task_sets(service) if each.arn == arn), None)

    async def create_task_set(
        self,
        service: Body,
        definition: ServiceDefinition,
        task_definition: str,
        tags: Mapping[str, str],
        *,
        token: str,
        scale: float,
        group: TargetGroup | None,
    ) -> TaskSet:
        """Creates a task set with a share of the tasks of the service; only one for a token."""
        request = {
            key: definition.document[key] for key in _OF_TASK_SETS if definition.document.get(key)
        }
        if groups := load_balancers(group):
            request["loadBalancers"] = groups
        answer = await self._call(
            "create_task_set",
            about=f"a task set of the service {definition.name}",
            cluster=text_at(service, "clusterArn"),
            service=text_at(service, "serviceArn"),
            taskDefinition=task_definition,
            scale={"unit": "PERCENT", "value": scale},
            tags=tag_list(tags),
            clientToken=token,
            **request,
        )
        return TaskSet(answer["taskSet"])

    async def promote(self, service: Body, task_set: TaskSet) -> None:
        """Makes a task set the primary one of its service."""
        await self._call(
            "update_service_primary_task_set",
            about=f"the task set {task_set.arn}",
            cluster=text_at(service, "clusterArn"),
            service=text_at(service, "serviceArn"),
            primaryTaskSet=task_set.arn,
        )

    async def delete_task_set(self, cluster: str, service: str, arn: str) -> bool:
        """Deletes a task set with its tasks; returns False if it did not exist any more."""
        try:
            await self._call(
                "delete_task_set",
                about=f"the task set {arn}",
                cluster=cluster,
                service=service,
                taskSet=arn,
                # Without it AWS refuses to delete a task set that has tasks.
                force=True,
            )
        except AwsMissing as e:
            if e.code == "TaskSetNotFoundException":
                return False
            raise
        return True

    async def tasks(self, cluster: str, **selection: str) -> list[Body]:
        """Returns the tasks of a cluster that are selected."""
        arns = await self.account.collect(
            "ecs",
            "list_tasks",
            "taskArns",
            about=f"the tasks in cluster {cluster}",
            cluster=cluster,
            **selection,
        )
        return await self.describe_tasks(cluster, arns)

    async def describe_tasks(self, cluster: str, arns: Sequence[str]) -> list[Body]:
        """Returns tasks by their ARNs; those that do not exist any more are left out."""
        tasks: list[Body] = []
        for begin in range(0, len(arns), MAX_TASKS):
            answer = await self._call(
                "describe_tasks",
                about=f"the tasks in cluster {cluster}",
                cluster=cluster,
                tasks=list(arns[begin : begin + MAX_TASKS]),
            )
            tasks += answer["tasks"]
        return tasks

    async def run_task(self, **request: object) -> Body:
        """Runs one task and returns it."""
        answer = await self._call(
            "run_task", about=f"a task of {request['taskDefinition']}", **request
        )
        if not answer["tasks"]:
            reasons = {text_at(each, "reason") for each in list_at(answer, "failures")}
            raise UserMistake(
                f"the task was not started: {', '.join(sorted(reasons))}",
                hint="check the capacity of the cluster, and the needs of the task definition",
            )
        return answer["tasks"][0]

    async def _call(self, operation: str, *, about: str, **request: object) -> dict[str, Any]:
        try:
            return await self.account.call("ecs", operation, about=about, **request)
        except AwsMissing as e:
            if e.code == "ClusterNotFoundException":
                raise UserMistake(
                    f"the cluster {request.get('cluster', '')} does not exist in region "
                    f"{self.account.region}",
                    hint="create it, or correct the cluster in the service definition or the input",
                ) from e
            raise
        except AwsRejection as e:
            if e.code == "ClientException" and "inactive" in e.message.lower():
                raise UserMistake(
                    e.message, hint="somebody deregistered it; deploy again to register a new one"
                ) from e
            raise
