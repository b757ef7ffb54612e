# SPDX-License-Identifier: Apache-2.0
"""A canary on Lambda that upstream's piped has started is promoted or rolled back by ours."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from servers.amazon import ACCOUNT, REGION, Amazon
from servers.amazon_lambda import LambdaRules
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]

PROVIDERS = f"  platformProviders: [{{name: aws, type: LAMBDA, config: {{region: {REGION}}}}}]\n"
APP = """\
apiVersion: pipecd.dev/v1beta1
kind: LambdaApp
spec:
  name: shop
  pipeline:
    stages:
      - name: LAMBDA_CANARY_ROLLOUT
      - name: LAMBDA_PROMOTE
        with: {percent: 10}
      - name: WAIT_APPROVAL
      - name: LAMBDA_PROMOTE
        with: {percent: 100}
"""


def manifest(name: str, tag: str) -> str:
    spec = {
        "name": name,
        "role": f"arn:aws:iam::{ACCOUNT}:role/tests",
        "image": f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/shop:{tag}",
        "memory": 128,
        "timeout": 3,
        "environments": {"TAG": tag},
    }
    return json.dumps({"apiVersion": "pipecd.dev/v1beta1", "kind": "LambdaFunction", "spec": spec})


@pytest.mark.parametrize(
    ("is_approved", "expected"),
    [
        pytest.param(True, ("SUCCESS", "NOT_STARTED_YET", "2", "v2"), id="promoted"),
        pytest.param(False, ("CANCELLED", "SUCCESS", "1", "v1"), id="rolled back"),
    ],
)
async def test_a_canary_of_upstreams_piped_is_completed_by_ours(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    upstream_piped: Path,
    amazon: Amazon,
    monkeypatch: pytest.MonkeyPatch,
    is_approved: bool,
    expected: tuple[str, str, str, str],
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", amazon.url)
    rules = amazon.rules["lambda"]
    assert isinstance(rules, LambdaRules)
    # Upstream's piped crashes while a change is in progress.
    rules.reads = 0
    iam, aws = amazon.client("iam"), amazon.client("lambda")
    with suppress(iam.exceptions.EntityAlreadyExistsException):
        iam.create_role(RoleName="tests", AssumeRolePolicyDocument="{}")
    name = f"shop-{uuid4().hex[:8]}"

    def traffic() -> tuple[str, dict[str, float]]:
        alias = aws.get_alias(FunctionName=name, Name="Service")
        weights = (alias.get("RoutingConfig") or {}).get("AdditionalVersionWeights") or {}
        return alias["FunctionVersion"], dict(weights)

    async with open_installation() as installation:
        files = {"shop/app.pipecd.yaml": APP, "shop/function.yaml": manifest(name, "v1")}
        first = installation.origin.commit(files)
        agent = await installation.register_piped("v0", PROVIDERS)
        draft = Application(
            name="shop", piped_id=agent.id, kind=common.LAMBDA, platform_provider="aws"
        )
        await installation.add_application("shop", draft)
        flags = (f"--config-file={agent.config}", "--insecure=true")
        async with installation.running(
            upstream_piped, "piped", *flags, f"--admin-port={free_port()}"
        ) as theirs:
            done = await installation.eventually(lambda: installation.ended(first), theirs)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            second = installation.origin.commit({"shop/function.yaml": manifest(name, "v2")})
            waiting = await installation.eventually(
                lambda: installation.stage(second, "WAIT_APPROVAL"), theirs
            )
        assert traffic() == ("2", {"1": 0.9})
        async with installation.running(
            OUR_PIPED, "piped", *flags, f"--admin-port={free_port()}"
        ) as ours:
            deployments = installation.cases.deployments
            if is_approved:
                await deployments.approve(*waiting, by=installation.admin)
            else:
                await deployments.cancel(waiting[0], True, False, by=installation.admin)
            done = await installation.eventually(lambda: installation.ended(second), ours)
        stages = {stage.name: StageStatus(stage.status).name for stage in done.stages}
        version, weights = traffic()
        variables = aws.get_function_configuration(FunctionName=name)["Environment"]["Variables"]
        text = (done.status_reason, await installation.logs(done))
        status = DeploymentStatus(done.status).name
        assert (status, stages["ROLLBACK"], version, variables["TAG"]) == expected, text
        assert weights == {}
