# SPDX-License-Identifier: Apache-2.0
"""What goes wrong: the stage fails with the cause and the remedy."""

import json
from typing import Any

import pytest

from pipecd.sdk import StageStatus
from plugins.ecs.testbed import EXTERNAL, ROLLING, Application, Balancer

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE

REFUSED: dict[str, tuple[str, str, str, str]] = {
    "expired credentials": (
        "DescribeServices",
        "ExpiredTokenException",
        "The security token included in the request is expired",
        "the AWS credentials have expired, so there is no access to the service web in cluster "
        "prod: The security token included in the request is expired; renew the credentials that "
        "this process uses, or give it a role that renews them itself",
    ),
    "a missing permission": (
        "CreateTaskSet",
        "AccessDeniedException",
        "User: x is not authorized to perform: ecs:CreateTaskSet",
        "AWS denies access to a task set of the service web: User: x is not authorized to "
        "perform: ecs:CreateTaskSet; check the credentials and the policies of their role",
    ),
    "an invalid parameter": (
        "RegisterTaskDefinition",
        "ClientException",
        "No Fargate configuration exists for given values.",
        "AWS rejected the request for the task definition web: No Fargate configuration exists "
        "for given values.",
    ),
}


@pytest.mark.parametrize(("operation", "code", "said", "message"), REFUSED.values(), ids=REFUSED)
async def test_aws_refuses(
    application: Application, operation: str, code: str, said: str, message: str
) -> None:
    application.amazon.refuse(operation, code, said)
    failed = await application.commit("web:1").run("ECS_SYNC")
    assert (failed.status, failed.message) == (FAILURE, message)


async def test_throttled_requests_are_repeated(application: Application) -> None:
    for operation in ("RegisterTaskDefinition", "CreateTaskSet", "DescribeTaskSets"):
        application.amazon.refuse(operation, "ThrottlingException", "Rate exceeded", times=1)
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    assert application.task_sets == [("web:1", "PRIMARY", 100)]


async def test_a_missing_cluster(application: Application) -> None:
    failed = await application.commit("web:1", {**EXTERNAL, "cluster": "none"}).run("ECS_SYNC")
    assert failed.message == (
        "the cluster none does not exist in region eu-west-1; "
        "create it, or correct the cluster in the service definition or the input"
    )


FAILING: dict[str, tuple[str, str]] = {
    "an image that cannot be pulled": (
        "CannotPullContainerError: pull image manifest has been retried 1 time(s): not found",
        "check the image in the task definition",
    ),
    "unhealthy targets": (
        "Task failed ELB health checks in (target-group arn:aws:elasticloadbalancing:tg)",
        "check the health check of the target group",
    ),
    "a container that ends": (
        "Essential container in task exited",
        "read the log of the container that exited",
    ),
    "a reason that nobody foresaw": (
        "The moon is full",
        "read the logs of the containers, and the stopped task in the console of ECS",
    ),
}


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
@pytest.mark.parametrize(("reason", "hint"), FAILING.values(), ids=FAILING)
async def test_tasks_that_stop(
    application: Application, service: dict[str, Any], reason: str, hint: str
) -> None:
    application.failing["web:1"] = reason
    failed = await application.commit("web:1", service).run("ECS_SYNC")
    assert failed.status is FAILURE
    assert failed.message.startswith(f"4 tasks of the service web stopped: {reason}; {hint}")


async def test_a_canary_whose_tasks_stop_leaves_the_primary(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    one = application.commit("web:1")
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    application.failing["web:2"] = "CannotPullContainerError: not found"
    application.next_stage()
    failed = await application.commit("web:2").run("ECS_CANARY_ROLLOUT", {"scale": 100})
    assert "CannotPullContainerError" in failed.message
    assert application.task_sets[0] == ("web:1", "PRIMARY", 100)


async def test_a_wait_ends_in_time(application: Application) -> None:
    # One task alone may still succeed when ECS starts it again.
    application.failing["web:1"] = "Task failed container health checks"
    failed = await application.commit("web:1", {**EXTERNAL, "desiredCount": 1}).run("ECS_SYNC")
    assert failed.message == (
        "1 task of the service web stopped: Task failed container health checks; check the health "
        "check of the container, and read its log"
    )


UNHEALTHY = (
    "the target group lb-primary has targets that are not healthy: 10.0.0.7:80 (unhealthy: "
    "Target.ResponseCodeMismatch: Health checks failed with these codes: [502])"
)


def fail_health_checks(balancer: Balancer) -> None:
    said = "Health checks failed with these codes: [502]"
    balancer.listener(80)
    balancer.add_unhealthy_target(
        balancer.primary, "10.0.0.7", "unhealthy", "Target.ResponseCodeMismatch", said
    )


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_a_wait_names_unhealthy_targets(
    application: Application, balancer: Balancer, service: dict[str, Any]
) -> None:
    fail_health_checks(balancer)
    application.slow_down()
    failed = await application.commit("web:1", service).run("ECS_SYNC")
    assert f"did not become stable in 500ms: {UNHEALTHY}" in failed.message
    assert "check the health check of the target group, and the security groups" in failed.message
    # What has not changed is not repeated.
    waiting = [line for line in application.host.lines if line.startswith("Still waiting")]
    assert waiting == [f"Still waiting: {UNHEALTHY}"]


async def test_stopped_tasks_are_explained_by_their_targets(
    application: Application, balancer: Balancer
) -> None:
    fail_health_checks(balancer)
    reason = "Task failed ELB health checks in (target-group lb-primary)"
    application.failing["web:1"] = reason
    failed = await application.commit("web:1").run("ECS_SYNC")
    assert failed.message.startswith(f"4 tasks of the service web stopped: {reason}; {UNHEALTHY}")


async def test_healthy_targets_are_not_named(application: Application, balancer: Balancer) -> None:
    balancer.listener(80)
    balancer.add_unhealthy_target(balancer.primary, "10.0.0.8", "draining", "", "")
    application.slow_down()
    failed = await application.commit("web:1").run("ECS_SYNC")
    assert "did not become stable" in failed.message
    assert "10.0.0.8" not in failed.message


async def test_a_stage_needs_no_permission_to_read_the_health_of_targets(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    application.amazon.refuse("DescribeTargetHealth", "AccessDenied", "not authorized")
    application.slow_down()
    failed = await application.commit("web:1").run("ECS_SYNC")
    assert "did not become stable" in failed.message
    denied = "AWS denies access to the health of the targets of lb-primary: not authorized"
    assert denied in failed.message
    application.slow_down(is_slow=False)
    application.next_stage()
    assert (await application.commit("web:2").run("ECS_SYNC")).status is SUCCESS


async def test_a_service_that_is_being_deleted(application: Application) -> None:
    from servers.amazon_ecs import ecs_backend

    bench = application.commit("web:1")
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    ecs_backend().services["prod:web"].status = "DRAINING"
    application.next_stage()
    failed = await application.commit("web:2").run("ECS_SYNC")
    assert failed.message.startswith("the service web is DRAINING; wait until it is deleted")


async def test_a_deleted_service_is_created_again(application: Application) -> None:
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    ecs = application.amazon.client("ecs")
    ecs.delete_service(cluster="prod", service="web", force=True)
    application.next_stage()
    assert (await application.commit("web:2").run("ECS_SYNC")).status is SUCCESS
    assert application.task_sets == [("web:2", "PRIMARY", 100)]


FILES: dict[str, tuple[str, str, str]] = {
    "a task definition that is missing": (
        "taskdef.json",
        "",
        "the file taskdef.json cannot be read: it does not exist; correct taskDefinitionFile",
    ),
    "a task definition without a family": (
        "taskdef.json",
        json.dumps({"containerDefinitions": [{"name": "web", "image": "i"}]}),
        "taskdef.json has no family; a task definition needs a family and at least one container",
    ),
    "a list": ("taskdef.json", "- a\n", "taskdef.json must be a mapping"),
    "broken YAML": ("servicedef.yaml", "a: [", "servicedef.yaml:2:1: not valid YAML"),
    "a service without a name": (
        "servicedef.yaml",
        "cluster: prod\n",
        "servicedef.yaml has no serviceName; name the service and its cluster",
    ),
    "a value of another type": (
        "taskdef.json",
        json.dumps(
            {
                "family": "web",
                "containerDefinitions": [{"name": "web", "image": "i", "memory": "much"}],
            }
        ),
        "AWS does not know such parameters of the task definition web: Parameter validation failed",
    ),
}


@pytest.mark.parametrize(("file", "content", "message"), FILES.values(), ids=FILES)
async def test_a_broken_file(
    application: Application, file: str, content: str, message: str
) -> None:
    bench = application.commit("web:1")
    if content:
        (bench.directory / file).write_text(content)
    else:
        (bench.directory / file).unlink()
    failed = await bench.run("ECS_SYNC")
    assert failed.status is FAILURE
    assert failed.message.startswith(message)


async def test_files_are_read_as_upstream_reads_them(application: Application) -> None:
    bench = application.commit("web:1")
    (bench.directory / "taskdef.json").write_text(
        """
Family: web
cpu: 256
MEMORY: 512
networkMode: awsvpc
requiresCompatibilities: [FARGATE]
revision: 7
color: red
containerDefinitions:
  - name: web
    image: web:1
    memory: 512.0
    environment: [{name: DEBUG, value: true}]
"""
    )
    service = {
        "clusterArn": "prod",
        "SERVICENAME": "web",
        "desiredCount": 1.0,
        "roleArn": "",
        "deploymentController": {"type": "EXTERNAL"},
        "launchType": "FARGATE",
    }
    (bench.directory / "servicedef.yaml").write_text(json.dumps(service))
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    [sent] = [c for c in application.amazon.calls if c.operation == "RegisterTaskDefinition"]
    assert (sent.parameters["family"], sent.parameters["cpu"]) == ("web", "256")
    [container] = sent.parameters["containerDefinitions"]
    assert container["environment"] == [{"name": "DEBUG", "value": "true"}]
    assert "AWS does not know taskdef.json: color, so it is left out" in application.host.lines
    assert not any("revision" in line for line in application.host.lines)
