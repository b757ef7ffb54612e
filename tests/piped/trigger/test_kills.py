# SPDX-License-Identifier: Apache-2.0
"""A piped that is killed between any two calls triggers what it would have, and nothing twice."""

import grpc
import pytest

from pipecd.git.mirror import Repository
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import SyncStrategy
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART
from servers.trigger import OpenTrigger

IGNORES = CART + "  trigger:\n    onCommit: {ignores: [cart/README]}\n"


@pytest.mark.parametrize(
    "call", ["CreateDeploymentInOrder", "ReportApplicationMostRecentDeployment"]
)
@pytest.mark.parametrize("is_pushed_since", [False, True], ids=["no push since", "a push since"])
async def test_a_killed_piped_deploys_a_commit_once(
    open_trigger: OpenTrigger, origin: Origin, site: Repository, call: str, is_pushed_since: bool
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        cart = await plane.piped.add_application("cart")
        plane.gate.held_answers.add(call)
        async with env.triggering(site):
            await eventually(lambda: plane.gate.count(f"{call} done"))
        plane.gate.held_answers.clear()
        expected = [first]
        if is_pushed_since:
            expected.append(origin.commit({"cart/x": "1"}))
        async with env.triggering(site):
            await eventually(env.has_deployments(len(expected)))
            await env.wait_until_idle()
        created = {d.trigger.commit.hash: d for d in await env.open_deployments()}
        assert sorted(created) == sorted(expected)
        assert len(await env.open_deployments()) == len(expected)
        last = (await plane.application(cart)).most_recently_triggered_deployment
        assert last.deployment_id == created[expected[-1]].id


@pytest.mark.parametrize(
    "call",
    ["CreateDeploymentInOrder", "ReportApplicationMostRecentDeployment", "ReportCommandHandled"],
)
async def test_a_command_and_a_push_while_piped_was_stopped(
    open_trigger: OpenTrigger, origin: Origin, site: Repository, call: str
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        command = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        plane.gate.held_answers.add(call)
        async with env.triggering(site):
            await eventually(lambda: plane.gate.count(f"{call} done"))
        plane.gate.held_answers.clear()
        pushed = origin.commit({"cart/x": "1"})
        async with env.triggering(site):
            handled = await eventually(lambda: env.handled_command(command))
            await eventually(env.has_deployments(2))
            await env.wait_until_idle()
        deployments = await env.open_deployments()
        # The command deployed the head at its time; the push came later.
        assert sorted(d.trigger.commit.hash for d in deployments) == sorted([first, pushed])
        assert handled.status == CommandStatus.SUCCEEDED
        requested = next(d for d in deployments if d.trigger.commander)
        assert handled.metadata["TriggeredDeploymentID"] == requested.id


async def test_a_commit_that_was_ignored_before_a_restart_hides_none_after_it(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": IGNORES})
    async with open_trigger() as env:
        plane = env.plane
        await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            file, ignored = env.ignored_commits_file, origin.commit({"cart/README": "1"})
            await eventually(lambda: file.exists() and ignored in file.read_text())
        pushed = origin.commit({"cart/x": "1"})
        async with env.triggering(site):
            deployments = await eventually(env.has_deployments(2))
        assert pushed in {d.trigger.commit.hash for d in deployments}


async def test_an_unreported_last_deployment_is_reported_before_the_next(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        cart = await plane.piped.add_application("cart")
        refusals = plane.gate.refusals
        refusals["ReportApplicationMostRecentDeployment"] = grpc.StatusCode.PERMISSION_DENIED
        async with env.triggering(site):
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            before = plane.gate.count("ReportApplicationMostRecentDeployment")
            pushed = origin.commit({"cart/x": "1"})
            await eventually(
                lambda: plane.gate.count("ReportApplicationMostRecentDeployment") > before
            )
            assert len(await env.open_deployments()) == 1
            refusals.clear()
            plane.gate.held_answers.add("CreateDeploymentInOrder")
            await eventually(lambda: plane.gate.count("CreateDeploymentInOrder done"), within=15)
        plane.gate.held_answers.clear()
        async with env.triggering(site):
            await env.wait_until_idle()
        deployments = await env.open_deployments()
        assert len(deployments) == 2
        last = (await plane.application(cart)).most_recently_triggered_deployment
        assert last.trigger.commit.hash == pushed


async def test_an_outage_of_the_control_plane_only_delays(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART, "shop/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        cart, shop = (
            await plane.piped.add_application("cart"),
            await plane.piped.add_application("shop"),
        )
        async with env.triggering(site) as trigger:
            trigger.api._chance = lambda: 0.0001
            await eventually(env.has_deployments(2))
            await env.wait_until_idle()
            plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
            tried = plane.gate.count("CreateDeploymentInOrder")
            pushes = [origin.commit({"cart/x": "1"})]
            await eventually(lambda: plane.gate.count("CreateDeploymentInOrder") > tried + 20)
            pushes.append(origin.commit({"shop/x": "1"}))
            pushes.append(origin.commit({"cart/x": "2"}))
            plane.gate.refusals.clear()
            await eventually(env.has_deployments(2, shop))
            await eventually(env.has_deployments(3, cart))
            await env.wait_until_idle()
        deployments = [d.trigger.commit.hash for d in await env.open_deployments(cart)]
        assert (len(deployments), {pushes[0], pushes[2]} <= set(deployments)) == (3, True)
        assert len(await env.open_deployments(shop)) == 2
