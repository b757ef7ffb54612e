# SPDX-License-Identifier: Apache-2.0
"""Live state with health, drift with ignored fields, and few requests for many services."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from pipecd.plugins.ecs.api import TaskSet
from pipecd.plugins.ecs.livestate import resources
from pipecd.plugins.ecs.snapshots import ServiceState
from pipecd.sdk import Health, LiveState, StageStatus, SyncStatus
from pipecd.sdk.testing import StageBench
from plugins.ecs.testbed import EXTERNAL, ROLLING, Application, Balancer

SUCCESS = StageStatus.SUCCESS


async def look(bench: StageBench) -> LiveState:
    plugin: Any = bench.plugin
    return await plugin.live_state(bench.live_context())


async def test_a_service_its_task_sets_and_tasks(
    application: Application, balancer: Balancer
) -> None:
    balancer.listener(80)
    one = application.commit("web:1")
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    application.next_stage()
    two = application.commit("web:2", running=one)
    assert (await two.run("ECS_CANARY_ROLLOUT", {"scale": 50})).status is SUCCESS
    state = await look(one)
    kinds = [resource.kind for resource in state.resources]
    assert kinds == ["ECS:Service", *["ECS:TaskSet"] * 2, *["ECS:Task"] * 6]
    service, primary, canary, *tasks = state.resources
    assert service.metadata == {
        "status": "ACTIVE",
        "runningCount": "6",
        "desiredCount": "4",
        "pendingCount": "0",
    }
    assert (primary.metadata["commit"], canary.metadata["commit"]) == ("web-1", "web-2")
    assert (primary.metadata["scale"], canary.metadata["scale"]) == ("100%", "50%")
    assert primary.parents == canary.parents == (service.id,)
    assert {task.parents for task in tasks} == {(primary.id,), (canary.id,)}
    assert {resource.health for resource in state.resources} == {Health.HEALTHY}
    assert {resource.target for resource in state.resources} == {"aws"}
    assert state.sync.status is SyncStatus.SYNCED


async def test_tasks_that_do_not_start(application: Application) -> None:
    bench = application.commit("web:1")
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    application.failing["web:1"] = "CannotPullContainerError"
    service, task_set = (await look(bench)).resources
    assert (service.health, service.health_text) == (
        Health.UNHEALTHY,
        "Service has 0 running tasks out of 4 desired (0 pending)",
    )
    assert (task_set.health, task_set.health_text) == (
        Health.UNHEALTHY,
        "TaskSet is stabilizing: 0 pending, 0 running",
    )


def test_tasks_that_start_or_stop_progress() -> None:
    service = {
        **{"serviceArn": "s", "serviceName": "web", "status": "ACTIVE"},
        **{"runningCount": 1, "desiredCount": 3, "pendingCount": 2},
    }
    task_set = {"taskSetArn": "t", "stabilityStatus": "STABILIZING", "pendingCount": 2}
    statuses = ("PENDING", "RUNNING", "DEACTIVATING", "STOPPING", "DEPROVISIONING")
    tasks = [{"taskArn": status, "lastStatus": status} for status in statuses]
    state = ServiceState(service, [TaskSet(task_set)], tasks)
    assert [(each.health, each.health_text) for each in resources(state, "aws")] == [
        (Health.PROGRESSING, "Service has 1 running tasks out of 3 desired (2 pending)"),
        (Health.PROGRESSING, "TaskSet is stabilizing: 2 pending, 0 running"),
        (Health.PROGRESSING, "Task is in PENDING state"),
        (Health.HEALTHY, ""),
        (Health.PROGRESSING, "Task is in DEACTIVATING state"),
        (Health.PROGRESSING, "Task is in STOPPING state"),
        (Health.PROGRESSING, "Task is in DEPROVISIONING state"),
    ]


@pytest.mark.parametrize("service", [EXTERNAL, ROLLING], ids=["task sets", "rolling updates"])
async def test_what_is_deployed_is_synced(
    application: Application, service: dict[str, Any]
) -> None:
    definition = {
        **service,
        "enableExecuteCommand": True,
        "propagateTags": "SERVICE",
        "tags": [{"key": "team", "value": "shop"}],
    }
    bench = application.commit(
        "web:1",
        definition,
        volumes=[{"name": "data"}],
        tags=[{"key": "a", "value": "b"}],
    )
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    state = await look(bench)
    assert (state.sync.status, state.sync.details) == (SyncStatus.SYNCED, "")


async def test_a_change_in_git_is_a_drift(application: Application) -> None:
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    changed = application.commit("web:2", {**EXTERNAL, "desiredCount": 3})
    state = (await look(changed)).sync
    assert (state.status, state.summary) == (
        SyncStatus.OUT_OF_SYNC,
        "The ecs definition files are not synced",
    )
    assert state.details == (
        "Diff between the defined state in Git at commit web-2 and actual live state:\n\n"
        "--- Actual   (LiveState)\n+++ Expected (Git)\n\n"
        "  ServiceDefinition:\n"
        "    #ServiceDefinition.DesiredCount\n"
        "-   DesiredCount: 4\n"
        "+   DesiredCount: 3\n\n"
        "  TaskDefinition:\n"
        "    ContainerDefinitions:\n"
        "      -\n"
        "        #TaskDefinition.ContainerDefinitions.0.Image\n"
        "-       Image: web:1\n"
        "+       Image: web:2\n\n"
    )


async def test_ignored_fields_are_no_drift(application: Application) -> None:
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    ignored = [
        "web#ServiceDefinition.DesiredCount",
        "web#TaskDefinition.ContainerDefinitions.0.Image",
    ]
    application.spec = {"driftDetection": {"ignoreFields": ignored}}
    changed = application.commit("web:2", {**EXTERNAL, "desiredCount": 3})
    assert (await look(changed)).sync.status is SyncStatus.SYNCED


async def test_a_number_of_tasks_that_autoscaling_decides_is_no_drift(
    application: Application,
) -> None:
    without_count = {key: EXTERNAL[key] for key in EXTERNAL if key != "desiredCount"}
    assert (await application.commit("web:1").run("ECS_SYNC")).status is SUCCESS
    assert (await look(application.commit("web:1", without_count))).sync.status is SyncStatus.SYNCED


async def test_values_of_the_environment_are_not_shown(application: Application) -> None:
    bench = application.commit("web:1")
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    document = json.loads((bench.directory / "taskdef.json").read_text())
    document["containerDefinitions"][0]["environment"] = [{"name": "TOKEN", "value": "s3cret"}]
    (bench.directory / "taskdef.json").write_text(json.dumps(document))
    state = (await look(bench)).sync
    assert state.status is SyncStatus.OUT_OF_SYNC
    assert "s3cret" not in state.details
    assert "Environment" in state.details


async def test_a_service_that_does_not_exist(application: Application) -> None:
    state = await look(application.commit("web:1"))
    assert (state.resources, state.sync.status, state.sync.summary) == (
        (),
        SyncStatus.OUT_OF_SYNC,
        "The service web does not exist in cluster prod",
    )


async def test_a_standalone_task(application: Application) -> None:
    bench = application.commit("job:1", None)
    state = (await look(bench)).sync
    assert (state.status, state.summary) == (
        SyncStatus.OUT_OF_SYNC,
        "The task definition web is not registered",
    )
    assert (await bench.run("ECS_SYNC")).status is SUCCESS
    live = await look(bench)
    assert live.sync.status is SyncStatus.SYNCED
    [resource] = live.resources
    assert (resource.kind, resource.health) == ("ECS:TaskDefinition", Health.HEALTHY)
    assert (await look(application.commit("job:2", None))).sync.status is SyncStatus.OUT_OF_SYNC


async def test_a_standalone_task_is_shown_below_its_definition(application: Application) -> None:
    application.input = {"clusterArn": "prod", "runStandaloneTask": True}
    one = application.commit("job:1", None)
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    definition, task = (await look(one)).resources
    assert (task.kind, task.health, task.parents) == (
        "ECS:Task",
        Health.HEALTHY,
        (definition.id,),
    )
    # The task of an older revision has no definition any more.
    application.next_stage()
    two = application.commit("job:2", None)
    assert (await two.run("ECS_SYNC")).status is SUCCESS
    application.plugin._snapshots.clock = lambda: time.monotonic() + 60
    definition, *tasks = (await look(two)).resources
    assert sorted(task.parents for task in tasks) == [(), (definition.id,)]


def many(application: Application, number: int) -> list[StageBench]:
    """Returns applications whose services exist, each with 20 tasks."""
    ecs = application.amazon.client("ecs")
    document = json.loads((application.commit("web:1").directory / "taskdef.json").read_text())
    ecs.register_task_definition(**document | {"cpu": "256", "memory": "512"})
    benches: list[StageBench] = []
    for name in (f"web-{each}" for each in range(number)):
        service = {**ROLLING, "serviceName": name, "desiredCount": 20}
        ecs.create_service(**service, taskDefinition="web:1")
        bench = application.commit(f"{name}:1", service)
        (bench.directory / "taskdef.json").write_text(json.dumps(document))
        benches.append(replace(bench, application_id=name))
    return benches


async def test_many_services_need_few_requests(application: Application) -> None:
    benches = many(application, 12)
    states = [await look(bench) for bench in benches]
    assert {state.sync.status for state in states} == {SyncStatus.SYNCED}
    later = application.plugin._snapshots.clock() + 31
    application.plugin._snapshots.clock = lambda: later
    application.amazon.calls.clear()
    states = [await look(bench) for bench in benches]
    assert [len(state.resources) for state in states] == [21] * 12
    # 12 services and 240 tasks, by 10 and by 100.
    assert application.amazon.operations() == [
        *["DescribeServices"] * 2,
        *["ListTasks"] * 3,
        *["DescribeTasks"] * 3,
    ]


async def test_a_service_that_is_new_to_piped_is_read_without_the_others(
    application: Application,
) -> None:
    for bench in many(application, 12):
        await look(bench)
    described = [
        call.parameters["services"]
        for call in application.amazon.calls
        if call.operation == "DescribeServices"
    ]
    assert described == [[f"web-{each}"] for each in range(12)]


async def test_a_service_that_a_stage_changed_is_read_without_the_others(
    application: Application,
) -> None:
    benches = many(application, 3)
    for bench in benches:
        await look(bench)
    assert (await benches[1].run("ECS_SYNC")).status is SUCCESS
    application.amazon.calls.clear()
    for bench in benches:
        assert (await look(bench)).sync.status is SyncStatus.SYNCED
    described = [call for call in application.amazon.calls if call.operation == "DescribeServices"]
    assert [call.parameters["services"] for call in described] == [["web-1"]]


async def test_a_stage_makes_what_is_known_about_its_service_old(
    application: Application,
) -> None:
    one = application.commit("web:1")
    assert (await one.run("ECS_SYNC")).status is SUCCESS
    assert (await look(one)).sync.status is SyncStatus.SYNCED
    application.next_stage()
    two = application.commit("web:2")
    assert (await two.run("ECS_SYNC")).status is SUCCESS
    assert (await look(two)).sync.status is SyncStatus.SYNCED
