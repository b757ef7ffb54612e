# SPDX-License-Identifier: Apache-2.0
"""A push, a command, drift or a chain becomes one deployment, whatever happens in between."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.git.access import GitAccess
from pipecd.git.mirror import Repository
from pipecd.git.mirrors import open_mirrors
from pipecd.model.application import SyncStatus
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.moment import utc_now
from pipecd.piped.mirror.applications import ApplicationMirror
from pipecd.piped.mirror.commands import CommandMirror
from pipecd.piped.mirror.deployments import DeploymentMirror
from pipecd.piped.mirror.heads import RepositoryHeads
from pipecd.piped.source.configs import Configs
from pipecd.piped.trigger.trigger import Trigger
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import DEPLOYMENT_SUCCESS as SUCCESS
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2

HEAD = "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: cart\n"
LOOK_EVERY = 0.03


@asynccontextmanager
async def triggering(
    plane: Any, *repositories: Repository, every: float = 0.1, now: Any = utc_now
) -> AsyncGenerator[Trigger]:
    """The triggering part of a piped; leaving the block kills it."""
    async with (
        plane.api() as api,
        open_mirrors(
            repositories, directory=plane.directory / "mirrors", access=GitAccess()
        ) as mirrors,
    ):
        trigger = Trigger(
            api=api,
            applications=ApplicationMirror(api, every=LOOK_EVERY),
            deployments=DeploymentMirror(api, every=LOOK_EVERY),
            commands=CommandMirror(api, every=LOOK_EVERY),
            heads=RepositoryHeads(mirrors),
            mirrors=mirrors,
            configs=Configs(load_catalog()),
            every=every,
            now=now,
        )
        parts = (trigger.applications, trigger.deployments, trigger.commands, trigger.heads)
        async with asyncio.TaskGroup() as loops:
            tasks = [loops.create_task(part.run()) for part in (*parts, trigger)]
            yield trigger
            for task in tasks:
                task.cancel()


@pytest.fixture
def site(origin: Any) -> Repository:
    return Repository("site", origin.remote, "main")


async def made(plane: Any, application_id: str = "") -> list[Deployment]:
    async with plane.api() as api:
        answer = await api.list_not_completed_deployments(
            piped_pb2.ListNotCompletedDeploymentsRequest()
        )
    return sorted(
        (d for d in answer.deployments if application_id in ("", d.application_id)),
        key=lambda d: (d.created_at, d.trigger.commit.message),
    )


def commits(deployments: list[Deployment]) -> set[str]:
    return {deployment.trigger.commit.hash for deployment in deployments}


def has_made(plane: Any, count: int, application_id: str = "") -> Callable[[], Any]:
    async def ask() -> list[Deployment]:
        found = await made(plane, application_id)
        return found if len(found) >= count else []

    return ask


async def settle(plane: Any) -> None:
    """Waits until the mirrors have been read many times more, so that nothing is under way."""
    wanted = plane.gate.count("ListUnhandledCommands") + 12
    async with asyncio.timeout(10):
        while plane.gate.count("ListUnhandledCommands") < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_the_first_commit_is_deployed_as_it_should_be_written(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    spec = "  notification:\n    mentions: [{event: DEPLOYMENT_FAILED, slackusers: [U1]}]\n"
    commit = origin.commit(
        {"cart/app.pipecd.yaml": HEAD + spec},
        "deploy the cart\n\nPipecd-Dev-Trace-Trigger-Commit-Hash: abc",
    )
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        async with triggering(plane, site):
            (deployment,) = await eventually(has_made(plane, 1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await settle(plane)
        assert len(await made(plane)) == 1
        application = await plane.application(id_)
    assert deployment.application_id == id_
    assert deployment.status == DeploymentStatus.PENDING
    assert deployment.status_reason == "The deployment is waiting to be planned"
    trigger = deployment.trigger
    assert (trigger.commit.hash, trigger.commit.message) == (commit, "deploy the cart")
    assert (trigger.commit.author, trigger.commit.branch) == ("Ann", "main")
    assert (trigger.commander, trigger.sync_strategy) == ("", SyncStrategy.AUTO)
    assert deployment.deployment_trace_commit_hash == "abc"
    assert "U1" in deployment.metadata_v2.shared.keyValues["DeploymentNotification"]
    assert deployment.platform_provider == "p"
    last = application.most_recently_triggered_deployment
    assert (last.deployment_id, last.trigger.commit.hash) == (deployment.id, commit)


async def test_a_push_is_decided_on_in_well_under_half_a_second(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        await plane.add_application("cart")
        async with triggering(plane, site, every=1000):
            await eventually(has_made(plane, 1))
            await settle(plane)
            origin.commit({"cart/x": "1"})
            pushed = time.perf_counter()
            await eventually(lambda: plane.gate.count("CreateDeployment") == 2)
            took = time.perf_counter() - pushed
    # A quarter second of it is the pause between two looks.
    assert took < 0.5


async def test_only_the_application_that_is_touched_is_deployed(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD, "shop/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        cart, shop = await plane.add_application("cart"), await plane.add_application("shop")
        async with triggering(plane, site):
            await eventually(has_made(plane, 2))
            commit = origin.commit({"cart/x": "1"})
            await eventually(has_made(plane, 2, cart))
            origin.commit({"README": "nothing to deploy"})
            last = origin.commit({"shop/x": "1"})
            found = await eventually(has_made(plane, 2, shop))
        assert commit in commits(await made(plane, cart))
        assert len(await made(plane, cart)) == 2
        assert last in commits(found)


async def test_a_restart_neither_loses_nor_doubles_a_trigger(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        cart = await plane.add_application("cart")
        async with triggering(plane, site):
            await eventually(has_made(plane, 1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await settle(plane)
        missed = origin.commit({"cart/x": "pushed while piped was away"})
        async with triggering(plane, site):
            found = await eventually(has_made(plane, 2, cart))
            await settle(plane)
        assert missed in commits(found)
        async with triggering(plane, site):
            await settle(plane)
        assert len(await made(plane)) == 2


async def test_a_piped_killed_between_creation_and_report_does_not_deploy_twice(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        plane.gate.refusals["ReportApplicationMostRecentDeployment"] = grpc.StatusCode.UNAVAILABLE
        async with triggering(plane, site):
            (first,) = await eventually(has_made(plane, 1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        plane.gate.refusals.clear()
        async with triggering(plane, site):
            await eventually(lambda: plane.gate.count("CreateDeployment") == 2)
            await settle(plane)
        assert [d.id for d in await made(plane)] == [first.id]
        application = await plane.application(id_)
        assert application.most_recently_triggered_deployment.deployment_id == first.id


async def test_a_lost_answer_does_not_deploy_twice(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        await plane.add_application("cart")
        plane.gate.lost_answers.add("CreateDeployment")
        async with triggering(plane, site):
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await settle(plane)
        assert len(await made(plane)) == 1
        assert plane.gate.count("CreateDeployment") == 2


async def test_going_back_to_an_earlier_commit_is_a_deployment_of_its_own(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        cart = await plane.add_application("cart")
        async with triggering(plane, site):
            await eventually(has_made(plane, 1))
            origin.commit({"cart/x": "bad"})
            await eventually(has_made(plane, 2))
            origin.git("reset", "-q", "--hard", first)
            found = await eventually(has_made(plane, 3, cart))
        assert len({d.id for d in found}) == 3


async def test_after_a_force_push_that_hides_the_past_the_application_is_deployed(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        await plane.add_application("cart")
        async with triggering(plane, site):
            await eventually(has_made(plane, 1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        origin.git("checkout", "-q", "--orphan", "new")
        origin.git("commit", "-q", "-m", "a new beginning")
        origin.git("branch", "-M", "new", "main")
        origin.git("reflog", "expire", "--expire=now", "--all")
        origin.git("gc", "-q", "--prune=now")
        for file in (plane.directory / "mirrors").iterdir():
            file.rename(plane.directory / "lost")
        async with triggering(plane, site):
            found = await eventually(has_made(plane, 2))
        assert "a new beginning" in {d.trigger.commit.message for d in found}


async def test_a_command_deploys_and_tells_which_deployment(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        async with triggering(plane, site):
            await eventually(has_made(plane, 1))
            command = await plane.cases.applications.sync(
                id_, SyncStrategy.QUICK_SYNC, by=plane.admin
            )
            handled = await eventually(lambda: settled(plane, command))
            await settle(plane)
        found = await made(plane)
    assert len(found) == 2
    asked = next(d for d in found if d.trigger.commander)
    assert handled.status == CommandStatus.SUCCEEDED
    assert handled.metadata["TriggeredDeploymentID"] == asked.id
    assert (asked.trigger.commander, asked.trigger.sync_strategy) == (
        "root",
        SyncStrategy.QUICK_SYNC,
    )
    assert asked.trigger.strategy_summary.startswith("Quick sync because piped received a command")


async def test_a_command_deploys_what_was_pushed_a_moment_ago_and_once(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        async with triggering(plane, site):
            await eventually(has_made(plane, 1))
            await settle(plane)
            command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
            pushed = origin.commit({"cart/x": "1"})
            await eventually(lambda: settled(plane, command))
            await eventually(has_made(plane, 2))
            await settle(plane)
        assert pushed in commits(await made(plane))


async def test_a_command_reported_late_is_not_followed_twice(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
        async with triggering(plane, site):
            await eventually(lambda: plane.gate.count("ReportCommandHandled"))
        plane.gate.refusals.clear()
        async with triggering(plane, site):
            handled = await eventually(lambda: settled(plane, command))
            await settle(plane)
        found = await made(plane)
        assert [d.id for d in found] == [handled.metadata["TriggeredDeploymentID"]]


async def settled(plane: Any, command_id: str) -> Any:
    command = await plane.cases.commands.get(command_id, by=plane.admin)
    return command if command.status else None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param(
            {"cart/app.pipecd.yaml": HEAD + "  trigger:\n    onCommand: {disabled: true}\n"},
            "onCommand is disabled",
            id="a disabled trigger",
        ),
        pytest.param(
            {"cart/app.pipecd.yaml": "kind: Nonsense"},
            "cart/app.pipecd.yaml:1",
            id="an invalid configuration",
        ),
        pytest.param({"README": ""}, "was not found in Git", id="a missing configuration"),
    ],
)
async def test_a_command_that_cannot_be_followed_fails_with_the_reason(
    open_plane: Any, origin: Any, site: Repository, eventually: Any, files: Any, reason: str
) -> None:
    origin.commit(files)
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        async with triggering(plane, site):
            handled = await eventually(lambda: settled(plane, command))
    assert handled.status == CommandStatus.FAILED
    assert reason in handled.metadata["Reason"]


async def test_a_disabled_command_does_not_hide_a_commit(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    spec = "  trigger:\n    onCommand: {disabled: true}\n"
    origin.commit({"cart/app.pipecd.yaml": HEAD + spec})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        async with triggering(plane, site):
            await eventually(has_made(plane, 1))
            await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
            pushed = origin.commit({"cart/x": "1"})
            found = await eventually(has_made(plane, 2))
        assert pushed in commits(found)


async def test_an_invalid_configuration_is_told_and_cleared_when_it_is_mended(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD.replace("name: cart", "name: [1]")})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")

        async def state() -> ApplicationSyncState:
            return (await plane.application(id_)).sync_state

        async def is_status(status: SyncStatus) -> Any:
            return (await state()).status == status

        async with triggering(plane, site):
            await eventually(lambda: is_status(SyncStatus.INVALID_CONFIG))
            assert "cart/app.pipecd.yaml:4" in (await state()).reason
            await settle(plane)
            # It is told once, not at every look.
            assert plane.gate.count("ReportApplicationSyncState") == 1
            assert await made(plane) == []
        async with triggering(plane, site):
            await settle(plane)
            assert plane.gate.count("ReportApplicationSyncState") == 1
            origin.commit({"cart/app.pipecd.yaml": HEAD})
            await eventually(lambda: is_status(SyncStatus.UNKNOWN))
            await eventually(has_made(plane, 1))


async def test_a_broken_repository_holds_up_no_other(
    open_plane: Any, origin: Any, site: Repository, eventually: Any, tmp_path: Path
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        nowhere = f"file://{tmp_path}/nowhere"
        await plane.add_repository("broken", nowhere)
        cart = await plane.add_application("cart")
        lost = await plane.add_application("lost", repository="broken")

        async def reason() -> str:
            return (await plane.application(lost)).sync_state.reason

        async with triggering(plane, Repository("broken", nowhere, "main"), site):
            await eventually(has_made(plane, 1, cart))
            await eventually(reason)
        assert "there is no repository" in await reason()


async def test_an_application_whose_repository_is_not_configured_is_told(
    open_plane: Any, origin: Any, eventually: Any
) -> None:
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        async with triggering(plane):
            handled = await eventually(lambda: settled(plane, command))
        assert handled.status == CommandStatus.FAILED
        assert "'site' is not in the configuration" in handled.metadata["Reason"]
        assert (await plane.application(id_)).sync_state.status == SyncStatus.INVALID_CONFIG


async def test_a_command_for_an_application_that_is_gone_fails(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        await plane.cases.applications.disable(id_, by=plane.admin)
        async with triggering(plane, site):
            handled = await eventually(lambda: settled(plane, command))
        assert handled.status == CommandStatus.FAILED


async def test_drift_deploys_once_the_window_has_passed(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    spec = "  trigger:\n    onOutOfSync: {disabled: false, minWindow: 5m}\n"
    origin.commit({"cart/app.pipecd.yaml": HEAD + spec})
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        async with triggering(plane, site):
            (first,) = await eventually(has_made(plane, 1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        async with plane.api() as api:
            await api.report_deployment_completed(
                piped_pb2.ReportDeploymentCompletedRequest(
                    deployment_id=first.id, status=SUCCESS, completed_at=int(time.time())
                )
            )
            await api.report_application_sync_state(
                piped_pb2.ReportApplicationSyncStateRequest(
                    application_id=id_, state=ApplicationSyncState(status=OUT_OF_SYNC, timestamp=1)
                )
            )
        async with triggering(plane, site):
            await settle(plane)
            assert await made(plane) == []
        async with triggering(plane, site, now=lambda: utc_now() + timedelta(minutes=6)):
            (second,) = await eventually(has_made(plane, 1))
            await settle(plane)
        assert second.trigger.commit.hash == first.trigger.commit.hash
        assert len(await made(plane)) == 1


async def test_a_chain_goes_from_one_application_to_the_next(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    chain = "  postSync:\n    chain:\n      applications: [{name: shop}]\n"
    joins = "  trigger:\n    onCommit: {disabled: true}\n    onChain: {disabled: false}\n"
    commit = origin.commit(
        {"cart/app.pipecd.yaml": HEAD + chain, "shop/app.pipecd.yaml": HEAD + joins}
    )
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        cart, shop = await plane.add_application("cart"), await plane.add_application("shop")
        async with triggering(plane, site):
            (first,) = await eventually(has_made(plane, 1, cart))
            (second,) = await eventually(has_made(plane, 1, shop))
            await settle(plane)
        assert len(await made(plane)) == 2
    assert first.deployment_chain_id
    assert first.deployment_chain_block_index == 0
    assert second.deployment_chain_id == first.deployment_chain_id
    assert second.deployment_chain_block_index == 1
    assert second.trigger.commander == first.deployment_chain_id
    assert second.trigger.strategy_summary == "Sync application in chain"
    assert second.trigger.commit.hash == commit


async def test_a_commit_that_git_allows_and_the_wire_does_not(
    open_plane: Any, origin: Any, site: Repository, eventually: Any
) -> None:
    origin.commit({"cart/app.pipecd.yaml": HEAD}, "")
    async with open_plane() as plane:
        await plane.add_repository("site", origin.remote)
        await plane.add_application("cart")
        async with triggering(plane, site):
            (deployment,) = await eventually(has_made(plane, 1))
    assert deployment.trigger.commit.message == "(no message)"
