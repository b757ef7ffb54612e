# SPDX-License-Identifier: Apache-2.0
"""Notifications about triggers: each deployment once, and why there is none."""

from typing import Any

import grpc

from pipecd.git.mirror import Repository
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import SyncStrategy
from pipecd.piped.notify.event import subject_of, text_field
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART
from servers.trigger import OpenTrigger

BROKEN = CART.replace("name: cart", "name: [1]")


async def test_a_trigger_is_notified_once_with_its_mentions(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    mentions = "  notification: {mentions: [{event: DEPLOYMENT_TRIGGERED, slackusers: [U1]}]}\n"
    origin.commit({"cart/app.pipecd.yaml": CART + mentions})
    async with open_trigger() as env:
        await env.plane.piped.add_application("cart")
        async with env.triggering(site):
            (deployment,) = await eventually(env.has_deployments(1))
            await env.wait_until_idle()
        async with env.triggering(site):
            await env.wait_until_idle()
    assert env.notifier.names == ["DEPLOYMENT_TRIGGERED"]
    metadata: Any = env.notifier.events[0].metadata
    assert metadata.deployment.id == deployment.id
    assert list(metadata.mentioned_accounts) == ["U1"]


async def test_a_trigger_whose_response_was_lost_is_notified(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        await env.plane.piped.add_application("cart")
        env.plane.gate.lost_answers.add("CreateDeploymentInOrder")
        async with env.triggering(site):
            await eventually(lambda: env.notifier.events)
            await env.wait_until_idle()
    assert len({event.key for event in env.notifier.events}) == 1


async def test_an_invalid_configuration_is_notified_once_while_it_lasts(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    broken = origin.commit({"cart/app.pipecd.yaml": BROKEN}, "broken")
    async with open_trigger() as env:
        id_ = await env.plane.piped.add_application("cart")

        async def is_invalid() -> bool:
            application = await env.plane.application(id_)
            return application.sync_state.status == SyncStatus.INVALID_CONFIG

        async with env.triggering(site):
            await eventually(lambda: env.notifier.events)
            origin.commit({"README": "1"}, "something else")
            await env.wait_until_idle()
            # A restarted piped reads from the control plane what was notified before.
            await eventually(is_invalid)
        async with env.triggering(site):
            await env.wait_until_idle()
            origin.commit({"cart/app.pipecd.yaml": CART}, "fixed")
            await eventually(lambda: len(env.notifier.events) == 2)
            origin.commit({"cart/app.pipecd.yaml": BROKEN}, "broken again")
            await eventually(lambda: len(env.notifier.events) == 3)
    assert env.notifier.names == [
        "DEPLOYMENT_TRIGGER_FAILED",
        "DEPLOYMENT_TRIGGERED",
        "DEPLOYMENT_TRIGGER_FAILED",
    ]
    metadata = env.notifier.events[0].metadata
    assert text_field(metadata, "commit_hash") == broken
    assert text_field(metadata, "commit_message") == "broken"
    assert "cart/app.pipecd.yaml:4" in text_field(metadata, "reason")
    assert subject_of(metadata).application == "cart"


async def test_a_rejected_deployment_is_notified_once(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    mentions = "  notification: {mentions: [{event: '*', slackgroups: [G1]}]}\n"
    origin.commit({"cart/app.pipecd.yaml": CART + mentions})
    async with open_trigger() as env:
        gate = env.plane.gate
        gate.refusals["CreateDeploymentInOrder"] = grpc.StatusCode.INVALID_ARGUMENT
        id_ = await env.plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(lambda: gate.count("CreateDeploymentInOrder") >= 2)
            await env.plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=env.plane.admin)
            await eventually(lambda: gate.count("ReportCommandHandled"))
    assert env.notifier.names == ["DEPLOYMENT_TRIGGER_FAILED"]
    metadata: Any = env.notifier.events[0].metadata
    assert "the gate says" in metadata.reason
    assert list(metadata.mentioned_groups) == ["G1"]


async def test_an_outage_of_the_control_plane_is_not_notified(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        gate = env.plane.gate
        gate.refusals["CreateDeploymentInOrder"] = grpc.StatusCode.UNAVAILABLE
        await env.plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(lambda: gate.count("CreateDeploymentInOrder") >= 2)
            gate.refusals.clear()
            await eventually(env.has_deployments(1))
            await eventually(lambda: env.notifier.events)
    assert env.notifier.names == ["DEPLOYMENT_TRIGGERED"]
