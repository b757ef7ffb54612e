# SPDX-License-Identifier: Apache-2.0
"""The rollback: after every stage, and whatever has failed, the running commit serves again."""

import json
from typing import Any

import pytest

from pipecd.plugins.ecs.rollback import restored_count
from pipecd.sdk import StageStatus
from pipecd.sdk.testing import StageBench
from plugins.ecs.testbed import EXTERNAL, ROLLING, Application, Balancer

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE
PIPELINE: list[tuple[str, dict[str, Any]]] = [
    ("ECS_CANARY_ROLLOUT", {"scale": 50}),
    ("ECS_TRAFFIC_ROUTING", {"canary": 50}),
    ("ECS_PRIMARY_ROLLOUT", {}),
    ("ECS_TRAFFIC_ROUTING", {"primary": 100}),
    ("ECS_CANARY_CLEAN", {}),
]


async def deploy(application: Application, bench: StageBench, stage: str = "ECS_SYNC") -> None:
    application.next_stage()
    assert (await bench.run(stage)).status is SUCCESS
    application.next_stage()


async def roll_back(application: Application, bench: StageBench) -> None:
    application.next_stage()
    rolled_back = await bench.run("ECS_ROLLBACK", is_rollback=True)
    assert (rolled_back.status, rolled_back.message) == (
        SUCCESS,
        "The service web is rolled back",
    )


@pytest.mark.parametrize("done", range(len(PIPELINE) + 1))
@pytest.mark.parametrize("kind", ["Application", "ECSApp"])
async def test_after_each_stage(
    application: Application, balancer: Balancer, done: int, kind: str
) -> None:
    application.kind = kind
    listener = balancer.listener(80)
    one = application.commit("web:1")
    await deploy(application, one)
    two = application.commit("web:2", running=one)
    for index, (name, options) in enumerate(PIPELINE[:done]):
        application.next_stage()
        assert (await two.run(name, options, index=index)).status is SUCCESS
    await roll_back(application, two)
    assert application.task_sets == [("web:1", "PRIMARY", 100)]
    assert balancer.weights(listener) == {"primary": 100, "canary": 0}
    assert application.service["runningCount"] == 4
    tags = {tag["key"]: tag["value"] for tag in application.service["tags"]}
    assert tags["pipecd-dev-commit-hash"] == "web-1"


async def test_a_primary_that_still_runs_is_kept(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    one = application.commit("web:1")
    await deploy(application, one)
    two = application.commit("web:2", running=one)
    assert (await two.run("ECS_CANARY_ROLLOUT", {"scale": 50})).status is SUCCESS
    application.amazon.calls.clear()
    # Nothing can be started any more, and the rollback does not need it.
    application.amazon.refuse("CreateTaskSet", "InvalidParameterException")
    await roll_back(application, two)
    assert application.task_sets == [("web:1", "PRIMARY", 100)]


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_after_a_sync_whose_image_cannot_be_pulled(
    application: Application, service: dict[str, Any]
) -> None:
    one = application.commit("web:1", service)
    await deploy(application, one)
    application.failing["web:2"] = "CannotPullContainerError: web:2 not found"
    two = application.commit("web:2", service, running=one)
    failed = await two.run("ECS_SYNC")
    assert failed.status is FAILURE
    assert "CannotPullContainerError: web:2 not found" in failed.message
    await roll_back(application, two)
    assert application.service["runningCount"] == 4
    if service is EXTERNAL:
        assert application.task_sets == [("web:1", "PRIMARY", 100)]
    else:
        assert application.image(application.service["taskDefinition"]) == "web:1"


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_after_a_recreate_that_failed_all_tasks_run_again(
    application: Application, service: dict[str, Any]
) -> None:
    one = application.commit("web:1", service)
    await deploy(application, one)
    # Autoscaling owns the number of tasks.
    service = {key: service[key] for key in service if key != "desiredCount"}
    one, application.quick_sync = application.commit("web:1", service), {"recreate": True}
    application.failing["web:2"] = "Essential container in task exited"
    two = application.commit("web:2", service, running=one)
    application.amazon.refuse("CreateTaskSet", "InvalidParameterException", times=1)
    application.amazon.refuse(
        "UpdateService",
        "ClientException",
        times=1,
        where=lambda request: "taskDefinition" in request,
    )
    assert (await two.run("ECS_SYNC")).status is FAILURE
    assert application.service["desiredCount"] == 0
    await roll_back(application, two)
    assert (application.service["desiredCount"], application.service["runningCount"]) == (4, 4)


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_the_number_of_tasks_of_autoscaling_is_restored(
    application: Application, service: dict[str, Any]
) -> None:
    without_count = {key: service[key] for key in service if key != "desiredCount"}
    await deploy(application, application.commit("web:0", service))
    one = application.commit("web:1", without_count)
    await deploy(application, one)
    ecs = application.amazon.client("ecs")
    ecs.update_service(cluster="prod", service="web", desiredCount=40)
    application.failing["web:2"] = "Essential container in task exited"
    two = application.commit("web:2", {**service, "desiredCount": 1}, running=one)
    assert (await two.run("ECS_SYNC")).status is FAILURE
    assert application.service["desiredCount"] == 1
    await roll_back(application, two)
    assert (application.service["desiredCount"], application.service["runningCount"]) == (40, 40)


@pytest.mark.parametrize(
    ("stored", "current", "failed", "expected"),
    [
        pytest.param(40, 1, 1, 40, id="the failed commit lowered it"),
        pytest.param(40, 100, 100, 40, id="the failed commit raised it"),
        pytest.param(40, 0, 0, 40, id="all tasks were stopped to recreate them"),
        pytest.param(40, 80, 1, None, id="autoscaling has raised it since"),
        pytest.param(40, 80, 0, None, id="autoscaling has raised it after a recreate"),
    ],
)
def test_which_number_of_tasks_is_restored(
    stored: int, current: int, failed: int, expected: int | None
) -> None:
    assert restored_count(stored, current, failed) == expected


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
@pytest.mark.parametrize("is_denied", [False, True], ids=["permitted", "not permitted"])
async def test_a_service_that_the_failed_commit_renamed_is_deleted(
    application: Application, balancer: Balancer, service: dict[str, Any], *, is_denied: bool
) -> None:
    balancer.listener(80)
    one = application.commit("web:1", service)
    await deploy(application, one)
    application.host.plugin_metadata.clear()
    two = application.commit("web:2", {**service, "serviceName": "shop"}, running=one)
    assert (await two.run("ECS_SYNC")).status is SUCCESS
    if is_denied:
        application.amazon.refuse("DeleteService", "AccessDeniedException", "not authorized")
    await roll_back(application, two)
    ecs = application.amazon.client("ecs")
    [shop] = ecs.describe_services(cluster="prod", services=["shop"])["services"]
    assert shop["runningCount"] == 0
    assert (shop["status"] == "ACTIVE") is is_denied
    assert application.service["status"] == "ACTIVE"
    assert application.service["runningCount"] == 4


async def test_a_renamed_service_that_existed_before_stays(application: Application) -> None:
    shop = {**EXTERNAL, "serviceName": "shop"}
    await deploy(application, application.commit("shop:1", shop))
    one = application.commit("web:1")
    await deploy(application, one)
    application.host.plugin_metadata.clear()
    two = application.commit("web:2", shop, running=one)
    assert (await two.run("ECS_SYNC")).status is SUCCESS
    await roll_back(application, two)
    assert "DeleteService" not in application.amazon.operations()


async def test_the_running_commit_may_have_other_target_groups(
    application: Application, balancer: Balancer
) -> None:
    listener = balancer.listener(80)
    application.input = {"targetGroups": {"primary": balancer.input["targetGroups"]["primary"]}}
    one = application.commit("web:1")
    await deploy(application, one)
    application.input = balancer.input
    two = application.commit("web:2", running=one)
    for name, options in PIPELINE[:2]:
        application.next_stage()
        assert (await two.run(name, options)).status is SUCCESS
    assert balancer.weights(listener) == {"primary": 50, "canary": 50}
    await roll_back(application, two)
    assert balancer.weights(listener) == {"primary": 100, "canary": 0}


async def test_a_rule_that_somebody_else_edited_stays(
    application: Application, balancer: Balancer
) -> None:
    listener = balancer.listener(80)
    rule = balancer.rule(listener, 1, balancer.split)
    one = application.commit("web:1")
    await deploy(application, one)
    two = application.commit("web:2", running=one)
    for name, options in PIPELINE[:2]:
        application.next_stage()
        assert (await two.run(name, options)).status is SUCCESS
    elb = application.amazon.client("elbv2")
    elb.modify_rule(RuleArn=rule, Actions=[balancer.forward((balancer.canary, 1))])
    await roll_back(application, two)
    assert balancer.weights(listener) == {"primary": 100, "canary": 0}
    assert balancer.rule_weights(rule) == {"canary": 1}
    assert f"Somebody else has edited the rule {rule}, so it stays as it is: check it" in (
        application.host.lines
    )


async def test_a_canary_of_upstream_is_rolled_back(
    application: Application, balancer: Balancer
) -> None:
    listener = balancer.listener(80)
    application.kind = "ECSApp"
    one = application.commit("web:1")
    await deploy(application, one)
    two = application.commit("web:2", running=one)
    for name, options in PIPELINE[:2]:
        application.next_stage()
        assert (await two.run(name, options)).status is SUCCESS
    # A piped of the first generation has stored this with the deployment.
    stored = application.host.plugin_metadata
    application.host.shared_metadata = {
        "canary-target-group-arn": stored["canary-target-group-arn"],
        "current-listeners": stored["current-listeners"],
        "canary-taskset-object": json.dumps({"TaskSetArn": "arn"}),
    }
    application.host.plugin_metadata.clear()
    await roll_back(application, two)
    assert application.task_sets == [("web:1", "PRIMARY", 100)]
    assert balancer.weights(listener) == {"primary": 100, "canary": 0}


async def test_several_listeners_and_rules_are_restored_and_those_of_others_stay(
    application: Application, balancer: Balancer
) -> None:
    listeners = [balancer.listener(port) for port in (80, 81)]
    rule = balancer.rule(listeners[1], 1, balancer.split)
    other = balancer.target_group("other")
    theirs = [
        balancer.rule(listeners[0], 2, balancer.forward((other, 1))),
        balancer.rule(listeners[0], 3, balancer.forward((balancer.primary, 3), (other, 1))),
    ]
    elb = application.amazon.client("elbv2")
    before = elb.describe_rules(RuleArns=theirs)["Rules"]
    one = application.commit("web:1")
    await deploy(application, one)
    two = application.commit("web:2", running=one)
    for index, (name, options) in enumerate(PIPELINE[:2]):
        application.next_stage()
        assert (await two.run(name, options, index=index)).status is SUCCESS
    assert [balancer.weights(each)["canary"] for each in listeners] == [50, 50]
    assert balancer.rule_weights(rule)["canary"] == 50
    await roll_back(application, two)
    assert [balancer.weights(each)["canary"] for each in listeners] == [0, 0]
    assert balancer.rule_weights(rule) == {"primary": 100, "canary": 0}
    assert elb.describe_rules(RuleArns=theirs)["Rules"] == before


@pytest.mark.parametrize(
    "stages",
    [("ECS_CANARY_ROLLOUT",), ("ECS_CANARY_ROLLOUT", "ECS_PRIMARY_ROLLOUT"), ("ECS_SYNC",)],
    ids=" ".join,
)
async def test_a_service_with_service_discovery(
    application: Application, stages: tuple[str, ...]
) -> None:
    registries = [
        {"registryArn": f"arn:aws:servicediscovery:eu-west-1:1:service/srv-{number}"}
        for number in (1, 2)
    ]
    one = application.commit("web:1", {**EXTERNAL, "serviceRegistries": registries[:1]})
    await deploy(application, one)
    changed = {**EXTERNAL, "serviceRegistries": registries[1:]}
    two = application.commit("web:2", changed, running=one)
    for name in stages:
        application.next_stage()
        options = {"scale": 50} if name == "ECS_CANARY_ROLLOUT" else {}
        assert (await two.run(name, options)).status is SUCCESS
    await roll_back(application, two)
    assert application.task_sets == [("web:1", "PRIMARY", 100)]
    ecs = application.amazon.client("ecs")
    [primary] = ecs.describe_task_sets(cluster="prod", service="web")["taskSets"]
    assert primary["serviceRegistries"] == registries[:1]


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_the_tags_of_the_running_commit_are_restored(
    application: Application, service: dict[str, Any]
) -> None:
    def tagged(**tags: str) -> dict[str, Any]:
        return {**service, "tags": [{"key": key, "value": tags[key]} for key in tags]}

    one = application.commit("web:1", tagged(team="shop", tier="web"))
    await deploy(application, one)
    two = application.commit("web:2", tagged(team="other", stage="beta"), running=one)
    await deploy(application, two)
    await roll_back(application, two)
    tags = {tag["key"]: tag["value"] for tag in application.service["tags"]}
    assert {key: tags[key] for key in tags if not key.startswith("pipecd-dev-")} == {
        "team": "shop",
        "tier": "web",
    }
    assert tags["pipecd-dev-commit-hash"] == "web-1"


async def test_a_standalone_task_gets_its_old_definition(application: Application) -> None:
    one = application.commit("job:1", None)
    await deploy(application, one)
    two = application.commit("job:2", None, running=one)
    await deploy(application, two)
    rolled_back = await two.run("ECS_ROLLBACK", is_rollback=True)
    assert rolled_back.status is SUCCESS
    assert application.image("web") == "job:1"


async def test_a_first_deployment_cannot_be_rolled_back(application: Application) -> None:
    failed = await application.commit("web:1").run("ECS_ROLLBACK", is_rollback=True)
    assert failed.status is FAILURE
    assert failed.message.startswith("There is no commit to roll back to")
