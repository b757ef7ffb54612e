# SPDX-License-Identifier: Apache-2.0
"""A commit becomes one deployment of what it touches, whatever happens in between."""

import time
from datetime import UTC, datetime, timedelta

import grpc

from pipecd.git.mirror import Repository
from pipecd.model.clock import utc_now
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.piped.plan.stages import TargetsByPlugin
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from servers.origin import Origin
from servers.polling import eventually
from servers.samples import CART
from servers.trigger import OpenTrigger


def commits(deployments: list[Deployment]) -> set[str]:
    return {deployment.trigger.commit.hash for deployment in deployments}


async def test_the_first_deployment_has_all_its_fields(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    spec = "  notification:\n    mentions: [{event: DEPLOYMENT_FAILED, slackusers: [U1]}]\n"
    commit = origin.commit(
        {"cart/app.pipecd.yaml": CART + spec},
        "deploy the cart\n\nPipecd-Dev-Trace-Trigger-Commit-Hash: abc",
    )
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        async with env.triggering(site):
            (deployment,) = await eventually(env.has_deployments(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await env.wait_until_idle()
        assert len(await env.open_deployments()) == 1
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


async def test_a_push_triggers_at_once(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        await plane.piped.add_application("cart")
        async with env.triggering(site, interval=1000):
            await eventually(env.has_deployments(1))
            await env.wait_until_idle()
            origin.commit({"cart/x": "1"})
            pushed = time.perf_counter()
            await eventually(lambda: plane.gate.count("CreateDeploymentInOrder") == 2)
            took = time.perf_counter() - pushed
    # The head is polled every quarter second; the rest is margin for a busy machine.
    assert took < 1


async def test_the_applications_of_a_push_are_triggered_at_the_same_time(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    names = [f"shop-{number}" for number in range(5)]
    origin.commit({f"{name}/app.pipecd.yaml": CART for name in names})
    async with open_trigger() as env:
        for name in names:
            await env.plane.piped.add_application(name)
        # None is answered, and all are under way.
        env.plane.gate.held_answers.add("CreateDeploymentInOrder")
        async with env.triggering(site):
            await eventually(lambda: env.plane.gate.count("CreateDeploymentInOrder done") == 5)


async def test_only_the_changed_application_is_deployed(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART, "shop/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        cart, shop = (
            await plane.piped.add_application("cart"),
            await plane.piped.add_application("shop"),
        )
        async with env.triggering(site):
            await eventually(env.has_deployments(2))
            commit = origin.commit({"cart/x": "1"})
            await eventually(env.has_deployments(2, cart))
            origin.commit({"README": "nothing to deploy"})
            last = origin.commit({"shop/x": "1"})
            deployments = await eventually(env.has_deployments(2, shop))
        assert commit in commits(await env.open_deployments(cart))
        assert len(await env.open_deployments(cart)) == 2
        assert last in commits(deployments)


async def test_a_restart_neither_loses_nor_repeats_a_trigger(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        cart = await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await env.wait_until_idle()
        missed = origin.commit({"cart/x": "pushed while piped was stopped"})
        async with env.triggering(site):
            deployments = await eventually(env.has_deployments(2, cart))
            await env.wait_until_idle()
        assert missed in commits(deployments)
        async with env.triggering(site):
            await env.wait_until_idle()
        assert len(await env.open_deployments()) == 2


async def test_a_piped_killed_between_creation_and_report_does_not_deploy_twice(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart")
        plane.gate.refusals["ReportApplicationMostRecentDeployment"] = grpc.StatusCode.UNAVAILABLE
        async with env.triggering(site):
            (first,) = await eventually(env.has_deployments(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        plane.gate.refusals.clear()
        reports = plane.gate.count("ReportApplicationMostRecentDeployment")
        async with env.triggering(site):
            await eventually(
                lambda: plane.gate.count("ReportApplicationMostRecentDeployment") > reports
            )
            await env.wait_until_idle()
        assert [d.id for d in await env.open_deployments()] == [first.id]
        application = await plane.application(id_)
        assert application.most_recently_triggered_deployment.deployment_id == first.id


async def test_a_lost_response_does_not_deploy_twice(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        await plane.piped.add_application("cart")
        plane.gate.lost_answers.add("CreateDeploymentInOrder")
        async with env.triggering(site):
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
            await env.wait_until_idle()
        assert len(await env.open_deployments()) == 1
        assert plane.gate.count("CreateDeploymentInOrder") == 2


async def test_a_revert_to_an_earlier_commit_is_deployed(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    first = origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        cart = await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            origin.commit({"cart/x": "bad"})
            await eventually(env.has_deployments(2))
            origin.git("reset", "-q", "--hard", first)
            deployments = await eventually(env.has_deployments(3, cart))
        assert len({d.id for d in deployments}) == 3


async def test_a_force_push_without_common_history_deploys(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART})
    async with open_trigger() as env:
        plane = env.plane
        await plane.piped.add_application("cart")
        async with env.triggering(site):
            await eventually(env.has_deployments(1))
            await eventually(lambda: plane.gate.count("ReportApplicationMostRecentDeployment"))
        origin.git("checkout", "-q", "--orphan", "new")
        origin.git("commit", "-q", "-m", "a new beginning")
        origin.git("branch", "-M", "new", "main")
        origin.git("reflog", "expire", "--expire=now", "--all")
        origin.git("gc", "-q", "--prune=now")
        for file in (plane.directory / "mirrors").iterdir():
            file.rename(plane.directory / "lost")
        async with env.triggering(site):
            deployments = await eventually(env.has_deployments(2))
        assert "a new beginning" in {d.trigger.commit.message for d in deployments}


async def test_a_commit_without_message_author_and_date_is_deployed(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART}, "")
    async with open_trigger() as env:
        plane = env.plane
        await plane.piped.add_application("cart")
        async with env.triggering(site):
            (deployment,) = await eventually(env.has_deployments(1))
    assert deployment.trigger.commit.message == "(no message)"


async def test_pushes_within_one_second_are_triggered_one_after_the_other(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    then = datetime(2026, 1, 1, tzinfo=UTC)
    pushed = [origin.commit({"cart/app.pipecd.yaml": CART})]
    async with open_trigger() as env:
        await env.plane.piped.add_application("cart")
        async with env.triggering(site, now=lambda: then):
            await eventually(env.has_deployments(1))
            for number in (2, 3):
                pushed.append(origin.commit({"cart/code": str(number)}))
                await eventually(env.has_deployments(number))
        deployments = await env.open_deployments()
    assert [deployment.trigger.commit.hash for deployment in deployments] == pushed


ON_A_CLUSTER = CART + "  plugins: {kubernetes: {}}\n"
CLUSTER: TargetsByPlugin = {"kubernetes": ("cluster",)}


async def test_a_new_application_is_deployed_once_it_has_its_deploy_targets(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    """The API adds an application without deploy targets, and sets them with a second call."""
    origin.commit({"cart/app.pipecd.yaml": ON_A_CLUSTER})
    async with open_trigger() as env:
        plane = env.plane
        id_ = await plane.piped.add_application("cart", description="without a provider")
        async with env.triggering(site, targets=CLUSTER):
            await env.wait_until_idle()
            assert await env.open_deployments() == []
            targets = {"kubernetes": DeployTargets(deploy_targets=["cluster"])}
            await plane.cases.applications.set_deploy_targets(id_, targets, by=plane.admin)
            (deployment,) = await eventually(env.has_deployments(1))
    assert list(deployment.deploy_targets_by_plugin["kubernetes"].deploy_targets) == ["cluster"]


async def test_an_application_that_stays_without_deploy_targets_is_deployed_to_fail_with_a_reason(
    open_trigger: OpenTrigger, origin: Origin, site: Repository
) -> None:
    origin.commit({"cart/app.pipecd.yaml": ON_A_CLUSTER})

    def later() -> datetime:
        return utc_now() + timedelta(seconds=15)

    async with open_trigger() as env:
        await env.plane.piped.add_application("cart", description="without a provider")
        async with env.triggering(site, targets=CLUSTER, now=later):
            (deployment,) = await eventually(env.has_deployments(1))
    assert dict(deployment.deploy_targets_by_plugin) == {}
