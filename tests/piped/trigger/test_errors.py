# SPDX-License-Identifier: Apache-2.0
"""Errors of a configuration or a repository are reported and affect nothing else."""

from pathlib import Path
from typing import Any

import grpc
import structlog.testing
from structlog.typing import EventDict

from pipecd.git.mirror import Repository
from pipecd.model.application import SyncStatus
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.application_pb2 import ApplicationSyncState
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART
from servers.trigger import OpenTrigger


async def test_an_invalid_configuration_is_reported_and_cleared_when_fixed(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART.replace("name: cart", "name: [1]")})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")

        async def state() -> ApplicationSyncState:
            return (await plane.application(id_)).sync_state

        async def is_status(status: SyncStatus) -> Any:
            return (await state()).status == status

        async with env.triggering(site):
            await eventually(lambda: is_status(SyncStatus.INVALID_CONFIG))
            assert "cart/app.pipecd.yaml:4" in (await state()).reason
            await env.wait_until_idle()
            # It is reported once, not at every pass.
            assert plane.gate.count("ReportApplicationSyncState") == 1
            assert await env.open_deployments() == []
        async with env.triggering(site):
            await env.wait_until_idle()
            assert plane.gate.count("ReportApplicationSyncState") == 1
            origin.commit({"cart/app.pipecd.yaml": CART})
            await eventually(env.has_deployments(1))
            await eventually(lambda: is_status(SyncStatus.DEPLOYING))


async def test_invalid_patterns_are_reported_and_do_not_block_commands(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    broken = CART + "  trigger:\n    onCommit: {ignores: ['docs/[']}\n"
    origin.commit({"cart/app.pipecd.yaml": broken})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")

        async def state() -> ApplicationSyncState:
            return (await plane.application(id_)).sync_state

        async with env.triggering(site):
            await eventually(state)
            await eventually(lambda: plane.gate.count("ReportApplicationSyncState"))
            await env.wait_until_idle()
            assert "trigger.onCommit: syntax error in pattern 'docs/['" in (await state()).reason
            assert await env.open_deployments() == []
            command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
            handled = await eventually(lambda: env.handled_command(command))
            await env.wait_until_idle()
            # The error is reported once, not at every pass.
            assert plane.gate.count("ReportApplicationSyncState") == 1
            origin.commit({"cart/app.pipecd.yaml": CART})
            await eventually(env.has_deployments(2))

            async def is_deploying() -> bool:
                return (await state()).status == SyncStatus.DEPLOYING

            await eventually(is_deploying)
        assert handled.status == CommandStatus.SUCCEEDED


async def test_a_broken_repository_does_not_delay_others(
    open_trigger: OpenTrigger, origin: Origin, site: Repository, tmp_path: Path
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        nowhere = f"file://{tmp_path}/nowhere"
        await plane.piped.add_repository("broken", nowhere)
        cart = await plane.piped.add_application("cart")
        other = await plane.piped.add_application("other", repository="broken")

        async def reason() -> str:
            return (await plane.application(other)).sync_state.reason

        async with env.triggering(Repository("broken", nowhere, "main"), site):
            await eventually(env.has_deployments(1, cart))
            await eventually(reason)
        assert "the repository was not found" in await reason()


async def test_an_application_of_an_unknown_repository_is_reported(
    open_trigger: OpenTrigger, origin: Origin
) -> None:
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)

        async def is_invalid() -> bool:
            state = (await plane.application(id_)).sync_state
            return bool(state.status == SyncStatus.INVALID_CONFIG)

        async with env.triggering():
            handled = await eventually(lambda: env.handled_command(command))
            await eventually(is_invalid)
        assert handled.status == CommandStatus.FAILED
        assert "'site' is not in the configuration" in handled.metadata["Reason"]


async def test_a_link_out_of_the_repository_is_reported_and_not_followed(
    open_trigger: OpenTrigger, origin: Origin, site: Repository, tmp_path: Path
) -> None:
    (tmp_path / "outside.yaml").write_text(CART.replace("cart", "s3cret"))
    (origin.path / "cart").mkdir()
    (origin.path / "cart" / "app.pipecd.yaml").symlink_to(tmp_path / "outside.yaml")
    origin.commit()
    async with open_trigger() as env:
        id_ = await env.plane.piped.add_application("cart")

        async def reason() -> str:
            return (await env.plane.application(id_)).sync_state.reason

        async with env.triggering(site):
            await eventually(reason)
        assert "is a symbolic link to a file outside of the repository" in await reason()
        assert "s3cret" not in await reason()


async def test_a_deleted_branch_is_reported_until_it_exists_again(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        id_ = await env.plane.piped.add_application("cart")

        async def state() -> ApplicationSyncState:
            return (await env.plane.application(id_)).sync_state

        async def is_status(status: SyncStatus) -> bool:
            return (await state()).status == status

        async with env.triggering(site) as trigger:
            await eventually(env.has_deployments(1))
            origin.git("branch", "-m", "main", "gone")
            await eventually(lambda: is_status(SyncStatus.INVALID_CONFIG))
            assert "the branch does not exist" in (await state()).reason
            origin.git("branch", "-m", "gone", "main")
            trigger.heads.push_announced("site")
            # The running deployment is reported again.
            await eventually(lambda: is_status(SyncStatus.DEPLOYING))
            await env.wait_until_idle()
        assert len(await env.open_deployments()) == 1


async def test_a_rejection_is_logged_once_per_commit_and_reason(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    def logged_commits(logs: list[EventDict]) -> list[str]:
        return [e["commit"] for e in logs if e["event"] == "application not triggered"]

    async def wait_for_retries() -> None:
        attempts = gate.count("CreateDeploymentInOrder") + 2
        await eventually(lambda: gate.count("CreateDeploymentInOrder") >= attempts)

    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        gate = env.plane.gate
        gate.refusals["CreateDeploymentInOrder"] = grpc.StatusCode.INVALID_ARGUMENT
        await env.plane.piped.add_application("cart")
        with structlog.testing.capture_logs() as logs:
            async with env.triggering(site):
                await wait_for_retries()
                assert logged_commits(logs) == [first]
                second = origin.commit({"cart/x": "1"})
                await eventually(lambda: len(logged_commits(logs)) == 2)
                await wait_for_retries()
                assert logged_commits(logs) == [first, second]
                gate.refusals.clear()
                await eventually(env.has_deployments(1))
