# SPDX-License-Identifier: Apache-2.0
"""The layer over moto: it refuses what AWS refuses, and answers what AWS answers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from servers.amazon import Amazon
from servers.amazon_ecs import EcsRules, task_definition

EXTERNAL = {"type": "EXTERNAL"}
FARGATE: dict[str, Any] = {"launchType": "FARGATE"}


@pytest.fixture
def ecs(amazon: Amazon) -> Any:
    client = amazon.client("ecs")
    client.create_cluster(clusterName="prod")
    document = json.loads(task_definition("nginx:1"))
    client.register_task_definition(**document | {"cpu": "256", "memory": "512"})
    client.create_service(
        cluster="prod", serviceName="web", desiredCount=3, deploymentController=EXTERNAL
    )
    return client


def task_set(ecs: Any, scale: float = 100, **more: Any) -> str:
    made = ecs.create_task_set(
        cluster="prod",
        service="web",
        taskDefinition="web:1",
        scale={"unit": "PERCENT", "value": scale},
        **FARGATE | more,
    )
    return made["taskSet"]["taskSetArn"]


def promote(ecs: Any, arn: str) -> None:
    ecs.update_service_primary_task_set(cluster="prod", service="web", primaryTaskSet=arn)


REFUSED: dict[str, tuple[str, Callable[[Any], object]]] = {
    "a service with a task definition and an external controller": (
        "InvalidParameterException",
        lambda ecs: ecs.create_service(
            cluster="prod", serviceName="b", taskDefinition="web:1", deploymentController=EXTERNAL
        ),
    ),
    "a service without a task definition": (
        "InvalidParameterException",
        lambda ecs: ecs.create_service(cluster="prod", serviceName="b", desiredCount=1),
    ),
    "a service that exists": (
        "InvalidParameterException",
        lambda ecs: ecs.create_service(
            cluster="prod", serviceName="web", deploymentController=EXTERNAL
        ),
    ),
    "a task definition of an external service": (
        "InvalidParameterException",
        lambda ecs: ecs.update_service(cluster="prod", service="web", taskDefinition="web:1"),
    ),
    "a target group without a load balancer": (
        "InvalidParameterException",
        lambda ecs: task_set(
            ecs, loadBalancers=[{"targetGroupArn": "t", "containerName": "w", "containerPort": 1}]
        ),
    ),
    "a scale of more than everything": (
        "InvalidParameterException",
        lambda ecs: task_set(ecs, 101),
    ),
    "a cluster that does not exist": (
        "ClusterNotFoundException",
        lambda ecs: ecs.describe_services(cluster="none", services=["web"]),
    ),
    "eleven services": (
        "InvalidParameterException",
        lambda ecs: ecs.describe_services(cluster="prod", services=["web"] * 11),
    ),
    "a task set that does not exist": (
        "TaskSetNotFoundException",
        lambda ecs: ecs.delete_task_set(cluster="prod", service="web", taskSet="none"),
    ),
    "a task set with tasks that is deleted without force": (
        "InvalidParameterException",
        lambda ecs: ecs.delete_task_set(cluster="prod", service="web", taskSet=task_set(ecs)),
    ),
    "tasks by their origin and another filter": (
        "InvalidParameterException",
        lambda ecs: ecs.list_tasks(cluster="prod", startedBy="a", desiredStatus="STOPPED"),
    ),
    "a token that is too long": (
        "InvalidParameterException",
        lambda ecs: task_set(ecs, clientToken="t" * 37),
    ),
}


@pytest.mark.parametrize(("code", "call"), REFUSED.values(), ids=REFUSED)
def test_ecs_refuses(ecs: Any, code: str, call: Callable[[Any], object]) -> None:
    with pytest.raises(ClientError) as refused:
        call(ecs)
    assert refused.value.response.get("Error", {}).get("Code") == code


def test_a_primary_task_set_is_not_deleted(ecs: Any) -> None:
    arn = task_set(ecs)
    promote(ecs, arn)
    with pytest.raises(ClientError, match="primary task set cannot be deleted"):
        ecs.delete_task_set(cluster="prod", service="web", taskSet=arn, force=True)
    promote(ecs, task_set(ecs))
    ecs.delete_task_set(cluster="prod", service="web", taskSet=arn, force=True)


def test_a_primary_task_set_is_not_promoted_again(ecs: Any) -> None:
    arn = task_set(ecs)
    promote(ecs, arn)
    with pytest.raises(ClientError, match="the primary one already"):
        promote(ecs, arn)


def test_a_token_creates_only_one(ecs: Any) -> None:
    assert task_set(ecs, clientToken="once") == task_set(ecs, clientToken="once")
    assert task_set(ecs, clientToken="once") != task_set(ecs, clientToken="again")
    described = ecs.describe_task_sets(cluster="prod", service="web")["taskSets"]
    assert len(described) == 2


def rolling_service(ecs: Any, **breaker: bool) -> Callable[[], list[tuple[str, str, str]]]:
    """Creates a service and returns a function that reads its deployments."""
    ecs.create_service(
        cluster="prod",
        serviceName="rolling",
        desiredCount=2,
        taskDefinition="web:1",
        deploymentConfiguration={"deploymentCircuitBreaker": breaker} if breaker else {},
    )
    document = json.loads(task_definition("nginx:2"))
    ecs.register_task_definition(**document | {"cpu": "256", "memory": "512"})

    def read() -> list[tuple[str, str, str]]:
        [service] = ecs.describe_services(cluster="prod", services=["rolling"])["services"]
        return [
            (each["taskDefinition"].rpartition("/")[2], each["status"], each["rolloutState"])
            for each in service["deployments"]
        ]

    return read


def test_a_rolling_update_takes_a_while(ecs: Any) -> None:
    read = rolling_service(ecs)
    assert read() == [("web:1", "PRIMARY", "IN_PROGRESS")]
    assert read() == [("web:1", "PRIMARY", "COMPLETED")]
    ecs.update_service(cluster="prod", service="rolling", taskDefinition="web:2")
    assert read() == [("web:2", "PRIMARY", "IN_PROGRESS"), ("web:1", "ACTIVE", "COMPLETED")]
    assert read() == [("web:2", "PRIMARY", "COMPLETED")]


def test_a_circuit_breaker_deploys_what_was_completed_before(ecs: Any, amazon: Amazon) -> None:
    read = rolling_service(ecs, enable=True, rollback=True)
    for _ in range(2):
        read()
    rules = amazon.rules["ecs"]
    assert isinstance(rules, EcsRules)
    rules.failing["nginx:2"] = "CannotPullContainerError: not found"
    ecs.update_service(cluster="prod", service="rolling", taskDefinition="web:2")
    read()
    assert read() == [("web:1", "PRIMARY", "IN_PROGRESS"), ("web:2", "ACTIVE", "FAILED")]
    read()
    assert read() == [("web:1", "PRIMARY", "COMPLETED")]


def test_a_lost_answer_is_of_a_request_that_was_carried_out(amazon: Amazon) -> None:
    amazon.lose_answers("CreateCluster")
    client = amazon.client("ecs")
    client.create_cluster(clusterName="prod")
    assert amazon.operations("CreateCluster") == ["CreateCluster"] * 2
    assert len(client.list_clusters()["clusterArns"]) == 1


def test_a_service_counts_the_tasks_of_its_task_sets(ecs: Any, amazon: Amazon) -> None:
    promote(ecs, task_set(ecs))
    task_set(ecs, 50)
    [service] = ecs.describe_services(cluster="prod", services=["web"])["services"]
    assert (service["desiredCount"], service["runningCount"], service["pendingCount"]) == (3, 5, 0)
    arns = ecs.list_tasks(cluster="prod", serviceName="web")["taskArns"]
    assert len(arns) == 5
    tasks = ecs.describe_tasks(cluster="prod", tasks=arns)["tasks"]
    assert {task["startedBy"] for task in tasks} == {each["id"] for each in service["taskSets"]}


def test_the_tasks_of_a_failing_image_stop(ecs: Any, amazon: Amazon) -> None:
    rules = amazon.rules["ecs"]
    assert isinstance(rules, EcsRules)
    rules.failing["nginx:1"] = "CannotPullContainerError: not found"
    arn = task_set(ecs)
    [described] = ecs.describe_task_sets(cluster="prod", service="web", taskSets=[arn])["taskSets"]
    assert (described["runningCount"], described["stabilityStatus"]) == (0, "STABILIZING")
    stopped = ecs.list_tasks(cluster="prod", serviceName="web", desiredStatus="STOPPED")
    reasons = ecs.describe_tasks(cluster="prod", tasks=stopped["taskArns"])["tasks"]
    assert {task["startedBy"] for task in reasons} == {described["id"]}
    assert {task["stoppedReason"] for task in reasons} == {"CannotPullContainerError: not found"}
    assert ecs.list_tasks(cluster="prod", serviceName="web")["taskArns"] == []


def test_a_request_that_the_model_does_not_know_is_refused(amazon: Amazon) -> None:
    import urllib.error
    import urllib.request

    for service, body, target in (
        ("ecs", b'{"unheardOf": 1}', "AmazonEC2ContainerServiceV20141113.ListClusters"),
        ("elasticloadbalancing", b"Action=DescribeRules&Version=1&Unheard=1", ""),
    ):
        scope = f"AWS4-HMAC-SHA256 Credential=k/20260101/eu-west-1/{service}/aws4_request"
        headers = {"Authorization": scope, "X-Amz-Target": target}
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(amazon.url, body, headers), timeout=5)
        assert b"not in the model" in refused.value.read()
