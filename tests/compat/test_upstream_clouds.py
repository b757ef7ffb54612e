# SPDX-License-Identifier: Apache-2.0
"""A canary on a cloud that upstream's piped has started is completed or rolled back by ours."""

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from servers.amazon import Amazon
from servers.amazon_lambda import LambdaRules
from servers.certificates import self_signed
from servers.cloud_run import REGION
from servers.clouds import Cloud, open_cloud
from servers.https_proxy import https_proxy
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.usefixtures("upstream")]


@dataclass(frozen=True)
class Generation:
    """A cloud with the piped of upstream that deploys to it, and the configurations of pipeds."""

    name: str
    cloud: Cloud
    program: Path
    arguments: tuple[str, ...]
    theirs: dict[str, Any]
    ours: dict[str, Any]
    rollback: str


@pytest.fixture(params=[("cloudrun", "first"), ("ecs", "first"), ("lambda", "first")], ids=" ".join)
async def generation(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    amazon: Amazon,
    free_port: Callable[[], int],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncGenerator[Generation, None]:
    """A cloud that clients find without an endpoint in the piped configuration."""
    platform, name = request.param
    opened = open_cloud(platform, tmp_path, amazon, request)
    server = opened.target["endpoint"]
    target = {key: value for key, value in opened.target.items() if key != "endpoint"}
    cloud = replace(opened.with_approval(name), target=target)
    if name == "first":
        program: Path = request.getfixturevalue("upstream_piped")
        config = cloud.piped(name)
        found = Generation(name, cloud, program, ("piped",), config, config, "ROLLBACK")
    else:
        program = request.getfixturevalue("upstream_pipedv1")
        plugins: Path = request.getfixturevalue("upstream_plugins")
        ours = cloud.piped(name)
        theirs = [
            {**plugin, "port": free_port(), "url": f"file://{plugins / plugin['name']}"}
            for plugin in ours["plugins"]
        ]
        arguments = ("run", f"--plugin-service-port={free_port()}")
        found = Generation(
            name, cloud, program, arguments, {"plugins": theirs}, ours, cloud.rollback.stage
        )
    if platform != "cloudrun":
        monkeypatch.setenv("AWS_ENDPOINT_URL", server)
        # Upstream's piped crashes while a change of a function is in progress.
        rules = amazon.rules["lambda"]
        assert isinstance(rules, LambdaRules)
        rules.reads = 0
        yield found
        return
    certificate = self_signed(tmp_path, f"{REGION}-run.googleapis.com")
    async with https_proxy(int(server.rpartition(":")[2]), certificate) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
        yield found


def lines(config: dict[str, Any]) -> str:
    return "".join(f"  {key}: {json.dumps(value)}\n" for key, value in config.items())


@pytest.mark.parametrize(
    ("is_approved", "expected"),
    [
        pytest.param(True, ("SUCCESS", "NOT_STARTED_YET"), id="promoted"),
        pytest.param(False, ("CANCELLED", "SUCCESS"), id="rolled back"),
    ],
)
async def test_a_canary_of_upstreams_piped_is_completed_by_ours(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    generation: Generation,
    is_approved: bool,
    expected: tuple[str, str],
) -> None:
    cloud = generation.cloud
    async with open_installation() as installation:
        config = json.dumps(cloud.application(generation.name))
        first = installation.origin.commit({"shop/app.pipecd.yaml": config, **cloud.files("v1")})
        agent = await installation.register_piped("dev", lines(generation.theirs))
        draft = Application(name="shop", piped_id=agent.id, **cloud.fields(generation.name))
        await installation.add_application("shop", draft)
        flags = (f"--config-file={agent.config}", "--insecure=true")
        async with installation.running(
            generation.program, *generation.arguments, *flags, f"--admin-port={free_port()}"
        ) as theirs:
            done = await installation.eventually(lambda: installation.ended(first), theirs)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
            second = installation.origin.commit(cloud.files("v2"))
            waiting = await installation.eventually(
                lambda: installation.stage(second, "WAIT_APPROVAL"), theirs
            )
        assert cloud.state() == cloud.canary.state
        text = agent.config.read_text()
        agent.config.write_text(text.replace(lines(generation.theirs), lines(generation.ours)))
        async with installation.running(
            OUR_PIPED, "run", *flags, f"--admin-port={free_port()}"
        ) as ours:
            deployments = installation.cases.deployments
            if is_approved:
                await deployments.approve(*waiting, by=installation.admin)
            else:
                await deployments.cancel(waiting[0], True, False, by=installation.admin)
            done = await installation.eventually(lambda: installation.ended(second), ours)
        stages = {stage.name: StageStatus(stage.status).name for stage in done.stages}
        text = (done.status_reason, await installation.logs(done), ours.text)
        status = DeploymentStatus(done.status).name
        assert (status, stages[generation.rollback]) == expected, text
        assert cloud.state() == cloud.expected[1 if is_approved else 0], text
