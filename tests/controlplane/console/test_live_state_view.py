# SPDX-License-Identifier: Apache-2.0
"""The live state as a tree of resources, from snapshots of v0 and v1 pipeds."""

from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console.live_state_view import MAX_RESOURCES, live_state_view
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState


def resource(id_: str, *parents: str, **fields: Any) -> ResourceState:
    return ResourceState(id=id_, name=f"name of {id_}", parent_ids=parents, **fields)


def snapshot(*resources: ResourceState, health: int = 1) -> ApplicationLiveStateSnapshot:
    state = pb.ApplicationLiveState(resources=resources)
    made = ApplicationLiveStateSnapshot(application_live_state=state)
    made.health_status = ApplicationLiveStateSnapshot.Status.ValueType(health)
    return made


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        pytest.param([], [], id="no resources"),
        pytest.param(
            [resource("pod", "set"), resource("web"), resource("set", "web")],
            [("web", 0), ("set", 1), ("pod", 2)],
            id="children are below their parents",
        ),
        pytest.param(
            [resource("b"), resource("a"), resource("c", "gone")],
            [("a", 0), ("b", 0), ("c", 0)],
            id="one whose parent is not there is a root",
        ),
        pytest.param(
            [resource("a", "b"), resource("b", "a"), resource("c")],
            [("c", 0), ("a", 0), ("b", 1)],
            id="a circle is shown once",
        ),
        pytest.param(
            [
                resource("a", deploy_target="t2"),
                resource("a", deploy_target="t1"),
                resource("b", "a", deploy_target="t2"),
            ],
            [("t1/a", 0), ("t2/a", 0), ("t2/b", 1)],
            id="two targets may have the same ids",
        ),
    ],
)
def test_the_order_of_the_tree(
    resources: list[ResourceState], expected: list[tuple[str, int]], noon: datetime
) -> None:
    rows = live_state_view(snapshot(*resources), noon).resources
    assert [(row.id.removeprefix("/"), row.depth) for row in rows] == expected


@pytest.mark.parametrize(
    ("health", "text"),
    [
        pytest.param(0, "Health unknown", id="unknown"),
        pytest.param(1, "Healthy", id="healthy"),
        pytest.param(2, "Unhealthy", id="other, a status of v0"),
        pytest.param(3, "Unhealthy", id="unhealthy"),
    ],
)
def test_the_health_of_the_application(health: int, text: str, noon: datetime) -> None:
    assert live_state_view(snapshot(health=health), noon).badge.text == text


@pytest.mark.parametrize("part", ["kubernetes", "cloudrun", "ecs", "lambda"])
def test_snapshots_of_v0_are_read(part: str, noon: datetime, start: int) -> None:
    made = ApplicationLiveStateSnapshot()
    state = getattr(made, part).resources.add(id="1", name="web", kind="Service", created_at=start)
    state.health_status, state.health_description = 2, "it crashes"
    if part in ("kubernetes", "cloudrun"):
        state.api_version, state.namespace = "v1", "shop"
    (row,) = live_state_view(made, noon).resources
    assert (row.name, row.kind, row.badge.text, row.text) == (
        "web",
        "Service",
        "Unhealthy",
        "it crashes",
    )
    assert row.location == ("shop" if part in ("kubernetes", "cloudrun") else "")
    assert row.created is not None


def test_a_large_tree_is_truncated(noon: datetime) -> None:
    tree = live_state_view(snapshot(*(resource(str(at)) for at in range(MAX_RESOURCES + 5))), noon)
    assert (len(tree.resources), tree.omitted) == (MAX_RESOURCES, 5)
    assert tree.summary == f"{MAX_RESOURCES + 5} resources"


def test_metadata_of_plugins_is_shown(noon: datetime) -> None:
    given = resource("1", resource_type="t", resource_metadata={"Kind": "Pod", "Image": "v1"})
    (row,) = live_state_view(snapshot(given), noon).resources
    assert (row.kind, row.metadata) == ("Pod", (("Image", "v1"),))
