# SPDX-License-Identifier: Apache-2.0
"""A canary on a cloud that upstream's piped has started is completed or rolled back by ours."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from servers.amazon import Amazon
from servers.amazon_ecs import EcsRules
from servers.amazon_lambda import LambdaRules
from servers.certificates import self_signed
from servers.cloud_run import REGION
from servers.clouds import Cloud, open_cloud
from servers.https_proxy import https_proxy
from servers.installation import Agent, Program
from servers.our_installation import OpenInstallation, OurInstallation
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
    keeps_its_stage: bool = True
    """Whether a stage that waits goes on after SIGTERM; pipedv1 reports it as cancelled."""


# Upstream's ECS plugin gives its rollback stage the index "number of stages of ECS + 1", and the SDK
# of upstream's plugins accepts only indexes of stages of the plugin. So it plans a pipeline only if
# a stage of ECS happens to have this index: with two stages of other plugins before the last one.
WAIT = {"name": "WAIT", "with": {"duration": "1s"}}
# Upstream's plugin for approvals plans no stage that anyone may approve.
APPROVERS = {"approvers": ["admin"]}


@pytest.fixture(
    params=[("cloudrun", "first"), ("ecs", "first"), ("ecs", "second"), ("lambda", "first")],
    ids=" ".join,
)
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
    if name == "second":
        opened = opened.with_approval(name, WAIT)
        for stage in opened.stages:
            if stage["name"] == "WAIT_APPROVAL":
                stage["with"] = APPROVERS
    else:
        opened = opened.with_approval(name)
    cloud = replace(opened, target=target)
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
            name, cloud, program, arguments, {"plugins": theirs}, ours, cloud.rollback.stage, False
        )
        # Upstream's plugin deletes task sets with tasks and without force.
        ecs = amazon.rules["ecs"]
        assert isinstance(ecs, EcsRules)
        ecs.requires_force = False
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


@dataclass(frozen=True)
class ChangeOver:
    """An application that upstream's piped deploys, and then ours."""

    installation: OurInstallation
    generation: Generation
    agent: Agent
    first: str
    flags: tuple[str, ...]

    async def begin_canary(self, theirs: Program) -> tuple[str, tuple[str, str]]:
        """Lets upstream's piped deploy the first commit, and the canary of the second one.

        Returns the second commit, and the stage that waits for an approval.
        """
        installation, cloud = self.installation, self.generation.cloud
        done = await installation.eventually(lambda: installation.ended(self.first), theirs)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
        second = installation.origin.commit(cloud.files("v2"))
        waiting = await installation.eventually(
            lambda: installation.stage(second, "WAIT_APPROVAL"), theirs
        )
        assert cloud.state() == cloud.canary.state
        return second, waiting

    def theirs(self, *, is_killed: bool) -> AbstractAsyncContextManager[Program]:
        """Runs upstream's piped; pipedv1 ends after its grace of 30 seconds."""
        line = (self.generation.program, *self.generation.arguments, *self.flags)
        if is_killed:
            return self.installation.killed(*line)
        return self.installation.running(*line, grace=60)

    def ours(self, port: int) -> AbstractAsyncContextManager[Program]:
        """Runs our piped with the file of upstream's, without the addresses of its plugins."""
        generation = self.generation
        text = self.agent.config.read_text()
        text = text.replace(lines(generation.theirs), lines(generation.ours))
        self.agent.config.write_text(text)
        flags = (*self.flags[:-1], f"--admin-port={port}")
        return self.installation.running(OUR_PIPED, "run", *flags)

    async def assert_ends(self, commit: str, ours: Program, expected: tuple[str, str]) -> None:
        """Waits for the end: the status of the deployment, and of its rollback."""
        installation, cloud = self.installation, self.generation.cloud
        done = await installation.eventually(lambda: installation.ended(commit), ours)
        stages = {stage.name: StageStatus(stage.status).name for stage in done.stages}
        text = (done.status_reason, await installation.logs(done), ours.text)
        status = DeploymentStatus(done.status).name
        assert (status, stages[self.generation.rollback]) == expected, text
        assert cloud.state() == cloud.expected[1 if status == "SUCCESS" else 0], text


@pytest.fixture
async def change_over(
    open_installation: OpenInstallation, free_port: Callable[[], int], generation: Generation
) -> AsyncGenerator[ChangeOver, None]:
    cloud = generation.cloud
    async with open_installation() as installation:
        config = json.dumps(cloud.application(generation.name))
        first = installation.origin.commit({"shop/app.pipecd.yaml": config, **cloud.files("v1")})
        agent = await installation.register_piped("dev", lines(generation.theirs))
        draft = Application(name="shop", piped_id=agent.id, **cloud.fields(generation.name))
        await installation.add_application("shop", draft)
        flags = (f"--config-file={agent.config}", "--insecure=true", f"--admin-port={free_port()}")
        yield ChangeOver(installation, generation, agent, first, flags)


@pytest.mark.parametrize(
    ("is_approved", "expected"),
    [
        pytest.param(True, ("SUCCESS", "NOT_STARTED_YET"), id="promoted"),
        pytest.param(False, ("CANCELLED", "SUCCESS"), id="rolled back"),
    ],
)
async def test_a_canary_of_upstreams_piped_is_completed_by_ours(
    change_over: ChangeOver,
    free_port: Callable[[], int],
    is_approved: bool,
    expected: tuple[str, str],
) -> None:
    installation, generation = change_over.installation, change_over.generation
    async with change_over.theirs(is_killed=not generation.keeps_its_stage) as theirs:
        second, waiting = await change_over.begin_canary(theirs)
    async with change_over.ours(free_port()) as ours:
        deployments = installation.cases.deployments
        if is_approved:
            await deployments.approve(*waiting, by=installation.admin)
        else:
            await deployments.cancel(waiting[0], True, False, by=installation.admin)
        await change_over.assert_ends(second, ours, expected)


@pytest.mark.parametrize("generation", [("ecs", "second")], indirect=True, ids=" ".join)
async def test_a_canary_that_pipedv1_cancelled_as_it_stopped_is_rolled_back(
    change_over: ChangeOver, free_port: Callable[[], int]
) -> None:
    async with change_over.theirs(is_killed=False) as theirs:
        second, _ = await change_over.begin_canary(theirs)
    async with change_over.ours(free_port()) as ours:
        await change_over.assert_ends(second, ours, ("CANCELLED", "SUCCESS"))


@pytest.mark.parametrize("generation", [("ecs", "second")], indirect=True, ids=" ".join)
async def test_a_pipeline_that_pipedv1_cannot_plan_is_deployed_by_ours(
    change_over: ChangeOver, free_port: Callable[[], int]
) -> None:
    installation, cloud = change_over.installation, change_over.generation.cloud
    stages = tuple(each for each in cloud.stages if each["name"].startswith("ECS_"))
    config = json.dumps(replace(cloud, stages=stages).application("second"))
    async with change_over.theirs(is_killed=True) as theirs:
        first = change_over.first
        done = await installation.eventually(lambda: installation.ended(first), theirs)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
        files = {"shop/app.pipecd.yaml": config, **cloud.files("v2")}
        second = installation.origin.commit(files)
        failed = await installation.eventually(lambda: installation.ended(second), theirs)
    assert DeploymentStatus(failed.status) is DeploymentStatus.FAILURE
    assert "unable to plan the deployment" in failed.status_reason
    errors = [line for line in theirs.lines if '"error"' in line]
    assert "missing stage with index 6 in the request" in "".join(errors), errors
    assert cloud.state() == cloud.expected[0]
    async with change_over.ours(free_port()) as ours:
        third = installation.origin.commit(cloud.files("v2") | {"shop/README": "again\n"})
        await change_over.assert_ends(third, ours, ("SUCCESS", "NOT_STARTED_YET"))
