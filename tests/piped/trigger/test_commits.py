# SPDX-License-Identifier: Apache-2.0
"""A commit becomes one deployment of what it touches, whatever happens in between."""

import time
from datetime import UTC, datetime
from typing import Any

import grpc

from pipecd.git.mirror import Repository
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART


def commits(deployments: list[Deployment]) -> set[str]:
    return {deployment.trigger.commit.hash for deployment in deployments}


async def test_the_first_deployment_has_all_its_fields(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    spec = "  notification:\n    mentions: [{event: DEPLOYMENT_FAILED, slackusers: [U1]}]\n"
    commit = origin.commit(
        {"cart/app.pipecd.yaml": CART + spec},
        "deploy the cart\n\nPipecd-Dev-Trace-Trigger-Commit-Hash: abc",
    )
    async with open_scene() as scene:
        plane = scene.plane
        id_ = await plane.piped.add_application("cart")
        async with scene.triggering(site):
            (deployment,) = await eventually(scene.has_made(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await scene.settle()
        assert len(await scene.made()) == 1
        application = await plane.application(id_)
    assert deployment.application_id == id_
    assert deployment.status == DeploymentStatus.PENDING
    assert deployment.status_reason == "The deployment is waiting to be planned"
    trigger = deployment.trigger
    assert (trigger.commit.hash, trigger.commit.message) == (commit, "deploy the cart")
    assert (trigger.commit.author, trigger.commit.branch) == ("Ann", "main")
    assert (trigger.commander, trigger.sync_strategy) == ("", SyncStrategy.AUTO)
    assert trigger.strategy_summary == "Sync because the application was never deployed"
    assert deployment.deployment_trace_commit_hash == "abc"
    assert "U1" in deployment.metadata_v2.shared.keyValues["DeploymentNotification"]
    assert deployment.platform_provider == "p"
    last = application.most_recently_triggered_deployment
    assert (last.deployment_id, last.trigger.commit.hash) == (deployment.id, commit)


async def test_a_push_triggers_at_once(open_scene: Any, origin: Origin, site: Repository) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        await plane.piped.add_application("cart")
        async with scene.triggering(site, every=1000):
            await eventually(scene.has_made(1))
            await scene.settle()
            origin.commit({"cart/x": "1"})
            pushed = time.perf_counter()
            await eventually(lambda: plane.gate.count("CreateDeployment") == 2)
            took = time.perf_counter() - pushed
    # A quarter second is the pause between two looks; the rest is margin for a busy machine.
    assert took < 1


async def test_only_the_changed_application_is_deployed(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART, "shop/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        cart, shop = (
            await plane.piped.add_application("cart"),
            await plane.piped.add_application("shop"),
        )
        async with scene.triggering(site):
            await eventually(scene.has_made(2))
            commit = origin.commit({"cart/x": "1"})
            await eventually(scene.has_made(2, cart))
            origin.commit({"README": "nothing to deploy"})
            last = origin.commit({"shop/x": "1"})
            found = await eventually(scene.has_made(2, shop))
        assert commit in commits(await scene.made(cart))
        assert len(await scene.made(cart)) == 2
        assert last in commits(found)


async def test_a_restart_neither_loses_nor_repeats_a_trigger(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        cart = await plane.piped.add_application("cart")
        async with scene.triggering(site):
            await eventually(scene.has_made(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await scene.settle()
        missed = origin.commit({"cart/x": "pushed while piped was away"})
        async with scene.triggering(site):
            found = await eventually(scene.has_made(2, cart))
            await scene.settle()
        assert missed in commits(found)
        async with scene.triggering(site):
            await scene.settle()
        assert len(await scene.made()) == 2


async def test_a_piped_killed_between_creation_and_report_does_not_deploy_twice(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        id_ = await plane.piped.add_application("cart")
        plane.gate.refusals["ReportApplicationMostRecentDeployment"] = grpc.StatusCode.UNAVAILABLE
        async with scene.triggering(site):
            (first,) = await eventually(scene.has_made(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        plane.gate.refusals.clear()
        told = plane.gate.count("ReportApplicationMostRecentDeployment")
        async with scene.triggering(site):
            await eventually(
                lambda: plane.gate.count("ReportApplicationMostRecentDeployment") > told
            )
            await scene.settle()
        assert [d.id for d in await scene.made()] == [first.id]
        application = await plane.application(id_)
        assert application.most_recently_triggered_deployment.deployment_id == first.id


async def test_a_lost_response_does_not_deploy_twice(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        await plane.piped.add_application("cart")
        plane.gate.lost_answers.add("CreateDeployment")
        async with scene.triggering(site):
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await scene.settle()
        assert len(await scene.made()) == 1
        assert plane.gate.count("CreateDeployment") == 2


async def test_a_revert_to_an_earlier_commit_is_deployed(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        cart = await plane.piped.add_application("cart")
        async with scene.triggering(site):
            await eventually(scene.has_made(1))
            origin.commit({"cart/x": "bad"})
            await eventually(scene.has_made(2))
            origin.git("reset", "-q", "--hard", first)
            found = await eventually(scene.has_made(3, cart))
        assert len({d.id for d in found}) == 3


async def test_a_force_push_without_common_history_deploys(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_scene() as scene:
        plane = scene.plane
        await plane.piped.add_application("cart")
        async with scene.triggering(site):
            await eventually(scene.has_made(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        origin.git("checkout", "-q", "--orphan", "new")
        origin.git("commit", "-q", "-m", "a new beginning")
        origin.git("branch", "-M", "new", "main")
        origin.git("reflog", "expire", "--expire=now", "--all")
        origin.git("gc", "-q", "--prune=now")
        for file in (plane.directory / "mirrors").iterdir():
            file.rename(plane.directory / "lost")
        async with scene.triggering(site):
            found = await eventually(scene.has_made(2))
        assert "a new beginning" in {d.trigger.commit.message for d in found}


async def test_a_commit_without_message_author_and_date_is_deployed(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART}, "")
    async with open_scene() as scene:
        plane = scene.plane
        await plane.piped.add_application("cart")
        async with scene.triggering(site):
            (deployment,) = await eventually(scene.has_made(1))
    assert deployment.trigger.commit.message == "(no message)"


async def test_pushes_within_one_second_are_triggered_one_after_the_other(
    open_scene: Any, origin: Origin, site: Repository
) -> None:
    then = datetime(2026, 1, 1, tzinfo=UTC)
    pushed = [origin.commit({"cart/app.pipecd.yaml": CART})]
    async with open_scene() as scene:
        await scene.plane.piped.add_application("cart")
        async with scene.triggering(site, now=lambda: then):
            await eventually(scene.has_made(1))
            for number in (2, 3):
                pushed.append(origin.commit({"cart/code": str(number)}))
                await eventually(scene.has_made(number))
        made = sorted(await scene.made(), key=lambda deployment: deployment.trigger.timestamp)
    assert [deployment.trigger.commit.hash for deployment in made] == pushed
    assert len({deployment.trigger.timestamp for deployment in made}) == 3
