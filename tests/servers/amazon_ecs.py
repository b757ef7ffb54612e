# SPDX-License-Identifier: Apache-2.0
"""What ECS and Elastic Load Balancing do and moto does not."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from servers.amazon import ACCOUNT, REGION, Call, Parameters, Refusal
from servers.amazon_rollouts import Rollouts

# An EXTERNAL service is updated by task sets.
_BY_TASK_SETS = (
    *("launchType", "loadBalancers", "networkConfiguration", "platformVersion"),
    *("serviceRegistries", "taskDefinition"),
)
# Settings of a service that moto forgets.
_KEPT = (
    *("capacityProviderStrategy", "deploymentConfiguration", "enableECSManagedTags"),
    *("enableExecuteCommand", "healthCheckGracePeriodSeconds"),
    *("placementConstraints", "placementStrategy", "availabilityZoneRebalancing"),
)
# AWS allows `startedBy` only alone.
_OTHER_FILTERS = ("containerInstance", "desiredStatus", "family", "launchType", "serviceName")
_CREATED_AT = 1700000000
_MAX_TOKEN = 36
_MAX_DESCRIBED_SERVICES, _MAX_DESCRIBED_TASKS, _MAX_WEIGHT, _MAX_GROUPS = 10, 100, 999, 5


def ecs_backend(region: str = REGION) -> Any:
    """Returns the resources of ECS in moto."""
    from moto.ecs.models import ecs_backends

    return ecs_backends[ACCOUNT][region]


def elb_backend(region: str = REGION) -> Any:
    """Returns the resources of Elastic Load Balancing in moto."""
    from moto.elbv2.models import elbv2_backends

    return elbv2_backends[ACCOUNT][region]


@dataclass
class EcsRules:
    """Services count the tasks that their task sets run; a task of a `failing` image stops."""

    failing: dict[str, str] = field(default_factory=dict[str, str])
    kept: dict[str, Parameters] = field(default_factory=dict[str, Parameters])
    standalone: dict[str, Parameters] = field(default_factory=dict[str, Parameters])
    is_slow: bool = False
    """Whether tasks take a long time to start."""
    requires_force: bool = True
    """Whether a task set with tasks is deleted only with force, as AWS does."""
    rollouts: Rollouts = field(default_factory=Rollouts)
    _created: dict[tuple[str, str, str], Parameters] = field(
        default_factory=dict[tuple[str, str, str], Parameters]
    )
    """The answers to creations with a token, which a repeated request gets again."""

    def __post_init__(self) -> None:
        from moto.ecs.models import EC2ContainerServiceBackend

        # Tasks are made by `_tasks` and `_run`.
        EC2ContainerServiceBackend.run_task = lambda *_, **__: []

    def reset(self) -> None:
        self.failing.clear()
        self.kept.clear()
        self.standalone.clear()
        self.rollouts.reset()
        self._created.clear()
        self.is_slow, self.requires_force = False, True
        ecs_backend().reset()

    def check(self, call: Call) -> None:
        given = call.parameters
        if len(given.get("clientToken", "")) > _MAX_TOKEN and call.operation != "RunTask":
            raise _invalid("clientToken: up to 36 characters are allowed.")
        if _creation(call) in self._created:
            return
        match call.operation:
            case "CreateService":
                self._check_service(call)
            case "UpdateService":
                service = self._service(call, given["service"])
                wrong = [name for name in _BY_TASK_SETS if name in given]
                if _is_external(service) and wrong:
                    raise _invalid(f"{wrong[0]} cannot be updated with an EXTERNAL controller.")
            case "CreateTaskSet":
                self._check_task_set(call)
            case "DeleteTaskSet" | "UpdateServicePrimaryTaskSet":
                self._check_chosen_task_set(call)
            case _:
                self._check_read(call)

    def _check_read(self, call: Call) -> None:
        given = call.parameters
        match call.operation:
            case "DescribeServices":
                if not 0 < len(given["services"]) <= _MAX_DESCRIBED_SERVICES:
                    raise _invalid("services: 1 to 10 are allowed.")
                self._cluster(call)
            case "DescribeTasks":
                if not 0 < len(given["tasks"]) <= _MAX_DESCRIBED_TASKS:
                    raise _invalid("tasks: 1 to 100 are allowed.")
            case "ListTasks":
                if "startedBy" in given and any(name in given for name in _OTHER_FILTERS):
                    raise _invalid("startedBy cannot be combined with other filters.")
                self._cluster(call)
            case "DescribeTaskSets" | "RunTask" | "ListServices":
                self._cluster(call)
            case _:
                pass

    def replace(self, call: Call) -> Parameters | None:
        given = call.parameters
        match call.operation:
            case "CreateService" | "CreateTaskSet":
                return self._created.get(_creation(call))
            case "RunTask":
                return {"tasks": [self._run(call)], "failures": []}
            case "ListTasks":
                return _page(given, "taskArns", list(self._listed_tasks(call)))
            case "DescribeTasks":
                known = {task["taskArn"]: task for task in self._tasks(call)} | self.standalone
                found = [known[arn] for arn in given["tasks"] if arn in known]
                missing = [arn for arn in given["tasks"] if arn not in known]
                failures = [{"arn": arn, "reason": "MISSING"} for arn in missing]
                return {"tasks": found, "failures": failures}
            case _:
                return None

    def amend(self, call: Call, answer: Parameters) -> None:
        if "service" in answer and call.operation in ("CreateService", "UpdateService"):
            kept = self.kept.setdefault(answer["service"]["serviceArn"], {})
            kept |= {name: call.parameters[name] for name in _KEPT if name in call.parameters}
            definition = self._service(call, answer["service"]["serviceName"]).task_definition
            if definition:
                self.rollouts.begin(answer["service"]["serviceArn"], definition)
        for document in (*answer.get("services", ()), answer.get("service")):
            if document:
                self._amend_service(call, document)
        if "taskSets" in answer:
            service = self._service(call, call.parameters["service"])
            for document in answer["taskSets"]:
                self._amend_task_set(call, service, document)
                if "TAGS" not in call.parameters.get("include", ()):
                    document.pop("tags", None)
        if call.operation.startswith("Create") and call.parameters.get("clientToken"):
            self._created[_creation(call)] = answer

    def _check_service(self, call: Call) -> None:
        given = call.parameters
        self._cluster(call)
        external = given.get("deploymentController", {}).get("type") == "EXTERNAL"
        wrong = [name for name in _BY_TASK_SETS if external and name in given]
        if wrong:
            raise _invalid(f"{wrong[0]} cannot be set with an EXTERNAL controller.")
        if not external and not given.get("taskDefinition"):
            raise _invalid("TaskDefinition can not be blank.")
        name = f"{_name(given.get('cluster', 'default'))}:{given['serviceName']}"
        known = ecs_backend(call.region).services.get(name)
        if known is not None and known.status == "ACTIVE":
            raise _invalid("Creation of service was not idempotent.")

    def _check_task_set(self, call: Call) -> None:
        given = call.parameters
        service = self._service(call, given["service"])
        if not _is_external(service):
            raise _invalid("Task sets need a service with the EXTERNAL deployment controller.")
        if not 0 <= given.get("scale", {}).get("value", 100) <= 100:
            raise _invalid("The scale must be between 0 and 100 percent.")
        for group in given.get("loadBalancers", ()):
            known = elb_backend(call.region).target_groups.get(group["targetGroupArn"])
            if known is None or not known.load_balancer_arns:
                raise _invalid(
                    f"The target group with targetGroupArn {group['targetGroupArn']} does not "
                    "have an associated load balancer."
                )
            if "containerName" not in group or "containerPort" not in group:
                raise _invalid("containerName and containerPort must be set.")

    def _check_chosen_task_set(self, call: Call) -> None:
        service = self._service(call, call.parameters["service"])
        arn = call.parameters.get("taskSet") or call.parameters["primaryTaskSet"]
        found = [each for each in service.task_sets if arn in (each.task_set_arn, each.id)]
        if not found:
            raise Refusal("TaskSetNotFoundException", "The specified task set isn't found.")
        is_primary = found[0].status == "PRIMARY"
        if call.operation == "UpdateServicePrimaryTaskSet":
            if is_primary:
                raise _invalid("The task set is the primary one already.")
            return
        if is_primary:
            raise _invalid("The primary task set cannot be deleted.")
        is_forced = call.parameters.get("force") or not self.requires_force
        if not is_forced and found[0].scale["value"]:
            raise _invalid("The task set must be scaled down to 0, or deleted with force.")

    def _cluster(self, call: Call) -> Any:
        name = _name(call.parameters.get("cluster", "default"))
        try:
            return ecs_backend(call.region).clusters[name]
        except KeyError:
            raise Refusal("ClusterNotFoundException", "Cluster not found.") from None

    def _service(self, call: Call, name_or_arn: str) -> Any:
        cluster = self._cluster(call)
        found = ecs_backend(call.region).services.get(f"{cluster.name}:{_name(name_or_arn)}")
        if found is None:
            raise Refusal("ServiceNotFoundException", "Service not found.")
        if found.status != "ACTIVE":
            raise Refusal("ServiceNotActiveException", "Service was not ACTIVE.")
        return found

    def _amend_service(self, call: Call, document: Parameters) -> None:
        name = f"{_name(document['clusterArn'])}:{document['serviceName']}"
        service = ecs_backend(call.region).services[name]
        document |= self.kept.get(document["serviceArn"], {})
        for task_set in document.get("taskSets", ()):
            self._amend_task_set(call, service, task_set)
        if _is_external(service):
            running = sum(each["runningCount"] for each in document.get("taskSets", ()))
            document["taskDefinition"] = ""
        else:
            arn, breaker = document["serviceArn"], document.get("deploymentConfiguration", {})
            if call.operation == "DescribeServices":
                breaker = breaker.get("deploymentCircuitBreaker", {})
                self.rollouts.read(arn, service, breaker, lambda each: self._fails(call, each))
                document["taskDefinition"] = service.task_definition
            document["deployments"], running = self.rollouts.shown(
                arn, service.desired_count, lambda each: self._fails(call, each)
            )
        is_active = document["status"] == "ACTIVE"
        document |= {"runningCount": running if is_active else 0, "pendingCount": 0}
        # Upstream's piped crashes without it.
        document.setdefault("createdAt", _CREATED_AT)

    def _amend_task_set(self, call: Call, service: Any, document: Parameters) -> None:
        desired = math.ceil(service.desired_count * document["scale"]["value"] / 100)
        reason = self._reason(call, document["taskDefinition"])
        document |= {
            "computedDesiredCount": desired,
            "runningCount": 0 if reason or self.is_slow else desired,
            "pendingCount": 0,
            "stabilityStatus": "STABILIZING"
            if desired and (reason or self.is_slow)
            else "STEADY_STATE",
        }

    def _reason(self, call: Call, task_definition: str) -> str:
        """Returns why the tasks of a task definition stop."""
        found = ecs_backend(call.region).describe_task_definition(task_definition)
        images = [container["image"] for container in found.container_definitions]
        return next((self.failing[image] for image in images if image in self.failing), "")

    def _fails(self, call: Call, task_definition: str) -> bool:
        return self.is_slow or bool(self._reason(call, task_definition))

    def _run(self, call: Call) -> Parameters:
        cluster, definition = self._cluster(call), call.parameters["taskDefinition"]
        reason = self._reason(call, definition)
        described = ecs_backend(call.region).describe_task_definition(definition)
        task = _task(cluster, "", "standalone", described.arn, reason, len(self.standalone))
        task["group"] = f"family:{described.family}"
        self.standalone[task["taskArn"]] = task
        return {**task, "lastStatus": "PROVISIONING"}

    def _listed_tasks(self, call: Call) -> Iterator[str]:
        given = call.parameters
        service = f"service:{_name(given.get('serviceName', ''))}"
        for task in (*self._tasks(call), *self.standalone.values()):
            if (
                task["desiredStatus"] == given.get("desiredStatus", "RUNNING")
                and given.get("startedBy") in (None, task["startedBy"])
                and service in ("service:", task["group"])
            ):
                yield task["taskArn"]

    def _tasks(self, call: Call) -> Iterator[Parameters]:
        """Yields the tasks that all services of the cluster run, and those that have stopped."""
        cluster = self._cluster(call)
        for service in ecs_backend(call.region).services.values():
            if service.cluster_name != cluster.name or service.status != "ACTIVE":
                continue
            sets = [(each.id, each.task_definition, each.scale) for each in service.task_sets]
            if not _is_external(service):
                deployments = self.rollouts.of(service.arn)
                sets = [
                    (each["id"], each["taskDefinition"], {"value": 100}) for each in deployments
                ]
            for started_by, definition, scale in sets:
                reason = self._reason(call, definition)
                desired = math.ceil(service.desired_count * scale["value"] / 100)
                for number in range(desired):
                    yield _task(cluster, service.name, started_by, definition, reason, number)


def _task(
    cluster: Any, service: str, started_by: str, definition: str, reason: str, number: int
) -> Parameters:
    prefix = cluster.arn.replace(":cluster/", ":task/")
    task: Parameters = {
        "taskArn": f"{prefix}/of-{_name(started_by)}-{number}",
        "clusterArn": cluster.arn,
        "taskDefinitionArn": definition,
        "startedBy": started_by,
        "group": f"service:{service}",
        "launchType": "FARGATE",
        "lastStatus": "STOPPED" if reason else "RUNNING",
        "desiredStatus": "STOPPED" if reason else "RUNNING",
        "healthStatus": "UNKNOWN" if reason else "HEALTHY",
        "createdAt": _CREATED_AT + number,
        "containers": [{"name": "web", "lastStatus": "STOPPED" if reason else "RUNNING"}],
    }
    if reason:
        task |= {"stoppedReason": reason, "stopCode": "TaskFailedToStart", "stoppedAt": 1700000009}
    return task


@dataclass
class ElbRules:
    """Weights, default rules and secrets of listeners, and the health of targets."""

    unhealthy: dict[str, tuple[str, str, str]] = field(
        default_factory=dict[str, tuple[str, str, str]]
    )
    """The state, reason and description of targets that are not healthy, by id."""

    def __post_init__(self) -> None:
        from moto.elbv2.models import FakeHealthStatus, FakeTargetGroup

        by_moto: Any = FakeTargetGroup.health_for

        def health_for(group: Any, target: Any, ec2: Any) -> Any:
            if (said := self.unhealthy.get(target["Id"])) is None:
                return by_moto(group, target, ec2)
            return FakeHealthStatus(target["Id"], target["Port"], group.health_check_port, *said)

        FakeTargetGroup.health_for = health_for

    def reset(self) -> None:
        self.unhealthy.clear()
        elb_backend().reset()

    def check(self, call: Call) -> None:
        given = call.parameters
        actions = given.get("Actions") or given.get("DefaultActions") or ()
        for action in actions:
            _check_action(action, is_new=call.operation.startswith("Create"))
        if call.operation == "ModifyRule":
            rules = [
                rule
                for balancer in elb_backend(call.region).load_balancers.values()
                for listener in balancer.listeners.values()
                for rule in listener._default_rule.values()
            ]
            if any(rule.arn == given["RuleArn"] for rule in rules):
                raise Refusal("OperationNotPermitted", "Default rules cannot be modified.")

    def replace(self, call: Call) -> Parameters | None:
        return None

    def amend(self, call: Call, answer: Parameters) -> None:
        return


def _check_action(action: Parameters, *, is_new: bool) -> None:
    groups = action.get("ForwardConfig", {}).get("TargetGroups", ())
    if len(groups) > _MAX_GROUPS:
        raise Refusal("TooManyTargetGroups", "A forward action has at most 5 target groups.")
    if any(not 0 <= group.get("Weight", 1) <= _MAX_WEIGHT for group in groups):
        raise Refusal("ValidationError", "A weight must be between 0 and 999.")
    if len({group["TargetGroupArn"] for group in groups}) != len(groups):
        raise Refusal("ValidationError", "A target group is listed twice.")
    sole = action.get("TargetGroupArn")
    if sole and groups and [group["TargetGroupArn"] for group in groups] != [sole]:
        raise Refusal("ValidationError", "TargetGroupArn and ForwardConfig must be the same.")
    oidc = action.get("AuthenticateOidcConfig")
    if oidc and "ClientSecret" not in oidc and (is_new or not oidc.get("UseExistingClientSecret")):
        raise Refusal("ValidationError", "The client secret is missing.")


def _is_external(service: Any) -> bool:
    return service.deployment_controller["type"] == "EXTERNAL"


def _creation(call: Call) -> tuple[str, str, str]:
    """Returns what makes two creations the same."""
    given = call.parameters
    place = given.get("serviceName") or given.get("service", "")
    return call.operation, _name(place), given.get("clientToken", "")


def _invalid(message: str) -> Refusal:
    return Refusal("InvalidParameterException", message)


def _name(arn: str) -> str:
    return arn.rpartition("/")[2]


def _page(given: Parameters, key: str, elements: list[str]) -> Parameters:
    begin, size = int(given.get("nextToken", 0)), given.get("maxResults", 100)
    page: Parameters = {key: elements[begin : begin + size]}
    return page | ({"nextToken": str(begin + size)} if begin + size < len(elements) else {})


def task_definition(image: str, *, family: str = "web", **more: Any) -> str:
    """Returns a file with a task definition of one container."""
    container = {
        "name": "web",
        "image": image,
        "essential": True,
        "portMappings": [{"containerPort": 80, "protocol": "tcp"}],
        "memory": 512,
    }
    return json.dumps(
        {
            "family": family,
            "containerDefinitions": [container],
            "requiresCompatibilities": ["FARGATE"],
            "networkMode": "awsvpc",
            "cpu": 256,
            "memory": 512,
            **more,
        }
    )
