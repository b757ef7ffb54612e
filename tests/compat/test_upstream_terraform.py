# SPDX-License-Identifier: Apache-2.0
"""Terraform applications of upstream's pipeds, continued by ours, and both on the same state."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.piped import DeployTargetSpec
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.plugins.terraform.plugin import TerraformPlugin
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.sdk import PluginEntry, StartContext
from pipecd.sdk.testing import MemoryHost, StageBench
from plugins.terraform.testbed import Application as TerraformApplication
from plugins.terraform.testbed import data
from servers.comparison import write_comparison
from servers.installation import Agent, Program
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPED
from servers.upstream_plugin import RunStage, upstream_plugin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]

PROVIDERS = "  platformProviders: [{name: tf, type: TERRAFORM}]\n"
APP = """\
apiVersion: pipecd.dev/v1beta1
kind: TerraformApp
spec:
  name: infra
  input: {terraformVersion: given, autoRollback: true}
"""
SECOND = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: infra
  plugins:
    terraform: {terraformVersion: given}
"""
PIPELINE = """\
  pipeline:
    stages:
      - name: TERRAFORM_PLAN
      - name: WAIT_APPROVAL
        with: {approvers: [admin]}
      - name: TERRAFORM_APPLY
"""
HELD = """\
resource "terraform_data" "held" {
  depends_on = [terraform_data.ground]
  provisioner "local-exec" { command = "touch BEGUN; while [ -e HOLD ]; do sleep 0.05; done" }
}
"""
BROKEN = """\
resource "terraform_data" "broken" {
  depends_on = [terraform_data.ground]
  provisioner "local-exec" { command = "false" }
}
"""


def ground(state: Path, value: str) -> str:
    return (
        f'terraform {{\n  backend "local" {{ path = "{state}" }}\n}}\n'
        f'resource "terraform_data" "ground" {{ input = "{value}" }}\n'
    )


def inputs(state: Path) -> dict[str, str]:
    """The inputs of the resources in a state, by name."""
    return {
        each["name"]: (each["instances"][0]["attributes"].get("input") or {}).get("value", "")
        for each in json.loads(state.read_bytes())["resources"]
    }


@dataclass(frozen=True)
class Generation:
    """How a generation of upstream's piped is configured and started, and how ours is."""

    application: str
    pipeline: str
    draft: dict[str, Any]
    theirs: str
    ours: str
    """What the file of piped has about plugins or platform providers."""
    program: Path
    arguments: tuple[str, ...]
    rollback: str
    keeps_its_stage: bool
    """Whether a stage that waits goes on after SIGTERM; pipedv1 reports it as cancelled."""


@pytest.fixture(params=["first", "second"])
def generation(
    request: pytest.FixtureRequest, tools_dir: Path, free_port: Callable[[], int]
) -> Generation:
    flags = ("--insecure=true", f"--tools-dir={tools_dir}", f"--admin-port={free_port()}")
    if request.param == "first":
        program: Path = request.getfixturevalue("upstream_piped")
        draft = {"kind": common.TERRAFORM, "platform_provider": "tf"}
        arguments = ("piped", *flags)
        return Generation(
            APP, PIPELINE, draft, PROVIDERS, PROVIDERS, program, arguments, "ROLLBACK", True
        )
    plugins: Path = request.getfixturevalue("upstream_plugins")
    entries: list[dict[str, Any]] = [
        {"name": "terraform", "port": free_port(), "deployTargets": [{"name": "tf"}]},
        {"name": "waitapproval", "port": free_port()},
    ]
    theirs = [{**each, "url": f"file://{plugins}/{each['name']}"} for each in entries]
    program = request.getfixturevalue("upstream_pipedv1")
    return Generation(
        SECOND,
        f"  planner: {{alwaysUsePipeline: true}}\n{PIPELINE}",
        {"deploy_targets_by_plugin": {"terraform": DeployTargets(deploy_targets=["tf"])}},
        f"  plugins: {json.dumps(theirs)}\n",
        f"  plugins: {json.dumps(entries)}\n",
        program,
        ("run", *flags, f"--plugin-service-port={free_port()}"),
        "TERRAFORM_ROLLBACK",
        keeps_its_stage=False,
    )


@dataclass(frozen=True)
class ChangeOver:
    """An application that upstream's piped deploys, and then ours."""

    installation: OurInstallation
    generation: Generation
    agent: Agent
    first: str
    state: Path
    flags: tuple[str, ...]
    """The flags of our piped."""

    async def deploy_first(self, theirs: Program) -> None:
        """Waits until upstream's piped has deployed the first commit, with the input `one`."""
        installation = self.installation
        done = await installation.eventually(lambda: installation.ended(self.first), theirs)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason

    def push(self, more: str = "") -> str:
        """Commits the input `two` with the pipeline."""
        app = self.generation.application + self.generation.pipeline
        hcl = ground(self.state, "two") + more
        files = {"infra/app.pipecd.yaml": app, "infra/main.tf": hcl}
        return self.installation.origin.commit(files)

    async def approval(self, commit: str, piped: Program) -> tuple[str, str]:
        """Waits until the deployment waits for its approval."""
        return await self.installation.eventually(
            lambda: self.installation.stage(commit, "WAIT_APPROVAL"), piped
        )

    async def approve(self, waiting: tuple[str, str]) -> None:
        cases = self.installation.cases
        await cases.deployments.approve(*waiting, by=self.installation.admin)

    def ours(self) -> AbstractAsyncContextManager[Program]:
        """Runs our piped with the file of upstream's, without the addresses of its plugins."""
        text = self.agent.config.read_text()
        text = text.replace(self.generation.theirs, self.generation.ours)
        self.agent.config.write_text(text)
        return self.installation.running(OUR_PIPED, "piped", *self.flags)

    async def assert_ends(self, commit: str, ours: Program, expected: tuple[str, str, str]) -> None:
        """Waits for the end: the status, the input of the resource, the status of the rollback."""
        installation = self.installation
        done = await installation.eventually(lambda: installation.ended(commit), ours)
        stages = {stage.name: StageStatus(stage.status).name for stage in done.stages}
        text = (done.status_reason, await installation.logs(done))
        status = DeploymentStatus(done.status).name
        outcome = (status, inputs(self.state).get("ground"), stages[self.generation.rollback])
        assert outcome == expected, text


@pytest.fixture
async def change_over(
    open_installation: OpenInstallation,
    generation: Generation,
    free_port: Callable[[], int],
    tools_dir: Path,
    tmp_path: Path,
) -> AsyncIterator[ChangeOver]:
    state = tmp_path / "state"
    async with open_installation() as installation:
        files = {"app.pipecd.yaml": generation.application, "main.tf": ground(state, "one")}
        first = installation.origin.commit({f"infra/{k}": v for k, v in files.items()})
        agent = await installation.register_piped("theirs", generation.theirs)
        draft = Application(name="infra", piped_id=agent.id, **generation.draft)
        await installation.add_application("infra", draft)
        flags = ("--insecure=true", f"--tools-dir={tools_dir}", f"--admin-port={free_port()}")
        config_file = f"--config-file={agent.config}"
        yield ChangeOver(installation, generation, agent, first, state, (*flags, config_file))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        pytest.param("", ("SUCCESS", "two", "NOT_STARTED_YET"), id="continued"),
        pytest.param(BROKEN, ("FAILURE", "one", "SUCCESS"), id="rolled back"),
    ],
)
async def test_a_deployment_of_upstreams_piped_is_completed_by_ours(
    change_over: ChangeOver, more: str, expected: tuple[str, str, str]
) -> None:
    installation, generation = change_over.installation, change_over.generation
    run = installation.running if generation.keeps_its_stage else installation.killed
    config_file = f"--config-file={change_over.agent.config}"
    async with run(generation.program, *generation.arguments, config_file) as theirs:
        await change_over.deploy_first(theirs)
        commit = change_over.push(more)
        waiting = await change_over.approval(commit, theirs)
    async with change_over.ours() as ours:
        await change_over.approve(waiting)
        await change_over.assert_ends(commit, ours, expected)


@pytest.mark.parametrize("generation", ["second"], indirect=True)
async def test_a_deployment_that_pipedv1_cancelled_as_it_stopped_is_rolled_back(
    change_over: ChangeOver,
) -> None:
    installation, generation = change_over.installation, change_over.generation
    config_file = f"--config-file={change_over.agent.config}"
    # It ends after its grace of 30 seconds.
    async with installation.running(
        generation.program, *generation.arguments, config_file, grace=60
    ) as theirs:
        await change_over.deploy_first(theirs)
        commit = change_over.push()
        await change_over.approval(commit, theirs)
    left = await installation.deployment(commit)
    assert left is not None
    stages = {stage.name: StageStatus(stage.status).name for stage in left.stages}
    assert stages["WAIT_APPROVAL"] == "CANCELLED"
    assert not DeploymentStatus(left.status).is_completed
    async with change_over.ours() as ours:
        await change_over.assert_ends(commit, ours, ("CANCELLED", "one", "SUCCESS"))


async def test_an_apply_that_is_killed_with_upstreams_piped_is_repeated(
    change_over: ChangeOver, tmp_path: Path
) -> None:
    installation, generation = change_over.installation, change_over.generation
    config_file = f"--config-file={change_over.agent.config}"
    begun, hold = tmp_path / "begun", tmp_path / "hold"
    hold.touch()

    async def is_begun() -> bool:
        return begun.exists()

    async with installation.killed(
        generation.program, *generation.arguments, config_file
    ) as theirs:
        await change_over.deploy_first(theirs)
        commit = change_over.push(HELD.replace("BEGUN", str(begun)).replace("HOLD", str(hold)))
        await change_over.approve(await change_over.approval(commit, theirs))
        await installation.eventually(is_begun, theirs)
    hold.unlink()
    async with change_over.ours() as ours:
        await change_over.assert_ends(commit, ours, ("SUCCESS", "two", "NOT_STARTED_YET"))
    assert "held" in inputs(change_over.state)


UNAPPROVED = """\
  planner: {alwaysUsePipeline: true}
  pipeline:
    stages:
      - name: TERRAFORM_PLAN
      - name: TERRAFORM_APPLY
"""


async def test_upstreams_plugin_and_ours_leave_the_same_state(
    open_installation: OpenInstallation,
    free_port: Callable[[], int],
    upstream_pipedv1: Path,
    upstream_plugins: Path,
    tools_dir: Path,
    tmp_path: Path,
) -> None:
    state, extra = tmp_path / "state", 'resource "terraform_data" "extra" { input = "x" }\n'
    entry = {"name": "terraform", "port": free_port(), "deployTargets": [{"name": "here"}]}
    theirs = {**entry, "url": f"file://{upstream_plugins}/terraform"}
    written = f"  plugins: [{json.dumps(theirs)}]\n"
    async with open_installation() as installation:
        agent = await installation.register_piped("v1", written)

        async def deploy(piped: Program, config: str, hcl: str) -> tuple[str, dict[str, str]]:
            files = {"infra/app.pipecd.yaml": config, "infra/main.tf": hcl}
            commit = installation.origin.commit(files)
            done = await installation.eventually(lambda: installation.ended(commit), piped)
            return DeploymentStatus(done.status).name, inputs(state)

        async def story(piped: Program, name: str) -> list[tuple[str, dict[str, str]]]:
            """A quick sync, a pipeline, and a pipeline that fails and is rolled back."""
            return [
                await deploy(piped, SECOND, ground(state, f"{name} one")),
                await deploy(piped, SECOND + UNAPPROVED, ground(state, f"{name} two") + extra),
                await deploy(piped, SECOND + UNAPPROVED, ground(state, f"{name} three") + BROKEN),
            ]

        def expected(name: str) -> list[tuple[str, dict[str, str]]]:
            rolled_back = {"ground": f"{name} two", "extra": "x"}
            return [
                ("SUCCESS", {"ground": f"{name} one"}),
                ("SUCCESS", rolled_back),
                ("FAILURE", rolled_back),
            ]

        draft = Application(
            name="infra",
            piped_id=agent.id,
            deploy_targets_by_plugin={"terraform": DeployTargets(deploy_targets=["here"])},
        )
        installation.origin.commit(
            {"infra/app.pipecd.yaml": SECOND, "infra/main.tf": ground(state, "zero")}
        )
        await installation.add_application("infra", draft)
        flags = ("--insecure=true", f"--config-file={agent.config}", f"--tools-dir={tools_dir}")
        service = f"--plugin-service-port={free_port()}"
        async with installation.running(
            upstream_pipedv1, "run", *flags, service, f"--admin-port={free_port()}"
        ) as piped:
            assert await story(piped, "theirs") == expected("theirs"), piped.text
        ours = agent.config.read_text().replace(written, f"  plugins: [{json.dumps(entry)}]\n")
        agent.config.write_text(ours)
        async with installation.running(
            OUR_PIPED, "run", *flags, f"--admin-port={free_port()}"
        ) as piped:
            assert await story(piped, "ours") == expected("ours"), piped.text


# The stages of a quick sync, a pipeline, and a pipeline that is rolled back, with their commits.
STAGES = [
    ("one", "TERRAFORM_APPLY"),
    ("two", "TERRAFORM_PLAN"),
    ("two", "TERRAFORM_APPLY"),
    ("three", "TERRAFORM_PLAN"),
    ("three", "TERRAFORM_APPLY"),
    ("three", "TERRAFORM_ROLLBACK"),
]


async def resources_after_each_stage(
    application: TerraformApplication, run: RunStage
) -> list[dict[str, str]]:
    application.section = {"terraformVersion": "given"}
    (application.directory / "state").mkdir()
    one = application.commit("one", data(first="v1", second="v1"))
    two = application.commit("two", data(first="v2", third="v2"))
    three = application.commit("three", data(third="v3", fourth="v3"))
    two.running, three.running = one, two
    commits, seen = {"one": one, "two": two, "three": three}, list[dict[str, str]]()
    for index, (commit, stage) in enumerate(STAGES):
        await run(commits[commit], stage, {}, index)
        seen.append(application.inputs)
    return seen


async def test_the_resources_after_each_stage_are_the_same(
    upstream_plugins: Path, terraform: str, tmp_path: Path
) -> None:
    plugin, host = TerraformPlugin(), MemoryHost()
    host.tools["terraform"] = Path(terraform)
    applications = [tmp_path / name for name in ("theirs", "ours")]
    for directory in applications:
        directory.mkdir()
    theirs, own = (TerraformApplication(each, plugin, host) for each in applications)
    target = DeployTargetSpec(name="dev", config={})
    async with upstream_plugin(
        upstream_plugins / "terraform", tmp_path, target, {"terraform": Path(terraform)}
    ) as run:
        expected = await resources_after_each_stage(theirs, run)

    async def run_ours(bench: StageBench, name: str, options: dict[str, Any], index: int) -> None:
        host.stage_metadata.clear()
        done = await bench.run(name, options, index=index, is_rollback=name.endswith("_ROLLBACK"))
        assert done.status is StageStatus.SUCCESS, done.message

    async with AsyncExitStack() as lifetime:
        await plugin.prepare(StartContext(PluginEntry("terraform"), host, lifetime))
        seen = await resources_after_each_stage(own, run_ours)
    names = [f"{stage} of commit {commit}" for commit, stage in STAGES]
    write_comparison("upstream-terraform.txt", names, expected, seen)
    rows = zip(STAGES, seen, expected, strict=True)
    assert [(stage, ours) for stage, ours, _ in rows] == list(zip(STAGES, expected, strict=True))
    # A plan changes nothing, and the rollback restores what the commit before had.
    assert seen[5] == seen[2] == {"first": "v2", "third": "v2"}
    assert seen[1] == seen[0]
