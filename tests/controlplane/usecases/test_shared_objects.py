# SPDX-License-Identifier: Apache-2.0
"""Live states, analysis results and shared objects of plugins."""

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.controlplane.usecases.livestate import patch
from pipecd.controlplane.usecases.shared_objects import SharedObjectKey
from pipecd.model.errors import Denied, NotFound, UserMistake
from pipecd.proto.model.analysis_pb2 import AnalysisResult
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    KubernetesApplicationLiveState,
    KubernetesResourceState,
    KubernetesResourceStateEvent,
)

HEALTHY, OTHER = KubernetesResourceState.HEALTHY, KubernetesResourceState.OTHER


def resource(
    id: str, health: KubernetesResourceState.HealthStatus.ValueType = HEALTHY
) -> KubernetesResourceState:
    return KubernetesResourceState(id=id, name=id, health_status=health, created_at=1)


def snapshot(
    application_id: str, *resources: KubernetesResourceState
) -> ApplicationLiveStateSnapshot:
    return ApplicationLiveStateSnapshot(
        application_id=application_id,
        piped_id="a lie",
        project_id="a lie",
        kubernetes=KubernetesApplicationLiveState(resources=resources),
        version=ApplicationLiveStateVersion(timestamp=10, index=1),
    )


def event(
    application_id: str,
    state: KubernetesResourceState,
    *,
    at: int = 10,
    deleted: bool = False,
) -> KubernetesResourceStateEvent:
    kind = KubernetesResourceStateEvent
    return kind(
        id="e",
        application_id=application_id,
        type=kind.DELETED if deleted else kind.ADD_OR_UPDATED,
        state=state,
        snapshot_version=ApplicationLiveStateVersion(timestamp=at, index=1),
        created_at=1,
    )


async def test_a_live_state_can_be_read_by_its_project_only(
    cases: UseCases,
    stores: Stores,
    application: Application,
    piped: PipedCaller,
    viewer: User,
    stranger: User,
) -> None:
    with pytest.raises(NotFound):
        await cases.livestate.get(application.id, by=viewer)
    await cases.livestate.report(snapshot(application.id, resource("pod")), by=piped)
    await stores.cache.delete(f"application-live-state:{application.id}")
    snapshot_read = await cases.livestate.get(application.id, by=viewer)
    assert [r.id for r in snapshot_read.kubernetes.resources] == ["pod"]
    assert (snapshot_read.piped_id, snapshot_read.project_id) == (piped.piped, "shop")
    with pytest.raises(ForeignProject):
        await cases.livestate.get(application.id, by=stranger)


async def test_events_patch_the_snapshot_of_the_owner_only(
    cases: UseCases,
    application: Application,
    piped: PipedCaller,
    other_piped: PipedCaller,
    viewer: User,
) -> None:
    await cases.livestate.report(snapshot(application.id, resource("a"), resource("b")), by=piped)
    lie = event(application.id, resource("a"), deleted=True)
    await cases.livestate.report_events([lie], by=other_piped)
    news = [
        event(application.id, resource("a"), deleted=True),
        event("unknown", resource("x")),
        event(application.id, resource("c", OTHER)),
        event(application.id, resource("b"), at=9, deleted=True),
    ]
    await cases.livestate.report_events(news, by=piped)
    snapshot_read = await cases.livestate.get(application.id, by=viewer)
    assert [r.id for r in snapshot_read.kubernetes.resources] == ["b", "c"]
    assert snapshot_read.health_status == ApplicationLiveStateSnapshot.OTHER


def test_events_patch_a_snapshot_without_kubernetes_resources() -> None:
    bare = ApplicationLiveStateSnapshot(version=ApplicationLiveStateVersion(timestamp=1, index=1))
    assert patch(bare, [event("a", resource("pod"))])
    assert bare.health_status == ApplicationLiveStateSnapshot.HEALTHY


async def test_a_live_state_of_another_pipeds_application_is_refused(
    cases: UseCases, application: Application, other_piped: PipedCaller
) -> None:
    with pytest.raises(Denied):
        await cases.livestate.report(snapshot(application.id), by=other_piped)


async def test_the_latest_analysis_result_is_stored(
    cases: UseCases,
    stores: Stores,
    application: Application,
    piped: PipedCaller,
    other_piped: PipedCaller,
) -> None:
    with pytest.raises(NotFound):
        await cases.objects.analysis_result(application.id, by=piped)
    result = AnalysisResult(start_time=42)
    await cases.objects.put_analysis_result(application.id, result, by=piped)
    assert await cases.objects.analysis_result(application.id, by=piped) == result
    stored = await stores.files.get(f"latest-analysis-result/{application.id}.json")
    assert stored == b'{"start_time":42}'
    with pytest.raises(Denied):
        await cases.objects.analysis_result(application.id, by=other_piped)


async def test_shared_objects_are_stored_by_application_plugin_and_key(
    cases: UseCases, application: Application, piped: PipedCaller, other_piped: PipedCaller
) -> None:
    name = SharedObjectKey(application.id, "analysis", "baseline/latest")
    with pytest.raises(NotFound):
        await cases.objects.get(name, by=piped)
    await cases.objects.put(name, b"\x00\xff", by=piped)
    assert await cases.objects.get(name, by=piped) == b"\x00\xff"
    with pytest.raises(NotFound):
        await cases.objects.get(
            SharedObjectKey(application.id, "wait", "baseline/latest"), by=piped
        )
    with pytest.raises(Denied):
        await cases.objects.get(name, by=other_piped)


@pytest.mark.parametrize(
    ("plugin", "key"),
    [
        pytest.param("analysis", "../../../command-output/x", id="a key with two dots"),
        pytest.param("..", "x", id="a plugin of two dots"),
        pytest.param("a/b", "x", id="a plugin with a slash"),
        pytest.param("analysis", "a//b", id="an empty path segment"),
        pytest.param("analysis", "a\\b", id="a backslash"),
    ],
)
async def test_a_key_that_leaves_its_directory_is_refused(
    cases: UseCases, application: Application, piped: PipedCaller, plugin: str, key: str
) -> None:
    with pytest.raises(UserMistake):
        await cases.objects.put(SharedObjectKey(application.id, plugin, key), b"x", by=piped)
