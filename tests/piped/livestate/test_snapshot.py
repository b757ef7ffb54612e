# SPDX-License-Identifier: Apache-2.0
"""Live state snapshots in the format that the console of each generation reads."""

from typing import Any

import pytest

from pipecd.model.application import ApplicationKind
from pipecd.model.livestate import live_resources
from pipecd.piped.livestate.snapshot import create_snapshot, normalize_resources
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot as Snapshot
from pipecd.proto.model.livestate_pb2 import ResourceState
from pipecd.wire.validation import check

POD = ResourceState(
    id="2",
    parent_ids=["1"],
    name="web-1",
    resource_type="Pod",
    resource_metadata={"API Version": "v1", "Namespace": "shop"},
    health_status=ResourceState.UNHEALTHY,
    health_description="crashes",
    deploy_target="here",
    created_at=5,
    updated_at=6,
)


def application(kind: ApplicationKind | None, **fields: Any) -> Application:
    if kind is not None:
        fields |= {"kind": int(kind), "platform_provider": "here"}
    return Application(id="a", piped_id="p", project_id="x", **fields)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        pytest.param(ApplicationKind.KUBERNETES, "kubernetes", id="Kubernetes"),
        pytest.param(ApplicationKind.CLOUDRUN, "cloudrun", id="Cloud Run"),
        pytest.param(ApplicationKind.ECS, "ecs", id="ECS"),
        pytest.param(ApplicationKind.LAMBDA, "lambda", id="Lambda"),
    ],
)
def test_the_first_generation_has_a_part_for_its_platform(kind: ApplicationKind, part: str) -> None:
    snapshot = create_snapshot(application(kind), [POD], now=7)
    check(snapshot)
    (only,) = getattr(snapshot, part).resources
    assert (only.kind, only.name, list(only.parent_ids), only.health_status) == (
        "Pod",
        "web-1",
        ["1"],
        2,
    )
    if hasattr(only, "api_version"):
        assert (only.api_version, only.namespace) == ("v1", "shop")
    assert snapshot.health_status == Snapshot.OTHER
    filled = {field.name for field, _ in snapshot.ListFields()}
    assert filled & {"kubernetes", "cloudrun", "ecs", "lambda"} == {part}


@pytest.mark.parametrize(
    "kind", [ApplicationKind.CLOUDRUN, ApplicationKind.ECS, ApplicationKind.LAMBDA]
)
def test_the_first_generation_has_metadata_that_its_part_lacks(kind: ApplicationKind) -> None:
    service = ResourceState(id="1", name="web", resource_metadata={"Traffic": "web-2 30%"})
    snapshot = create_snapshot(application(kind), [service], now=7)
    # Every resource once, whichever part of the snapshot it is in.
    assert live_resources(snapshot) == [service]


def test_kinds_of_ecs_have_their_names_of_each_generation() -> None:
    service = ResourceState(id="1", name="web", resource_type="ECS:Service")
    snapshot = create_snapshot(application(ApplicationKind.ECS), [service], now=7)
    assert [each.kind for each in snapshot.ecs.resources] == ["Service"]
    targets = {"ecs": DeployTargets(deploy_targets=["here"])}
    second = application(None, deploy_targets_by_plugin=targets)
    resources = create_snapshot(second, [service], now=7).application_live_state.resources
    assert [each.resource_type for each in resources] == ["ECS:Service"]


def test_terraform_of_the_first_generation_has_its_resources_in_the_common_part() -> None:
    snapshot = create_snapshot(application(ApplicationKind.TERRAFORM), [POD], now=7)
    assert snapshot.HasField("terraform")
    assert [each.id for each in snapshot.application_live_state.resources] == [POD.id]


def test_the_second_generation_has_one_part_for_all_platforms() -> None:
    targets = {"kubernetes": DeployTargets(deploy_targets=["here"])}
    moved = application(ApplicationKind.KUBERNETES, deploy_targets_by_plugin=targets)
    for each in (application(None), moved):
        snapshot = create_snapshot(each, [POD], now=7)
        check(snapshot)
        assert list(snapshot.application_live_state.resources) == [POD]
        assert snapshot.health_status == Snapshot.UNHEALTHY
        assert not snapshot.HasField("kubernetes")


@pytest.mark.parametrize(
    ("healths", "expected"),
    [
        pytest.param([], Snapshot.HEALTHY, id="no resources"),
        pytest.param([1, 1], Snapshot.HEALTHY, id="all healthy"),
        pytest.param([1, 0], Snapshot.UNKNOWN, id="one with unknown health"),
        pytest.param([0, 2], Snapshot.UNHEALTHY, id="unhealthy takes precedence over unknown"),
    ],
)
def test_health_of_the_whole(healths: list[Any], expected: int) -> None:
    resources = [ResourceState(id=str(at), health_status=h) for at, h in enumerate(healths)]
    assert create_snapshot(application(None), resources, now=7).health_status == expected


def test_an_upstream_control_plane_accepts_what_a_plugin_left_out() -> None:
    given = [ResourceState(id="1"), ResourceState(name="without an id")]
    resources = normalize_resources(given, (), now=7)
    assert [(r.id, r.name, r.created_at, r.updated_at) for r in resources] == [("1", "1", 7, 7)]
    check(create_snapshot(application(ApplicationKind.KUBERNETES), resources, now=7))


def test_the_time_of_a_resource_says_when_it_changed() -> None:
    def now_with(time: int, **fields: Any) -> ResourceState:
        # The SDKs write the time of the read, whatever has changed.
        return ResourceState(id="1", name="web", updated_at=time, **fields)

    first = normalize_resources([now_with(7)], (), now=7)
    same = normalize_resources([now_with(9)], first, now=9)
    other = normalize_resources([now_with(9, health_description="ill")], first, now=9)
    assert same == first
    assert [r.updated_at for r in other] == [9]
    assert [r.created_at for r in other] == [7]


def test_a_resource_of_unknown_age_keeps_the_time_it_was_first_seen() -> None:
    # Plugins of the SDK report the time of the read then.
    first = normalize_resources([ResourceState(id="1", created_at=7, updated_at=7)], (), now=7)
    later = normalize_resources([ResourceState(id="1", created_at=9, updated_at=9)], first, now=9)
    assert later == first


def test_the_order_of_reported_resources_does_not_matter() -> None:
    pods = [ResourceState(id=str(at), name="pod", created_at=3) for at in range(5)]
    assert normalize_resources(pods, (), now=7) == normalize_resources(reversed(pods), (), now=7)
