# SPDX-License-Identifier: Apache-2.0
"""What runs is told when it changes, and compared again whenever there is a reason to."""

from dataclasses import replace
from typing import Any

from pipecd.model.application import SyncStatus
from pipecd.model.ids import new_id
from pipecd.piped.notify.event import EventType, subject_of
from pipecd.proto.model.deployment_pb2 import DEPLOYMENT_SUCCESS, Deployment
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.proto.service import piped_pb2
from servers.polling import eventually


async def test_what_runs_and_how_it_compares_are_told(open_scene: Any) -> None:
    async with open_scene() as scene:
        commit = scene.push("cart", a="1", b="2")
        scene.put("cart", a="1", b="ill")
        id_ = await scene.plane.piped.add_application("cart")
        async with scene.reporting():
            state = await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC))
            snapshot = await eventually(scene.has_file(id_, "b", "ill"))
    assert state.short_reason == "1 files differ"
    assert state.reason == f"compared with {commit[:7]}:\n- b: ill\n+ b: 2"
    assert snapshot.health_status == ApplicationLiveStateSnapshot.OTHER
    assert [r.kind for r in snapshot.kubernetes.resources] == ["File", "File"]


async def test_a_change_is_told_at_once_and_nothing_is_told_twice(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting() as reporter:
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            await eventually(scene.has_file(id_, "a", "1"))
            gate = scene.plane.gate
            for looks in range(2, 7):
                reporter.changed([id_, "nobody"])
                await eventually(lambda at_least=looks: len(scene.shelf.looks) >= at_least)
            assert gate.count("ReportApplicationLiveState") == 1
            assert gate.count("ReportApplicationSyncState") == 1
            scene.put("cart", a="by hand")
            await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC, "by hand"), 2)
            await eventually(scene.has_file(id_, "a", "by hand"))
            scene.put("cart", a="1")
            await eventually(scene.is_in(id_, SyncStatus.SYNCED), 2)
            await eventually(lambda: len(scene.notifier.events) == 2)
    kinds = [event.type for event in scene.notifier.events]
    assert kinds == [
        EventType.APPLICATION_OUT_OF_SYNC,
        EventType.APPLICATION_SYNCED,
    ]


async def test_people_hear_when_an_application_is_healthy_again(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting():
            await eventually(scene.has_file(id_, "a", "1"))
            scene.put("cart", a="ill")
            await eventually(scene.has_file(id_, "a", "ill"))
            scene.put("cart", a="1")
            await eventually(
                lambda: any(n.type is EventType.APPLICATION_HEALTHY for n in scene.notifier.events)
            )
    told = [n for n in scene.notifier.events if n.type is EventType.APPLICATION_HEALTHY]
    assert [subject_of(event.metadata).application for event in told] == ["cart"]


async def test_only_a_commit_that_touches_an_application_is_a_reason_to_look(
    open_scene: Any,
) -> None:
    async with open_scene() as scene:
        scene.push("cart", a="1")
        scene.push("shop", a="1")
        scene.put("cart", a="1")
        scene.put("shop", a="1")
        cart = await scene.plane.piped.add_application("cart")
        shop = await scene.plane.piped.add_application("shop")
        async with scene.reporting():
            await eventually(scene.is_in(cart, SyncStatus.SYNCED))
            await eventually(scene.is_in(shop, SyncStatus.SYNCED))
            before = scene.shelf.looks.count("shop")
            scene.push("cart", a="2")
            state = await eventually(scene.is_in(cart, SyncStatus.OUT_OF_SYNC))
            assert "+ a: 2" in state.reason
            assert scene.shelf.looks.count("shop") == before
            # What lies above an application may be read by its tools.
            scene.origin.commit({"README": "x"})
            await eventually(lambda: scene.shelf.looks.count("shop") > before)


async def test_what_another_writer_reports_is_put_right(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting():
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            async with scene.plane.piped.api() as api:
                wrong = piped_pb2.ReportApplicationSyncStateRequest(application_id=id_)
                wrong.state.status, wrong.state.timestamp = SyncStatus.INVALID_CONFIG, 1
                await api.report_application_sync_state(wrong)
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))


async def test_a_broken_configuration_is_told_until_it_is_mended(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting():
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            scene.origin.commit({"cart/app.pipecd.yaml": "kind: [1]"})
            await eventually(scene.is_in(id_, SyncStatus.INVALID_CONFIG, "cart/app.pipecd.yaml"))
            scene.origin.commit({"cart/app.pipecd.yaml": None})
            await eventually(scene.is_in(id_, SyncStatus.INVALID_CONFIG, "was not found"))
            scene.push("cart", a="1")
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))


async def test_a_deployment_is_told_as_such_and_compared_afterwards(open_scene: Any) -> None:
    async with open_scene() as scene:
        commit = scene.push("cart", a="1")
        id_ = await scene.plane.piped.add_application("cart")
        async with scene.reporting(), scene.plane.piped.api() as api:
            await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC))
            deployment = await _deployment(scene, id_, commit)
            await api.create_deployment(piped_pb2.CreateDeploymentRequest(deployment=deployment))
            await eventually(scene.is_in(id_, SyncStatus.DEPLOYING))
            scene.put("cart", a="1")
            # What runs is told meanwhile.
            await eventually(scene.has_file(id_, "a", "1"))
            assert (await scene.state(id_)).status == SyncStatus.DEPLOYING
            await api.report_deployment_completed(
                piped_pb2.ReportDeploymentCompletedRequest(
                    deployment_id=deployment.id, status=DEPLOYMENT_SUCCESS, completed_at=1
                )
            )
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            await eventually(lambda: len(scene.notifier.events) == 2)
    kinds = [event.type for event in scene.notifier.events]
    assert kinds == [
        EventType.APPLICATION_OUT_OF_SYNC,
        EventType.APPLICATION_SYNCED,
    ]


async def _deployment(scene: Any, application_id: str, commit: str) -> Deployment:
    application = await scene.plane.application(application_id)
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


async def test_a_working_copy_serves_many_looks_and_goes_with_its_application(
    open_scene: Any,
) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        async with scene.reporting():
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
            kept = scene.copies / id_
            made = kept.stat().st_ino
            scene.put("cart", a="2")
            await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC))
            assert kept.stat().st_ino == made
            await scene.plane.cases.applications.disable(id_, by=scene.plane.admin)
            await eventually(lambda: not kept.exists())
            looks = len(scene.shelf.looks)
            scene.put("cart", a="3")
            await scene.plane.cases.applications.enable(id_, by=scene.plane.admin)
            await eventually(lambda: len(scene.shelf.looks) > looks)
            await eventually(scene.is_in(id_, SyncStatus.OUT_OF_SYNC, "- a: 3"))


async def test_an_application_without_a_platform_keeps_no_working_copy(open_scene: Any) -> None:
    pipeline = "  pipeline: {stages: [{name: PAUSE}]}\n"
    async with open_scene() as scene:
        scene.push("cart", pipeline)
        cart = await scene.plane.piped.add_application("cart")
        async with scene.reporting() as reporter:
            # The first look finds out that nobody can tell; the next one does without a copy.
            await eventually(lambda: (post := reporter._running.get(cart)) and post.watcher._result)
            assert not (scene.copies / cart).exists()
            scene.push("cart", pipeline, a="2")
            reporter.changed([cart])
            shop = await scene.deployed("shop", a="1")
            await eventually(scene.is_in(shop, SyncStatus.SYNCED))
            assert (scene.copies / shop).exists()
            assert await scene.snapshot(cart) is None
            assert (await scene.state(cart)).status == SyncStatus.UNKNOWN
            assert not (scene.copies / cart).exists()
            scene.push("shop", pipeline)
            await eventually(lambda: not (scene.copies / shop).exists())


async def test_what_runs_is_told_again_after_a_while(open_scene: Any) -> None:
    async with open_scene() as scene:
        id_ = await scene.deployed("cart", a="1")
        gate, often = scene.plane.gate, replace(scene.intervals, poll_if_pushed=0.02)
        async with scene.reporting(intervals=often):
            await eventually(lambda: len(scene.shelf.looks) > 2)
            assert gate.count("ReportApplicationLiveState") == 1
            await eventually(scene.is_in(id_, SyncStatus.SYNCED))
        async with scene.reporting(intervals=replace(often, full_report=0.02)):
            await eventually(lambda: gate.count("ReportApplicationLiveState") > 3)
        assert gate.count("ReportApplicationSyncState") == 1
