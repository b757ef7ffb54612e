# SPDX-License-Identifier: Apache-2.0
"""A command, drift or a chain becomes a deployment, or a reason why not."""

import time
import uuid
from datetime import timedelta

import grpc
import pytest

from pipecd.git.mirror import Repository
from pipecd.model.clock import utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.proto.model.application_pb2 import OUT_OF_SYNC, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import DEPLOYMENT_SUCCESS as SUCCESS
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2
from pipecd.proto.service.piped_pb2 import CreateDeploymentChainRequest
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART
from servers.trigger import OpenTrigger


def commits(deployments: list[Deployment]) -> set[str]:
    return {deployment.trigger.commit.hash for deployment in deployments}


async def test_a_command_returns_the_deployment_it_triggered(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            command = await plane.cases.applications.sync(
                id_, SyncStrategy.QUICK_SYNC, by=plane.admin
            )
            handled = await eventually(lambda: env.handled_command(command))
            await env.wait_until_idle()
        deployments = await env.open_deployments()
    assert len(deployments) == 2
    requested = next(d for d in deployments if d.trigger.commander)
    assert handled.status == CommandStatus.SUCCEEDED
    assert handled.metadata["TriggeredDeploymentID"] == requested.id
    assert (requested.trigger.commander, requested.trigger.sync_strategy) == (
        "root",
        SyncStrategy.QUICK_SYNC,
    )
    assert requested.trigger.strategy_summary.startswith(
        "Quick sync because piped received a command"
    )


async def test_a_command_deploys_the_newest_commit_once(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            await env.wait_until_idle()
            command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
            pushed = origin.commit({"cart/x": "1"})
            await eventually(lambda: env.handled_command(command))
            await eventually(env.has_deployments(2))
            await env.wait_until_idle()
        assert pushed in commits(await env.open_deployments())


async def test_a_command_reported_late_is_not_handled_twice(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
        async with env.triggering(site):
            await eventually(lambda: plane.gate.count("ReportCommandHandled"))
        plane.gate.refusals.clear()
        async with env.triggering(site):
            handled = await eventually(lambda: env.handled_command(command))
            await env.wait_until_idle()
        deployments = await env.open_deployments()
        assert [d.id for d in deployments] == [handled.metadata["TriggeredDeploymentID"]]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param(
            {"cart/app.pipecd.yaml": CART + "  trigger:\n    onCommand: {disabled: true}\n"},
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
async def test_a_rejected_command_has_a_reason(
    open_trigger: OpenTrigger, origin: Origin, site: Repository, files: dict[str, str], reason: str
) -> None:
    origin.commit(files)
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        async with env.triggering(site):
            handled = await eventually(lambda: env.handled_command(command))
    assert handled.status == CommandStatus.FAILED
    assert reason in handled.metadata["Reason"]


async def test_a_disabled_command_does_not_hide_a_commit(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    spec = "  trigger:\n    onCommand: {disabled: true}\n"
    origin.commit({"cart/app.pipecd.yaml": CART + spec})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
            pushed = origin.commit({"cart/x": "1"})
            deployments = await eventually(env.has_deployments(2))
        assert pushed in commits(deployments)


async def test_a_command_for_a_deleted_application_fails(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        await plane.cases.applications.disable(id_, by=plane.admin)
        async with env.triggering(site):
            handled = await eventually(lambda: env.handled_command(command))
        assert handled.status == CommandStatus.FAILED


async def test_drift_deploys_once_the_window_has_passed(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    spec = "  trigger:\n    onOutOfSync: {disabled: false, minWindow: 5m}\n"
    origin.commit({"cart/app.pipecd.yaml": CART + spec})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        async with env.triggering(site):
            (first,) = await eventually(env.has_deployments(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        async with plane.piped.api() as api:
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
        async with env.triggering(site):
            await env.wait_until_idle()
            assert await env.open_deployments() == []
        async with env.triggering(site, now=lambda: utc_now() + timedelta(minutes=6)):
            (second,) = await eventually(env.has_deployments(1))
            await env.wait_until_idle()
        assert second.trigger.commit.hash == first.trigger.commit.hash
        assert len(await env.open_deployments()) == 1


async def test_a_chain_triggers_the_next_application(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    chain = "  postSync:\n    chain:\n      applications: [{name: shop}]\n"
    joins = "  trigger:\n    onCommit: {disabled: true}\n    onChain: {disabled: false}\n"
    commit = origin.commit(
        {"cart/app.pipecd.yaml": CART + chain, "shop/app.pipecd.yaml": CART + joins}
    )
    async with open_trigger() as env:
        plane = env.plane
        cart, shop = (
            await plane.piped.add_application("cart"),
            await plane.piped.add_application("shop"),
        )
        async with env.triggering(site):
            (first,) = await eventually(env.has_deployments(1, cart))
            (second,) = await eventually(env.has_deployments(1, shop))
            await env.wait_until_idle()
        assert len(await env.open_deployments()) == 2
    assert first.deployment_chain_id
    assert first.deployment_chain_block_index == 0
    assert second.deployment_chain_id == first.deployment_chain_id
    assert second.deployment_chain_block_index == 1
    assert second.trigger.commander == first.deployment_chain_id
    assert second.trigger.strategy_summary == "Sync application in chain"
    assert second.trigger.commit.hash == commit


async def test_a_chain_deploys_its_commit_although_a_later_one_breaks_the_file(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    joins = "  trigger:\n    onCommit: {disabled: true}\n    onChain: {disabled: false}\n"
    commit = origin.commit({"cart/app.pipecd.yaml": CART, "shop/app.pipecd.yaml": CART + joins})
    async with open_trigger() as env:
        plane = env.plane
        cart = await plane.piped.add_application("cart")
        async with env.triggering(site):
            (first,) = await eventually(env.has_deployments(1, cart))
        shop = await plane.piped.add_application("shop")
        first.id = str(uuid.uuid4())
        request = CreateDeploymentChainRequest(first_deployment=first)
        request.matchers.add(name="shop")
        async with plane.piped.api() as api:
            await api.create_deployment_chain(request)
        origin.commit({"shop/app.pipecd.yaml": "}]"})
        async with env.triggering(site):
            (second,) = await eventually(env.has_deployments(1, shop))
            await env.wait_until_idle()
    assert second.trigger.commit.hash == commit
    assert second.deployment_chain_block_index == 1


async def test_a_chain_waits_for_a_repository_that_is_away(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    joins = "  trigger:\n    onCommit: {disabled: true}\n    onChain: {disabled: false}\n"
    commit = origin.commit({"cart/app.pipecd.yaml": CART, "shop/app.pipecd.yaml": CART + joins})
    async with open_trigger() as env:
        plane = env.plane
        cart = await plane.piped.add_application("cart")
        async with env.triggering(site):
            (first,) = await eventually(env.has_deployments(1, cart))
        shop = await plane.piped.add_application("shop")
        first.id = str(uuid.uuid4())
        request = CreateDeploymentChainRequest(first_deployment=first)
        request.matchers.add(name="shop")
        async with plane.piped.api() as api:
            await api.create_deployment_chain(request)
        by_hand = await plane.cases.applications.sync(shop, SyncStrategy.AUTO, by=plane.admin)
        away = origin.path.rename(origin.path.with_name("away"))
        async with env.triggering(site):
            rejected = await eventually(lambda: env.handled_command(by_hand))
            away.rename(origin.path)
            (second,) = await eventually(env.has_deployments(1, shop))
    assert rejected.status == CommandStatus.FAILED
    assert "the repository was not found" in rejected.metadata["Reason"]
    assert second.trigger.commit.hash == commit
    assert second.deployment_chain_block_index == 1
