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

BROKEN = CART.replace("name: cart", "name: [1]")


async def test_a_trigger_is_notified_once_with_its_mentions(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    mentions = "  notification: {mentions: [{event: DEPLOYMENT_TRIGGERED, slackusers: [U1]}]}\n"
    origin.commit({"cart/app.pipecd.yaml": CART + mentions})
    async with open_scene() as scene:
        await scene.plane.piped.add_application("cart")
        async with scene.triggering(site):
            (deployment,) = await eventually(scene.has_made(1))
            await scene.settle()
        async with scene.triggering(site):
            await scene.settle()
    assert scene.heard.names == ["DEPLOYMENT_TRIGGERED"]
    facts: Any = scene.heard.events[0].metadata
    assert facts.deployment.id == deployment.id
    assert list(facts.mentioned_accounts) == ["U1"]


async def test_a_trigger_whose_response_was_lost_is_notified(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        await scene.plane.piped.add_application("cart")
        scene.plane.gate.lost_answers.add("CreateDeployment")
        async with scene.triggering(site):
            await eventually(lambda: scene.heard.events)
            await scene.settle()
    assert len({notice.key for notice in scene.heard.events}) == 1


async def test_an_invalid_configuration_is_notified_once_while_it_lasts(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    broken = origin.commit({"cart/app.pipecd.yaml": BROKEN}, "broken")
    async with open_scene() as scene:
        id_ = await scene.plane.piped.add_application("cart")

        async def is_known() -> bool:
            application = await scene.plane.application(id_)
            return application.sync_state.status == SyncStatus.INVALID_CONFIG

        async with scene.triggering(site):
            await eventually(lambda: scene.heard.events)
            origin.commit({"README": "1"}, "something else")
            await scene.settle()
            # A restart knows from the control plane what was told.
            await eventually(is_known)
        async with scene.triggering(site):
            await scene.settle()
            origin.commit({"cart/app.pipecd.yaml": CART}, "mended")
            await eventually(lambda: len(scene.heard.events) == 2)
            origin.commit({"cart/app.pipecd.yaml": BROKEN}, "broken again")
            await eventually(lambda: len(scene.heard.events) == 3)
    assert scene.heard.names == [
        "DEPLOYMENT_TRIGGER_FAILED",
        "DEPLOYMENT_TRIGGERED",
        "DEPLOYMENT_TRIGGER_FAILED",
    ]
    facts = scene.heard.events[0].metadata
    assert text_field(facts, "commit_hash") == broken
    assert text_field(facts, "commit_message") == "broken"
    assert "cart/app.pipecd.yaml:4" in text_field(facts, "reason")
    assert subject_of(facts).application == "cart"


async def test_a_rejected_deployment_is_notified_once(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    mentions = "  notification: {mentions: [{event: '*', slackgroups: [G1]}]}\n"
    origin.commit({"cart/app.pipecd.yaml": CART + mentions})
    async with open_scene() as scene:
        gate = scene.plane.gate
        gate.refusals["CreateDeployment"] = grpc.StatusCode.INVALID_ARGUMENT
        id_ = await scene.plane.piped.add_application("cart")
        async with scene.triggering(site):
            await eventually(lambda: gate.count("CreateDeployment") >= 2)
            await scene.plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=scene.plane.admin)
            await eventually(lambda: gate.count("ReportCommandHandled"))
    assert scene.heard.names == ["DEPLOYMENT_TRIGGER_FAILED"]
    facts: Any = scene.heard.events[0].metadata
    assert "the gate says" in facts.reason
    assert list(facts.mentioned_groups) == ["G1"]


async def test_an_outage_of_the_control_plane_is_not_notified(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        gate = scene.plane.gate
        gate.refusals["CreateDeployment"] = grpc.StatusCode.UNAVAILABLE
        await scene.plane.piped.add_application("cart")
        async with scene.triggering(site):
            await eventually(lambda: gate.count("CreateDeployment") >= 2)
            gate.refusals.clear()
            await eventually(scene.has_made(1))
            await eventually(lambda: scene.heard.events)
    assert scene.heard.names == ["DEPLOYMENT_TRIGGERED"]
