# SPDX-License-Identifier: Apache-2.0
"""A push is deployed to ECS with a canary, and a bad one rolled back, through a whole piped."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from plugins.ecs.testbed import Balancer
from servers.amazon import REGION, Amazon
from servers.control_plane import RunPiped, StartControlPlane
from servers.origin import Origin
from servers.polling import eventually

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "ecs.md"
TASK, SERVICE, CONFIG, *_ = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


@dataclass(frozen=True)
class Generation:
    """The sample of the guide in one generation of configuration."""

    config: str
    piped: dict[str, Any]
    fields: dict[str, Any]

    def files(self, balancer: Balancer, version: str) -> dict[str, str]:
        config = re.sub(r"arn:\S+targetgroup/shop/\w+", balancer.primary, self.config)
        config = re.sub(r"arn:\S+targetgroup/shop-canary/\w+", balancer.canary, config)
        return {
            "shop/app.pipecd.yaml": config,
            "shop/taskdef.yaml": TASK.replace(":v1", f":{version}"),
            "shop/servicedef.yaml": SERVICE,
        }


@pytest.fixture(params=["first", "second"])
def generation(request: pytest.FixtureRequest, amazon: Amazon) -> Generation:
    target = {"name": "aws", "config": {"region": REGION, "endpoint": amazon.url}}
    if request.param == "second":
        chosen = {"ecs": DeployTargets(deploy_targets=["aws"])}
        plugins = {"plugins": [{"name": "ecs", "deployTargets": [target]}, {"name": "wait"}]}
        return Generation(CONFIG, plugins, {"deploy_targets_by_plugin": chosen})
    config = yaml.safe_load(CONFIG)
    section = config["spec"].pop("plugins")["ecs"]
    spec = {**config["spec"], **section}
    providers = {"platformProviders": [{"type": "ECS", **target}]}
    fields = {"platform_provider": "aws", "kind": ApplicationKind.ECS}
    document = {**config, "kind": "ECSApp", "spec": spec}
    return Generation(yaml.safe_dump(document, width=1000), providers, fields)


@pytest.mark.slow
async def test_the_sample_of_the_guide_is_deployed_with_a_canary_and_rolled_back(
    start_plane: StartControlPlane,
    origin: Origin,
    whole_piped: RunPiped,
    generation: Generation,
    amazon: Amazon,
) -> None:
    balancer = Balancer(amazon).create()
    listener, ecs = balancer.listener(80), amazon.client("ecs")
    ecs.create_cluster(clusterName="prod")

    def running() -> list[tuple[str, str, float]]:
        sets = ecs.describe_task_sets(cluster="prod", service="shop")["taskSets"]
        found: list[tuple[str, str, float]] = []
        for each in sets:
            task = ecs.describe_task_definition(taskDefinition=each["taskDefinition"])
            image = task["taskDefinition"]["containerDefinitions"][0]["image"]
            found.append((image.rpartition(":")[2], each["status"], each["scale"]["value"]))
        return found

    async def deployments() -> list[Any]:
        listed = await plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        return sorted(listed.items, key=lambda deployment: -deployment.created_at)

    def ended(count: int) -> Any:
        async def ask() -> Any:
            done = [d for d in await deployments() if DeploymentStatus(d.status).is_completed]
            return done[0] if len(done) == count else None

        return ask

    origin.commit(generation.files(balancer, "v1"))
    more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in generation.piped.items())
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        await piped.add_application("shop", **generation.fields)
        first = await eventually(ended(1), 60)
        assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason
        assert [stage.name for stage in first.stages][:1] == ["ECS_SYNC"]
        assert running() == [("v1", "PRIMARY", 100)]

        origin.commit(generation.files(balancer, "v2"))
        second = await eventually(ended(2), 90)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS, second.status_reason
        assert [stage.name for stage in second.stages][:2] == [
            "ECS_CANARY_ROLLOUT",
            "ECS_TRAFFIC_ROUTING",
        ]
        assert running() == [("v2", "PRIMARY", 100)]
        assert balancer.weights(listener) == {"primary": 100, "canary": 0}
        weights = [
            {group["TargetGroupArn"]: group["Weight"] for group in groups}
            for call in amazon.calls
            if call.operation == "ModifyListener"
            for groups in [call.parameters["DefaultActions"][0]["ForwardConfig"]["TargetGroups"]]
        ]
        assert weights == [
            {balancer.primary: 75, balancer.canary: 25},
            {balancer.primary: 100, balancer.canary: 0},
        ]

        # The third version fails when it shall replace the primary tasks.
        amazon.refuse("UpdateServicePrimaryTaskSet", "AccessDeniedException", "no", times=1)
        origin.commit(generation.files(balancer, "v3"))
        third = await eventually(ended(3), 90)
        assert DeploymentStatus(third.status) is DeploymentStatus.FAILURE
        stages = {stage.name: StageStatus(stage.status) for stage in third.stages}
        assert stages["ECS_PRIMARY_ROLLOUT"] is StageStatus.FAILURE
        assert stages["ECS_ROLLBACK"] is StageStatus.SUCCESS
        assert running() == [("v2", "PRIMARY", 100)]
        assert balancer.weights(listener) == {"primary": 100, "canary": 0}
