# SPDX-License-Identifier: Apache-2.0
"""Live states are reported when they change, and compared with Git when there is a reason."""

from dataclasses import replace

from pipecd.model.application import SyncStatus
from pipecd.model.ids import new_id
from pipecd.piped.notify.event import EventType, subject_of
from pipecd.proto.model.deployment_pb2 import DEPLOYMENT_SUCCESS, Deployment
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.proto.service import piped_pb2
from servers.livestate import INTERVALS, LiveStateEnvironment, OpenLiveState
from servers.polling import eventually


async def test_live_state_and_drift_are_reported(open_live_state: OpenLiveState) -> None:
    async with open_live_state() as env:
        commit = env.push("cart", a="1", b="2")
        env.write_live("cart", a="1", b="ill")
        id_ = await env.plane.piped.add_application("cart")
        async with env.reporting():
            state = await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC))
            snapshot = await eventually(env.has_live_file(id_, "b", "ill"))
    assert state.short_reason == "1 files differ"
    assert state.reason == f"compared with {commit[:7]}:\n- b: ill\n+ b: 2"
    assert snapshot.health_status == ApplicationLiveStateSnapshot.OTHER
    assert [r.kind for r in snapshot.kubernetes.resources] == ["File", "File"]


async def test_a_change_is_reported_at_once_and_once(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting() as reporter:
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            await eventually(env.has_live_file(id_, "a", "1"))
            gate = env.plane.gate
            for count in range(2, 7):
                reporter.changed([id_, "unknown"])
                await eventually(lambda at_least=count: len(env.plugin.reads) >= at_least)
            assert gate.count("ReportApplicationLiveState") == 1
            assert gate.count("ReportApplicationSyncState") == 1
            env.write_live("cart", a="by hand")
            await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC, "by hand"), 2)
            await eventually(env.has_live_file(id_, "a", "by hand"))
            env.write_live("cart", a="1")
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED), 2)
            await eventually(lambda: len(env.notifier.events) == 2)
    types = [event.type for event in env.notifier.events]
    assert types == [
        EventType.APPLICATION_OUT_OF_SYNC,
        EventType.APPLICATION_SYNCED,
    ]


async def test_a_recovered_application_is_notified(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting():
            await eventually(env.has_live_file(id_, "a", "1"))
            env.write_live("cart", a="ill")
            await eventually(env.has_live_file(id_, "a", "ill"))
            env.write_live("cart", a="1")
            await eventually(
                lambda: any(n.type is EventType.APPLICATION_HEALTHY for n in env.notifier.events)
            )
    healthy = [n for n in env.notifier.events if n.type is EventType.APPLICATION_HEALTHY]
    assert [subject_of(event.metadata).application for event in healthy] == ["cart"]


async def test_only_commits_that_touch_an_application_cause_a_read(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        env.push("cart", a="1")
        env.push("shop", a="1")
        env.write_live("cart", a="1")
        env.write_live("shop", a="1")
        cart = await env.plane.piped.add_application("cart")
        shop = await env.plane.piped.add_application("shop")
        async with env.reporting():
            await eventually(env.has_sync_status(cart, SyncStatus.SYNCED))
            await eventually(env.has_sync_status(shop, SyncStatus.SYNCED))
            before = env.plugin.reads.count("shop")
            env.push("cart", a="2")
            state = await eventually(env.has_sync_status(cart, SyncStatus.OUT_OF_SYNC))
            assert "+ a: 2" in state.reason
            assert env.plugin.reads.count("shop") == before
            # Tools of an application may read files of its parent directories.
            env.origin.commit({"README": "x"})
            await eventually(lambda: env.plugin.reads.count("shop") > before)


async def test_a_wrong_state_of_another_reporter_is_corrected(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting():
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            async with env.plane.piped.api() as api:
                wrong = piped_pb2.ReportApplicationSyncStateRequest(application_id=id_)
                wrong.state.status, wrong.state.timestamp = SyncStatus.INVALID_CONFIG, 1
                await api.report_application_sync_state(wrong)
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))


async def test_an_invalid_configuration_is_reported_until_it_is_fixed(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting():
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            env.origin.commit({"cart/app.pipecd.yaml": "kind: [1]"})
            await eventually(
                env.has_sync_status(id_, SyncStatus.INVALID_CONFIG, "cart/app.pipecd.yaml")
            )
            env.origin.commit({"cart/app.pipecd.yaml": None})
            await eventually(env.has_sync_status(id_, SyncStatus.INVALID_CONFIG, "was not found"))
            env.push("cart", a="1")
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))


async def test_the_state_is_deploying_during_a_deployment_and_compared_afterwards(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        commit = env.push("cart", a="1")
        id_ = await env.plane.piped.add_application("cart")
        async with env.reporting(), env.plane.piped.api() as api:
            await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC))
            deployment = await _deployment(env, id_, commit)
            await api.create_deployment(piped_pb2.CreateDeploymentRequest(deployment=deployment))
            await eventually(env.has_sync_status(id_, SyncStatus.DEPLOYING))
            env.write_live("cart", a="1")
            # The live state is reported during the deployment too.
            await eventually(env.has_live_file(id_, "a", "1"))
            assert (await env.sync_state(id_)).status == SyncStatus.DEPLOYING
            await api.report_deployment_completed(
                piped_pb2.ReportDeploymentCompletedRequest(
                    deployment_id=deployment.id, status=DEPLOYMENT_SUCCESS, completed_at=1
                )
            )
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            await eventually(lambda: len(env.notifier.events) == 2)
    types = [event.type for event in env.notifier.events]
    assert types == [
        EventType.APPLICATION_OUT_OF_SYNC,
        EventType.APPLICATION_SYNCED,
    ]


async def _deployment(env: LiveStateEnvironment, application_id: str, commit: str) -> Deployment:
    application = await env.plane.application(application_id)
    deployment = Deployment(
        id=new_id(),
        application_id=application_id,
        application_name=application.name,
        piped_id=application.piped_id,
        project_id=application.project_id,
        git_path=application.git_path,
        platform_provider="p",
        created_at=1,
        updated_at=1,
    )
    deployment.trigger.commit.hash = commit
    deployment.trigger.commit.branch, deployment.trigger.commit.author = "main", "ann"
    deployment.trigger.commit.message = "x"
    deployment.trigger.commit.created_at = deployment.trigger.timestamp = 1
    return deployment


async def test_a_working_copy_is_reused_and_removed_with_its_application(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        async with env.reporting():
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
            copy = env.working_copies / id_
            inode = copy.stat().st_ino
            env.write_live("cart", a="2")
            await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC))
            assert copy.stat().st_ino == inode
            await env.plane.cases.applications.disable(id_, by=env.plane.admin)
            await eventually(lambda: not copy.exists())
            reads = len(env.plugin.reads)
            env.write_live("cart", a="3")
            await env.plane.cases.applications.enable(id_, by=env.plane.admin)
            await eventually(lambda: len(env.plugin.reads) > reads)
            await eventually(env.has_sync_status(id_, SyncStatus.OUT_OF_SYNC, "- a: 3"))


async def test_an_application_without_live_state_has_no_working_copy(
    open_live_state: OpenLiveState,
) -> None:
    pipeline = "  pipeline: {stages: [{name: PAUSE}]}\n"
    async with open_live_state() as env:
        env.push("cart", pipeline)
        cart = await env.plane.piped.add_application("cart")
        async with env.reporting() as reporter:
            # After the first read no plugin supports live states; the next one needs no copy.
            await eventually(
                lambda: (running := reporter._running.get(cart)) and running.watcher._result
            )
            assert not (env.working_copies / cart).exists()
            env.push("cart", pipeline, a="2")
            reporter.changed([cart])
            shop = await env.add_deployed("shop", a="1")
            await eventually(env.has_sync_status(shop, SyncStatus.SYNCED))
            assert (env.working_copies / shop).exists()
            assert await env.plane.live_state(cart) is None
            assert (await env.sync_state(cart)).status == SyncStatus.UNKNOWN
            assert not (env.working_copies / cart).exists()
            env.push("shop", pipeline)
            await eventually(lambda: not (env.working_copies / shop).exists())


async def test_an_unchanged_live_state_is_reported_again_after_a_while(
    open_live_state: OpenLiveState,
) -> None:
    async with open_live_state() as env:
        id_ = await env.add_deployed("cart", a="1")
        gate, often = env.plane.gate, replace(INTERVALS, poll_if_pushed=0.02)
        async with env.reporting(intervals=often):
            await eventually(lambda: len(env.plugin.reads) > 2)
            assert gate.count("ReportApplicationLiveState") == 1
            await eventually(env.has_sync_status(id_, SyncStatus.SYNCED))
        async with env.reporting(intervals=replace(often, full_report=0.02)):
            await eventually(lambda: gate.count("ReportApplicationLiveState") > 3)
        assert gate.count("ReportApplicationSyncState") == 1
