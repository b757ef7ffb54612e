# SPDX-License-Identifier: Apache-2.0
"""What runs, as a tree of lines, from reports of both generations."""

from datetime import datetime
from typing import Any

import pytest

from pipecd.controlplane.console.live_state_view import MOST_SHOWN, live_tree
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
        pytest.param([], [], id="nothing runs"),
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
    lines = live_tree(snapshot(*resources), noon).resources
    assert [(line.id.removeprefix("/"), line.depth) for line in lines] == expected


@pytest.mark.parametrize(
    ("health", "word"),
    [
        pytest.param(0, "Health unknown", id="unknown"),
        pytest.param(1, "Healthy", id="healthy"),
        pytest.param(2, "Unhealthy", id="what the first generation calls other"),
        pytest.param(3, "Unhealthy", id="unhealthy"),
    ],
)
def test_the_health_of_the_whole(health: int, word: str, noon: datetime) -> None:
    assert live_tree(snapshot(health=health), noon).mark.word == word


@pytest.mark.parametrize("part", ["kubernetes", "cloudrun", "ecs", "lambda"])
def test_reports_of_the_first_generation_are_read(part: str, noon: datetime, start: int) -> None:
    made = ApplicationLiveStateSnapshot()
    told = getattr(made, part).resources.add(id="1", name="web", kind="Service", created_at=start)
    told.health_status, told.health_description = 2, "it crashes"
    if part in ("kubernetes", "cloudrun"):
        told.api_version, told.namespace = "v1", "shop"
    (line,) = live_tree(made, noon).resources
    assert (line.name, line.kind, line.mark.word, line.text) == (
        "web",
        "Service",
        "Unhealthy",
        "it crashes",
    )
    assert line.place == ("shop" if part in ("kubernetes", "cloudrun") else "")
    assert line.created is not None


def test_a_large_tree_is_cut_and_says_so(noon: datetime) -> None:
    tree = live_tree(snapshot(*(resource(str(at)) for at in range(MOST_SHOWN + 5))), noon)
    assert (len(tree.resources), tree.omitted) == (MOST_SHOWN, 5)
    assert tree.summary == f"{MOST_SHOWN + 5} resources"


def test_what_a_plugin_finds_worth_showing_is_shown(noon: datetime) -> None:
    given = resource("1", resource_type="t", resource_metadata={"Kind": "Pod", "Image": "v1"})
    (line,) = live_tree(snapshot(given), noon).resources
    assert (line.kind, line.facts) == ("Pod", (("Image", "v1"),))
