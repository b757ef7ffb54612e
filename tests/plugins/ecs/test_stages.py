# SPDX-License-Identifier: Apache-2.0
"""The stages of services with task sets: quick sync, primary, canary, and their restarts."""

import json
from typing import Any

import pytest

from pipecd.sdk import DISPLAY_KEY, StageStatus
from plugins.ecs.testbed import EXTERNAL, ROLLING, Application, Balancer

SUCCESS, FAILURE = StageStatus.SUCCESS, StageStatus.FAILURE


async def test_a_sync_creates_the_service_and_replaces_its_tasks(application: Application) -> None:
    one = application.commit("web:1")
    synced = await one.run("ECS_SYNC")
    assert (synced.status, synced.message) == (SUCCESS, "The service web is deployed")
    assert application.task_sets == [("web:1", "PRIMARY", 100)]
    application.next_stage()
    two = application.commit("web:2", running=one)
    assert (await two.run("ECS_SYNC")).status is SUCCESS
    assert application.task_sets == [("web:2", "PRIMARY", 100)]
    assert application.service["runningCount"] == 4


async def test_the_old_task_definition_becomes_inactive(application: Application) -> None:
    for image in ("web:1", "web:2"):
        application.next_stage()
        assert (await application.commit(image).run("ECS_SYNC")).status is SUCCESS
    ecs = application.amazon.client("ecs")
    assert len(ecs.list_task_definitions(status="ACTIVE")["taskDefinitionArns"]) == 1
    assert len(ecs.list_task_definitions(status="INACTIVE")["taskDefinitionArns"]) == 1


@pytest.mark.parametrize(
    ("kind", "managed_by"), [("Application", "piped-ecs-plugin"), ("ECSApp", "piped")]
)
async def test_tags_mark_service_and_task_sets(
    application: Application, kind: str, managed_by: str
) -> None:
    application.kind = kind
    one = application.commit("web:1", {**EXTERNAL, "tags": [{"key": "team", "value": "shop"}]})
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    expected = {
        "team": "shop",
        "pipecd-dev-managed-by": managed_by,
        "pipecd-dev-piped": one.deployment().piped_id,
        "pipecd-dev-application": "application-1",
        "pipecd-dev-commit-hash": "web-1",
    }
    ecs = application.amazon.client("ecs")
    [task_set] = ecs.describe_task_sets(cluster="prod", service="web", include=["TAGS"])["taskSets"]
    for tags in (application.service["tags"], task_set["tags"]):
        assert {tag["key"]: tag["value"] for tag in tags} == expected
    # Tags of AWS itself are not removed, all others that the file does not have are.
    ecs.tag_resource(
        resourceArn=application.service["serviceArn"],
        tags=[{"key": "old", "value": "x"}, {"key": "aws:cloudformation:stack-id", "value": "s"}],
    )
    application.next_stage()
    assert (await application.commit("web:2").run("ECS_SYNC")).status is SUCCESS
    keys = {tag["key"] for tag in application.service["tags"]}
    assert keys == (expected.keys() - {"team"}) | {"aws:cloudformation:stack-id"}


async def test_the_number_of_tasks_is_left_to_autoscaling(application: Application) -> None:
    without_count = {key: EXTERNAL[key] for key in EXTERNAL if key != "desiredCount"}
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    application.amazon.client("ecs").update_service(cluster="prod", service="web", desiredCount=7)
    application.next_stage()
    assert (await application.commit("web:2", without_count).run("ECS_SYNC")).status is SUCCESS
    assert application.service["desiredCount"] == 7
    application.next_stage()
    assert (await application.commit("web:3").run("ECS_SYNC")).status is SUCCESS
    assert application.service["desiredCount"] == 4


async def test_recreate_stops_all_tasks_first(application: Application) -> None:
    without_count = {key: EXTERNAL[key] for key in EXTERNAL if key != "desiredCount"}
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    application.next_stage()
    application.quick_sync = {"recreate": True}
    application.amazon.calls.clear()
    assert (await application.commit("web:2", without_count).run("ECS_SYNC")).status is SUCCESS
    counts = [
        call.parameters.get("desiredCount")
        for call in application.amazon.calls
        if call.operation == "UpdateService"
    ]
    assert counts == [None, 0, 4]
    assert application.task_sets == [("web:2", "PRIMARY", 100)]
    assert application.service["runningCount"] == 4


async def test_a_canary_runs_beside_the_primary_until_it_is_cleaned(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    one = application.commit("web:1")
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    two = application.commit("web:2", running=one)
    application.next_stage()
    rolled_out = await two.run("ECS_CANARY_ROLLOUT", {"scale": 50})
    assert (rolled_out.status, rolled_out.message) == (SUCCESS, "The canary runs 50% of the tasks")
    assert application.host.stage_metadata["canary-scale"] == "50"
    assert application.host.stage_metadata[DISPLAY_KEY] == "canary 50%"
    assert application.task_sets == [("web:1", "PRIMARY", 100), ("web:2", "ACTIVE", 50)]
    assert application.service["runningCount"] == 6
    application.next_stage()
    assert (await two.run("ECS_PRIMARY_ROLLOUT", index=1)).status is SUCCESS
    # The canary serves until its own stage removes it.
    assert application.task_sets == [("web:2", "PRIMARY", 100), ("web:2", "ACTIVE", 50)]
    application.next_stage()
    cleaned = await two.run("ECS_CANARY_CLEAN", index=2)
    assert (cleaned.status, cleaned.message) == (SUCCESS, "The canary is removed")
    assert application.task_sets == [("web:2", "PRIMARY", 100)]
    application.next_stage()
    again = await two.run("ECS_CANARY_CLEAN", index=2)
    assert (again.status, again.message) == (SUCCESS, "There is no canary any more")


async def test_each_variant_has_its_target_group(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    bench = application.commit("web:1")
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    application.next_stage()
    assert (await bench.run("ECS_CANARY_ROLLOUT", {"scale": 10})).status is SUCCESS
    groups = [
        [group["targetGroupArn"] for group in call.parameters["loadBalancers"]]
        for call in application.amazon.calls
        if call.operation == "CreateTaskSet"
    ]
    assert groups == [[balancer.primary], [balancer.canary]]


async def test_service_discovery_registers_the_task_sets(application: Application) -> None:
    registry = {"registryArn": "arn:aws:servicediscovery:eu-west-1:1:service/srv-1"}
    bench = application.commit("web:1", {**EXTERNAL, "serviceRegistries": [registry]})
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    application.next_stage()
    assert (await bench.run("ECS_CANARY_ROLLOUT", {"scale": 10})).status is SUCCESS
    created = [c.parameters for c in application.amazon.calls if c.operation == "CreateTaskSet"]
    assert [each["serviceRegistries"] for each in created] == [[registry], [registry]]
    assert all("loadBalancers" not in each for each in created)


async def test_task_sets_of_others_stay(application: Application) -> None:
    bench = application.commit("web:1")
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    ecs = application.amazon.client("ecs")
    ecs.create_task_set(
        cluster="prod",
        service="web",
        taskDefinition="web:1",
        launchType="FARGATE",
        scale={"unit": "PERCENT", "value": 25},
    )
    application.next_stage()
    assert (await application.commit("web:2").run("ECS_SYNC")).status is SUCCESS
    assert application.task_sets == [("web:2", "PRIMARY", 100), ("web:1", "ACTIVE", 25)]


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({}, id="by its tags"),
        pytest.param({"canary-task-set": True}, id="by what upstream's plugin stored"),
    ],
)
@pytest.mark.parametrize("managed_by", ["piped", "piped-ecs-plugin"])
async def test_a_canary_of_upstream_is_cleaned(
    application: Application, metadata: dict[str, Any], managed_by: str
) -> None:
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    ecs = application.amazon.client("ecs")
    two = application.commit("web:2")
    document = json.loads((two.directory / "taskdef.json").read_text())
    ecs.register_task_definition(**document | {"cpu": "256", "memory": "512"})
    tags = {"pipecd-dev-managed-by": managed_by, "pipecd-dev-commit-hash": "web-2"}
    made = ecs.create_task_set(
        cluster="prod",
        service="web",
        taskDefinition="web:2",
        launchType="FARGATE",
        scale={"unit": "PERCENT", "value": 25},
        tags=[{"key": key, "value": value} for key, value in tags.items()],
    )
    application.next_stage()
    if metadata:
        stored = {"TaskSetArn": made["taskSet"]["taskSetArn"], "Id": made["taskSet"]["id"]}
        application.host.plugin_metadata["canary-task-set"] = json.dumps(stored)
    assert (await two.run("ECS_CANARY_CLEAN")).message == "The canary is removed"
    assert application.task_sets == [("web:1", "PRIMARY", 100)]


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
@pytest.mark.parametrize("operation", ["CreateService", "CreateTaskSet"])
async def test_a_lost_answer_creates_nothing_twice(
    application: Application, service: dict[str, Any], operation: str
) -> None:
    application.amazon.lose_answers(operation)
    assert (await application.commit("web:1", service).run("ECS_SYNC")).status is SUCCESS
    if service is EXTERNAL:
        assert application.amazon.operations(operation) == [operation, operation]
        assert application.task_sets == [("web:1", "PRIMARY", 100)]
    assert application.service["runningCount"] == 4
