# SPDX-License-Identifier: Apache-2.0
"""A push becomes a canary on Lambda through a whole piped, is promoted or rolled back."""

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.amazon import REGION, Amazon
from servers.amazon_lambda import LambdaRules
from servers.control_plane import RunPiped, StartControlPlane
from servers.deployment_watch import DeploymentWatch, statuses
from servers.origin import Origin

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "lambda.md"
MANIFEST, CONFIG, *_ = re.findall(r"^```yaml\n(.*?)^```$", GUIDE.read_text(), re.M | re.S)


@dataclass(frozen=True)
class Generation:
    """The sample of the guide in one generation of configuration."""

    config: str
    piped: dict[str, Any]
    fields: dict[str, Any]

    def files(self, name: str, tag: str) -> dict[str, str]:
        manifest = MANIFEST.replace("name: shop", f"name: {name}").replace("shop:v1", f"shop:{tag}")
        return {"shop/app.pipecd.yaml": self.config, "shop/function.yaml": manifest}


@pytest.fixture(params=["first", "second"])
def generation(request: pytest.FixtureRequest, amazon: Amazon) -> Generation:
    iam = amazon.client("iam")
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="shop", AssumeRolePolicyDocument="{}")
    target = {"name": "aws", "config": {"region": REGION, "endpoint": amazon.url}}
    if request.param == "second":
        chosen = {"lambda": DeployTargets(deploy_targets=["aws"])}
        plugins = {"plugins": [{"name": "lambda", "deployTargets": [target]}]}
        return Generation(CONFIG, plugins, {"deploy_targets_by_plugin": chosen})
    stages = yaml.safe_load(CONFIG)["spec"]["pipeline"]
    config = {
        "apiVersion": "pipecd.dev/v1beta1",
        "kind": "LambdaApp",
        "spec": {"name": "shop", "pipeline": stages},
    }
    providers = {"platformProviders": [{"type": "LAMBDA", **target}]}
    fields = {"platform_provider": "aws", "kind": ApplicationKind.LAMBDA}
    return Generation(json.dumps(config), providers, fields)


@pytest.mark.slow
async def test_the_sample_of_the_guide_is_promoted_and_rolled_back(
    start_plane: StartControlPlane,
    origin: Origin,
    whole_piped: RunPiped,
    generation: Generation,
    amazon: Amazon,
) -> None:
    name, aws = f"shop-{uuid4().hex[:8]}", amazon.client("lambda")

    def traffic() -> tuple[str, dict[str, float]]:
        alias = aws.get_alias(FunctionName=name, Name="Service")
        weights = (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights") or {}
        return alias["FunctionVersion"], dict(weights)

    origin.commit(generation.files(name, "v1"))
    more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in generation.piped.items())
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        watch = DeploymentWatch(plane)
        await piped.add_application("shop", **generation.fields)
        first = await watch.ended(1)
        assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason
        assert traffic() == ("1", {})
        origin.commit(generation.files(name, "v2"))
        await watch.approval()
        assert traffic() == ("2", {"1": 0.9})
        await watch.approve()
        second = await watch.ended(2)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS, second.status_reason
        assert second.summary == "Sync with pipeline to update version from v1 to v2"
        assert traffic() == ("2", {})
        origin.commit(generation.files(name, "v3"))
        await watch.approval()
        assert traffic() == ("3", {"2": 0.9})
        await watch.cancel_with_rollback()
        third = await watch.ended(3)
        assert DeploymentStatus(third.status) is DeploymentStatus.CANCELLED
        assert statuses(third)["LAMBDA_ROLLBACK"] is StageStatus.SUCCESS
        assert traffic() == ("2", {})
        rules = amazon.rules["lambda"]
        assert isinstance(rules, LambdaRules)
        image = yaml.safe_load(MANIFEST)["spec"]["image"]
        rules.failing[image.replace(":v1", ":v4")] = "the image cannot be pulled"
        origin.commit(generation.files(name, "v4"))
        fourth = await watch.ended(4)
        assert DeploymentStatus(fourth.status) is DeploymentStatus.FAILURE
        assert statuses(fourth)["LAMBDA_ROLLBACK"] is StageStatus.SUCCESS
        assert traffic() == ("2", {})
