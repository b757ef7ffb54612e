# SPDX-License-Identifier: Apache-2.0
"""A piped is killed in the middle of each stage on a cloud, and the next one goes on."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from plugins.ecs.testbed import EXTERNAL, Balancer
from servers.amazon import ACCOUNT, REGION, Amazon
from servers.amazon_ecs import EcsRules, task_definition
from servers.amazon_lambda import LambdaRules, lambda_backend
from servers.cloud_run import CloudRun
from servers.control_plane import StartControlPlane
from servers.deployment_watch import SECONDS, DeploymentWatch, statuses
from servers.origin import Origin
from servers.piped import killed_piped, piped_config
from servers.polling import eventually


@dataclass(frozen=True)
class Cloud:
    """A cloud whose changes can be held up."""

    plugin: str
    target: dict[str, str]
    stages: tuple[dict[str, Any], ...]
    files: Callable[[str], dict[str, str]]
    hold: Callable[[], None]
    release: Callable[[], None]
    is_changing: Callable[[], bool]
    shares: Callable[[], dict[str, int]]
    """The share of the traffic of each tag."""
    rollback: str
    created: Callable[[], int]
    """How many revisions or versions exist."""
    section: dict[str, Any] = field(default_factory=dict[str, Any])


def cloud_run_cloud(directory: Path, request: pytest.FixtureRequest) -> Cloud:
    server = CloudRun(directory)
    request.addfinalizer(server.close)
    service: dict[str, Any] = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "shop"},
    }

    def files(tag: str) -> dict[str, str]:
        spec = {"template": {"spec": {"containers": [{"image": f"gcr.io/example/shop:{tag}"}]}}}
        return {"shop/service.yaml": json.dumps({**service, "spec": spec})}

    def hold() -> None:
        server.calls.clear()
        server.seconds = 10_000

    def release() -> None:
        server.seconds = 0.01
        for stored in (*server.services.values(), *server.revisions.values()):
            stored.ready_at = 0

    return Cloud(
        "cloudrun",
        server.target,
        ({"name": "CLOUDRUN_PROMOTE", "with": {"percent": 10}},),
        files,
        hold,
        release,
        lambda: any(call.startswith(("PUT", "POST")) for call in server.calls),
        lambda: {name.split("-")[1]: share for name, share in server.traffic("shop").items()},
        "CLOUDRUN_ROLLBACK",
        lambda: len(server.revisions),
    )


def lambda_cloud(amazon: Amazon) -> Cloud:
    rules = amazon.rules["lambda"]
    assert isinstance(rules, LambdaRules)
    iam = amazon.client("iam")
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="tests", AssumeRolePolicyDocument="{}")
    name, aws = f"shop-{uuid4().hex[:8]}", amazon.client("lambda")
    spec = {
        "name": name,
        "role": f"arn:aws:iam::{ACCOUNT}:role/tests",
        "memory": 128,
        "timeout": 3,
    }

    def files(tag: str) -> dict[str, str]:
        function = {**spec, "image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop:{tag}"}
        manifest = {"apiVersion": "pipecd.dev/v1beta1", "kind": "LambdaFunction", "spec": function}
        return {"shop/function.yaml": json.dumps(manifest)}

    def hold() -> None:
        amazon.calls.clear()
        rules.reads = 10**9

    def release() -> None:
        rules.reads = 1
        rules.make_busy(name, 0)

    def shares() -> dict[str, int]:
        alias = aws.get_alias(FunctionName=name, Name="Service")
        others = (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights") or {}
        weights = {alias["FunctionVersion"]: 1 - sum(others.values()), **others}
        found: dict[str, int] = {}
        for version, weight in weights.items():
            code = aws.get_function(FunctionName=name, Qualifier=version)["Code"]
            found[code["ImageUri"].rpartition(":")[2]] = round(weight * 100)
        return found

    return Cloud(
        "lambda",
        {"region": REGION, "endpoint": amazon.url},
        ({"name": "LAMBDA_CANARY_ROLLOUT"}, {"name": "LAMBDA_PROMOTE", "with": {"percent": 10}}),
        files,
        hold,
        release,
        lambda: bool(amazon.operations("CreateFunction", "UpdateFunctionCode")),
        shares,
        "LAMBDA_ROLLBACK",
        lambda: len(lambda_backend()._lambdas._functions[name]["versions"]),
    )


def ecs_cloud(amazon: Amazon) -> Cloud:
    rules = amazon.rules["ecs"]
    assert isinstance(rules, EcsRules)
    aws = amazon.client("ecs")
    aws.create_cluster(clusterName="prod")
    balancer = Balancer(amazon).create()
    listener = balancer.listener(80)

    def files(tag: str) -> dict[str, str]:
        return {
            "shop/taskdef.json": task_definition(f"shop:{tag}"),
            "shop/service.json": json.dumps(EXTERNAL),
        }

    def hold() -> None:
        amazon.calls.clear()
        rules.is_slow = True

    def release() -> None:
        rules.is_slow = False

    def task_sets() -> list[dict[str, Any]]:
        return aws.describe_task_sets(cluster="prod", service="web")["taskSets"]

    def shares() -> dict[str, int]:
        weights, found = balancer.weights(listener), dict[str, int]()
        for each in task_sets():
            task = aws.describe_task_definition(taskDefinition=each["taskDefinition"])
            image = task["taskDefinition"]["containerDefinitions"][0]["image"]
            [group] = each["loadBalancers"]
            is_primary = group["targetGroupArn"] == balancer.primary
            found[image.rpartition(":")[2]] = weights["primary" if is_primary else "canary"]
        return found

    return Cloud(
        "ecs",
        {"region": REGION, "endpoint": amazon.url},
        (
            {"name": "ECS_CANARY_ROLLOUT", "with": {"scale": 50}},
            {"name": "ECS_TRAFFIC_ROUTING", "with": {"canary": 10}},
        ),
        files,
        hold,
        release,
        lambda: bool(amazon.operations("CreateTaskSet", "DeleteTaskSet")),
        shares,
        "ECS_ROLLBACK",
        lambda: len(task_sets()),
        {"input": {"serviceDefinitionFile": "service.json", **balancer.input}},
    )


@pytest.fixture(params=["cloudrun", "ecs", "lambda"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path, amazon: Amazon) -> Cloud:
    if request.param == "ecs":
        return ecs_cloud(amazon)
    if request.param == "lambda":
        return lambda_cloud(amazon)
    return cloud_run_cloud(tmp_path, request)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_every_stage_continues_after_a_kill(
    start_plane: StartControlPlane, origin: Origin, cloud: Cloud, tmp_path: Path
) -> None:
    approval = {"name": "WAIT_APPROVAL", "with": {"anyone": True}}
    application = {
        "apiVersion": "pipecd.dev/v1beta1",
        "kind": "Application",
        "spec": {
            "name": "shop",
            "plugins": {cloud.plugin: cloud.section},
            "pipeline": {"stages": [*cloud.stages, approval]},
        },
    }
    plugin = {
        "name": cloud.plugin,
        "deployTargets": [{"name": "cloud", "config": cloud.target}],
    }
    directory = tmp_path / "piped"
    directory.mkdir()
    config = directory / "piped.yaml"
    origin.commit({"shop/app.pipecd.yaml": json.dumps(application), **cloud.files("v1")})
    async with start_plane() as plane:
        watch = DeploymentWatch(plane)
        piped = await plane.register_piped("dev")
        await piped.add_repository("site", origin.remote)
        rest = f"  syncInterval: 1s\n  plugins: {json.dumps([plugin])}\n"
        config.write_text(
            piped_config(
                piped.id,
                piped.key,
                address=plane.address,
                remote=origin.remote,
                project="demo",
                rest=rest,
            )
        )
        targets = {cloud.plugin: DeployTargets(deploy_targets=["cloud"])}
        await piped.add_application("shop", deploy_targets_by_plugin=targets)
        cloud.hold()
        async with killed_piped(config, "--log-level=error"):
            await eventually(cloud.is_changing, SECONDS)
        cloud.release()
        async with killed_piped(config, "--log-level=error"):
            first = await watch.ended(1)
            assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason
            assert cloud.shares() == {"v1": 100}
            cloud.hold()
            origin.commit(cloud.files("v2"))
            await eventually(cloud.is_changing, SECONDS)
        cloud.release()
        async with killed_piped(config, "--log-level=error"):
            await watch.approval()
            assert cloud.shares() == {"v2": 10, "v1": 90}
            cloud.hold()
            await watch.cancel_with_rollback()
            await eventually(cloud.is_changing, SECONDS)
        cloud.release()
        async with killed_piped(config, "--log-level=error"):
            second = await watch.ended(2)
        assert DeploymentStatus(second.status) is DeploymentStatus.CANCELLED
        assert statuses(second)[cloud.rollback] is StageStatus.SUCCESS
        assert cloud.shares() == {"v1": 100}
        assert cloud.created() <= 3
