# SPDX-License-Identifier: Apache-2.0
"""A piped that is killed between any two calls triggers what it would have, and nothing twice."""

from typing import Any

import grpc
import pytest

from pipecd.git.mirror import Repository
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import SyncStrategy
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART

IGNORES = CART + "  trigger:\n    onCommit: {ignores: [cart/README]}\n"


@pytest.mark.parametrize("amid", ["CreateDeployment", "ReportApplicationMostRecentDeployment"])
@pytest.mark.parametrize("moved", [False, True], ids=["no push since", "a push since"])
async def test_a_commit(
    open_scene: Any, origin: Origin, site: Repository, amid: str, moved: bool
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        cart = await plane.piped.add_application("cart")
        plane.gate.held_answers.add(amid)
        async with scene.triggering(site):
            await eventually(lambda: plane.gate.count(f"{amid} done"))
        plane.gate.held_answers.clear()
        wanted = [first]
        if moved:
            wanted.append(origin.commit({"cart/x": "1"}))
        async with scene.triggering(site):
            await eventually(scene.has_made(len(wanted)))
            await scene.settle()
        made = {d.trigger.commit.hash: d for d in await scene.made()}
        assert sorted(made) == sorted(wanted)
        assert len(await scene.made()) == len(wanted)
        last = (await plane.application(cart)).most_recently_triggered_deployment
        assert last.deployment_id == made[wanted[-1]].id


@pytest.mark.parametrize(
    "amid",
    ["CreateDeployment", "ReportApplicationMostRecentDeployment", "ReportCommandHandled"],
)
async def test_a_command_and_a_push_while_piped_was_stopped(
    open_scene: Any, origin: Origin, site: Repository, amid: str
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        id_ = await plane.piped.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        plane.gate.held_answers.add(amid)
        async with scene.triggering(site):
            await eventually(lambda: plane.gate.count(f"{amid} done"))
        plane.gate.held_answers.clear()
        pushed = origin.commit({"cart/x": "1"})
        async with scene.triggering(site):
            handled = await eventually(lambda: scene.settled(command))
            await eventually(scene.has_made(2))
            await scene.settle()
        made = await scene.made()
        # The command deployed what was there when it was given; the push came later.
        assert sorted(d.trigger.commit.hash for d in made) == sorted([first, pushed])
        assert handled.status == CommandStatus.SUCCEEDED
        asked = next(d for d in made if d.trigger.commander)
        assert handled.metadata["TriggeredDeploymentID"] == asked.id


async def test_a_commit_that_was_ignored_before_a_restart_hides_none_after_it(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": IGNORES})
    async with open_scene() as scene:
        plane = scene.plane
        await plane.piped.add_application("cart")
        seen = plane.directory / "workspace" / "trigger" / "seen.json"
        async with scene.triggering(site):
            await eventually(scene.has_made(1))
            ignored = origin.commit({"cart/README": "1"})
            await eventually(lambda: seen.exists() and ignored in seen.read_text())
        pushed = origin.commit({"cart/x": "1"})
        async with scene.triggering(site):
            found = await eventually(scene.has_made(2))
        assert pushed in {d.trigger.commit.hash for d in found}


async def test_an_unreported_last_deployment_is_reported_before_the_next(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        cart = await plane.piped.add_application("cart")
        refusals = plane.gate.refusals
        refusals["ReportApplicationMostRecentDeployment"] = grpc.StatusCode.PERMISSION_DENIED
        async with scene.triggering(site):
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            before = plane.gate.count("ReportApplicationMostRecentDeployment")
            pushed = origin.commit({"cart/x": "1"})
            await eventually(
                lambda: plane.gate.count("ReportApplicationMostRecentDeployment") > before
            )
            assert len(await scene.made()) == 1
            refusals.clear()
            plane.gate.held_answers.add("CreateDeployment")
            await eventually(lambda: plane.gate.count("CreateDeployment done"), within=15)
        plane.gate.held_answers.clear()
        async with scene.triggering(site):
            await scene.settle()
        made = await scene.made()
        assert len(made) == 2
        last = (await plane.application(cart)).most_recently_triggered_deployment
        assert last.trigger.commit.hash == pushed


async def test_an_outage_of_the_control_plane_only_delays(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART, "shop/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        cart, shop = (
            await plane.piped.add_application("cart"),
            await plane.piped.add_application("shop"),
        )
        async with scene.triggering(site) as trigger:
            trigger.api._chance = lambda: 0.0001
            await eventually(scene.has_made(2))
            await scene.settle()
            plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
            tried = plane.gate.count("CreateDeployment")
            pushes = [origin.commit({"cart/x": "1"})]
            await eventually(lambda: plane.gate.count("CreateDeployment") > tried + 20)
            pushes.append(origin.commit({"shop/x": "1"}))
            pushes.append(origin.commit({"cart/x": "2"}))
            plane.gate.refusals.clear()
            await eventually(scene.has_made(2, shop))
            await eventually(scene.has_made(3, cart))
            await scene.settle()
        made = [d.trigger.commit.hash for d in await scene.made(cart)]
        assert (len(made), {pushes[0], pushes[2]} <= set(made)) == (3, True)
        assert len(await scene.made(shop)) == 2
