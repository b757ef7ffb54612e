# SPDX-License-Identifier: Apache-2.0
"""What a deployment changes is reported beside it, and never stands in its way."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import grpc
import pytest

from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service.deployment_changes_pb2 import DeploymentChanges
from pipecd.sdk import (
    DeploymentPlugin,
    PipecdError,
    PlanContext,
    PlannedStage,
    Preview,
    PreviewContext,
    PreviewPlugin,
    Stage,
    StageContext,
    StageResult,
    Strategy,
    Version,
)
from servers.deployer import DeployerSetup, OpenDeployer

CONFIG = "  plugins: {files: {}}\n"
REPORT = "ReportDeploymentChanges"
SECRET = "correct-horse"
FILES = PluginSpec(name="files", deploy_targets=(DeployTargetSpec(name="dev"),))


@dataclass
class FilePlatform(DeploymentPlugin, PreviewPlugin):
    """A platform whose applications are the file `text`, and whose previews a test can hold."""

    error: str = ""
    previews: asyncio.Event = field(default_factory=asyncio.Event)

    stages = (Stage("FILES_SYNC"),)

    def __post_init__(self) -> None:
        self.previews.set()

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return []

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        return None

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        return [PlannedStage("FILES_SYNC")]

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        await self.previews.wait()
        old, new = (
            (source.application_directory / "text").read_text() if source else ""
            for source in (change.running, change.target)
        )
        if self.error:
            raise PipecdError(f"{self.error}: {new}")
        if old == new:
            return [Preview("dev", "nothing", no_change=True)]
        return [Preview("dev", f"{new} is new", f"- {old}\n+ {new}\n")]


async def trigger(setup: DeployerSetup, more: str = "", **files: str) -> str:
    """Pushes files of the application and deploys them."""
    targets = {"files": DeployTargets(deploy_targets=["dev"])}
    commit = setup.push(CONFIG + more, **files)
    return await setup.trigger(commit, deploy_targets_by_plugin=targets)


async def reported(setup: DeployerSetup, id: str) -> DeploymentChanges:
    """Waits for what the deployment changes."""
    cases, admin = setup.plane.cases, setup.plane.admin
    changes = await setup.plane.wait_for(lambda: cases.deployments.changes(id, by=admin), bool)
    assert changes is not None
    return changes


async def test_a_deployment_reports_its_differences_with_the_running_commit(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        setup.plugins = {"files": FilePlatform}
        async with setup.piped([FILES]):
            before = await trigger(setup, text="one")
            first = (await setup.finished(before)).trigger.commit.hash
            assert (await reported(setup, before)).running_commit == ""
            after = await trigger(setup, text="two")
            changes = await reported(setup, after)
            await setup.finished(after)
            same = await reported(setup, again := await trigger(setup, other="x"))
            await setup.finished(again)
    [result] = changes.results
    assert (changes.running_commit, changes.error, changes.no_change) == (first, "", False)
    assert (result.plugin_name, result.deploy_target, result.diff_language) == (
        *("files", "dev", "diff"),
    )
    assert (result.plan_summary, result.plan_details) == (b"two is new", b"- one\n+ two\n")
    assert changes.created_at > 0
    assert same.no_change


async def test_changes_that_are_not_known_yet_delay_no_deployment(
    open_setup: OpenDeployer,
) -> None:
    platform = FilePlatform()
    platform.previews.clear()
    async with open_setup() as setup:
        setup.plugins = {"files": lambda: platform}
        async with setup.piped([FILES]):
            id = await trigger(setup, text="one")
            done = await setup.finished(id)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
            assert await setup.plane.cases.deployments.changes(id, by=setup.plane.admin) is None
            platform.previews.set()
            changes = await reported(setup, id)
        assert not list(setup.plane.directory.glob("work/deployment-changes/*"))
    assert changes.stages_had_started
    assert changes.results[0].plan_details == b"- \n+ one\n"


async def test_changes_that_are_known_before_the_first_stage_lack_nothing(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        setup.plugins = {"files": FilePlatform}
        # No stage starts before the control plane knows that the deployment runs.
        setup.plane.gate.close("ReportDeploymentStatusChanged")
        async with setup.piped([FILES]):
            id = await trigger(setup, text="one")
            changes = await reported(setup, id)
    assert not changes.stages_had_started


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param("no access", "[files] no access: one", id="the plugin fails"),
        pytest.param("", "there was no result within 300ms", id="the plugin hangs"),
    ],
)
async def test_a_failure_is_reported_and_fails_no_deployment(
    open_setup: OpenDeployer, failure: str, error: str
) -> None:
    platform = FilePlatform(error=failure)
    if not failure:
        platform.previews.clear()
    async with open_setup() as setup:
        setup.plugins, setup.time_limit_of_changes = {"files": lambda: platform}, 0.3
        async with setup.piped([FILES]):
            id = await trigger(setup, text="one")
            assert (await reported(setup, id)).error == error
            done = await setup.finished(id)
    assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS


async def test_an_application_whose_plugins_have_no_preview_reports_that(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push("  pipeline: {stages: [{name: ACT}]}\n"))
        changes = await reported(setup, id)
        await setup.finished(id)
    assert (list(changes.results), changes.error, changes.no_change) == ([], "", False)


@pytest.mark.parametrize("failure", ["", "it failed"], ids=["differences", "an error"])
async def test_secrets_are_masked_in_what_is_stored(open_setup: OpenDeployer, failure: str) -> None:
    secrets = "  encryption: {encryptedSecrets: {word: c2VhbGVk}, decryptionTargets: [text]}\n"
    async with open_setup() as setup:
        setup.plugins = {"files": partial(FilePlatform, error=failure)}
        setup.decrypt = lambda _text, _binding: SECRET
        async with setup.piped([FILES]):
            id = await trigger(setup, secrets, text="password: {{ .encryptedSecrets.word }}")
            changes = await reported(setup, id)
            await setup.finished(id)
    assert SECRET not in str(changes)
    assert "password: ******" in str(changes)


async def test_long_differences_are_truncated(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        setup.plugins = {"files": FilePlatform}
        async with setup.piped([FILES]):
            id = await trigger(setup, text="a long line\n" * 100_000)
            changes = await reported(setup, id)
            await setup.finished(id)
    assert changes.results[0].plan_details.endswith(b" more bytes are not shown)\n")
    assert changes.ByteSize() < 600_000


async def test_a_control_plane_without_the_rpc_is_called_once(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        setup.plugins = {"files": FilePlatform}
        setup.plane.gate.refusals[REPORT] = grpc.StatusCode.UNIMPLEMENTED
        async with setup.piped([FILES]):
            for text in ("one", "two", "three"):
                await setup.finished(await trigger(setup, text=text))
        assert setup.plane.gate.count(REPORT) == 1
