# SPDX-License-Identifier: Apache-2.0
"""The live state as a tree of resources, from snapshots of v0 and v1 pipeds."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console.diff_view import drift_view
from pipecd.controlplane.console.live_graph import (
    MAX_BOXES,
    NARROW_WIDTH,
    above_name,
    live_graph,
    narrow_graph,
    shortened,
)
from pipecd.controlplane.console.live_state_view import (
    MAX_RESOURCES,
    LiveQuery,
    LiveStateView,
    ResourceRow,
    live_state_view,
    parse_live_query,
    worst_first,
)
from pipecd.controlplane.console.status_badge import Badge, Tone
from pipecd.controlplane.usecases.livestate_history import resource_events
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

UNHEALTHY = {"health_status": ResourceState.UNHEALTHY}
HEALTHY = {"health_status": ResourceState.HEALTHY}
BROKEN = {**UNHEALTHY, "health_description": "CrashLoopBackOff"}
MOVING = {**UNHEALTHY, "health_description": "Progressing: 1 of 2 replicas are updated"}


def resource(id_: str, *parents: str, **fields: Any) -> ResourceState:
    return ResourceState(id=id_, name=f"name of {id_}", parent_ids=parents, **fields)


def snapshot(*resources: ResourceState, health: int = 1) -> ApplicationLiveStateSnapshot:
    state = pb.ApplicationLiveState(resources=resources)
    made = ApplicationLiveStateSnapshot(application_live_state=state)
    made.health_status = ApplicationLiveStateSnapshot.Status.ValueType(health)
    return made


def flat(rows: Iterable[ResourceRow], depth: int = 0) -> Iterator[tuple[ResourceRow, int]]:
    for row in rows:
        yield row, depth
        yield from flat(row.children, depth + 1)


def outline(view: LiveStateView) -> list[tuple[str, int]]:
    return [(row.id.removeprefix("/"), depth) for row, depth in flat(view.roots)]


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
            [resource("a", "b"), resource("b", "a"), resource("c"), resource("d", "d")],
            [("a", 0), ("b", 1), ("c", 0), ("d", 0)],
            id="a circle is shown once",
        ),
        pytest.param(
            [
                resource("a", deploy_target="t2"),
                resource("a", deploy_target="t1"),
                resource("b", "a", deploy_target="t2"),
            ],
            [("t2/a", 0), ("t2/b", 1), ("t1/a", 0)],
            id="two targets may have the same ids",
        ),
        pytest.param(
            [
                resource("a", **HEALTHY),
                resource("b", **MOVING),
                resource("c", **HEALTHY),
                resource("pod", "c", **UNHEALTHY),
                resource("d"),
            ],
            [("c", 0), ("pod", 1), ("b", 0), ("d", 0), ("a", 0)],
            id="branches with the worst health come first",
        ),
    ],
)
def test_the_order_of_the_tree(
    resources: list[ResourceState], expected: list[tuple[str, int]], noon: datetime
) -> None:
    assert outline(live_state_view(snapshot(*resources), noon)) == expected


def test_a_chain_of_owners_has_a_limited_depth(noon: datetime) -> None:
    chain = [resource("0"), *(resource(str(n), str(n - 1)) for n in range(1, 3000))]
    rows = outline(live_state_view(snapshot(*chain[:1500]), noon))
    assert len(rows) == 1500
    assert max(depth for _, depth in rows) == 12


@pytest.mark.parametrize(
    ("health", "text"),
    [
        pytest.param(0, "Unknown", id="unknown"),
        pytest.param(1, "Healthy", id="healthy"),
        pytest.param(2, "Unhealthy", id="other, a status of v0"),
        pytest.param(3, "Unhealthy", id="unhealthy"),
        pytest.param(9, "Unknown", id="a status of a later version"),
    ],
)
def test_the_health_of_the_application(health: int, text: str, noon: datetime) -> None:
    assert live_state_view(snapshot(health=health), noon).badge.text == text


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        pytest.param((resource("1", **MOVING),), "Progressing", id="one progresses"),
        pytest.param(
            (resource("1", **MOVING), resource("2", **UNHEALTHY)),
            "Unhealthy",
            id="another is unhealthy",
        ),
    ],
)
def test_an_application_progresses_if_nothing_is_unhealthy(
    resources: tuple[ResourceState, ...], text: str, noon: datetime
) -> None:
    view = live_state_view(snapshot(*resources, health=3), noon)
    assert view.badge.text == text
    row = next(row for row in view.roots if row.id == "/1")
    assert (row.badge.text, row.text) == ("Progressing", "1 of 2 replicas are updated")


@pytest.mark.parametrize("part", ["kubernetes", "cloudrun", "ecs", "lambda"])
def test_snapshots_of_v0_are_read(part: str, noon: datetime, start: int) -> None:
    made = ApplicationLiveStateSnapshot()
    state = getattr(made, part).resources.add(id="1", name="web", kind="Service", created_at=start)
    state.health_status, state.health_description = 2, "it crashes"
    if part in ("kubernetes", "cloudrun"):
        state.api_version, state.namespace = "v1", "shop"
    (row,) = live_state_view(made, noon).roots
    assert (row.name, row.kind, row.badge.text, row.text) == (
        "web",
        "Service",
        "Unhealthy",
        "it crashes",
    )
    assert row.location == ("shop" if part in ("kubernetes", "cloudrun") else "")
    assert row.created is not None


@pytest.mark.parametrize(
    ("set_fields", "pod_fields", "expected"),
    [
        pytest.param({}, HEALTHY, "", id="nothing is wrong"),
        pytest.param(UNHEALTHY, UNHEALTHY, "", id="no reason"),
        pytest.param(UNHEALTHY, BROKEN, "Pod name of pod: CrashLoopBackOff.", id="below its owner"),
        pytest.param(BROKEN, BROKEN, "ReplicaSet name of set: CrashLoopBackOff.", id="owner first"),
        pytest.param(MOVING, HEALTHY, "", id="it gets healthy by itself"),
    ],
)
def test_the_first_unhealthy_resource_says_why(
    set_fields: dict[str, Any], pod_fields: dict[str, Any], expected: str, noon: datetime
) -> None:
    owner = resource("set", resource_type="ReplicaSet", **set_fields)
    pod = resource("pod", "set", resource_type="Pod", **pod_fields)
    assert live_state_view(snapshot(owner, pod), noon).trouble == expected


def test_a_large_tree_is_truncated(noon: datetime) -> None:
    tree = live_state_view(snapshot(*(resource(str(at)) for at in range(MAX_RESOURCES + 5))), noon)
    assert (tree.shown, tree.omitted) == (MAX_RESOURCES, 5)
    assert tree.summary == "2,005 resources, 2005 of unknown health"


SHOP = (
    resource("web", resource_type="Deployment", deploy_target="tokyo", **HEALTHY),
    resource("web-1", "web", resource_type="Pod", deploy_target="tokyo", **UNHEALTHY),
    resource("web-2", "web", resource_type="Pod", deploy_target="tokyo", **HEALTHY),
    resource("api", resource_type="Deployment", deploy_target="osaka", **HEALTHY),
)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        pytest.param({}, ["web", "web-1", "web-2", "api"], id="everything"),
        pytest.param({"target": "osaka"}, ["api"], id="one target"),
        pytest.param({"kind": "Pod"}, ["(web)", "web-1", "web-2"], id="a kind, below its owners"),
        pytest.param({"health": "unhealthy"}, ["(web)", "web-1"], id="a health"),
        pytest.param({"health": "poorly"}, ["web", "web-1", "web-2", "api"], id="no such health"),
        pytest.param({"q": "NAME OF WEB-2"}, ["(web)", "web-2"], id="a text"),
        pytest.param({"q": "nowhere"}, [], id="nothing matches"),
    ],
)
def test_filters(params: dict[str, str], expected: list[str], noon: datetime) -> None:
    query = parse_live_query(QueryParams(params))
    view = live_state_view(snapshot(*SHOP), noon, query)
    ids = [(row.id.partition("/")[2], row.is_match) for row, _ in flat(view.roots)]
    assert [id if is_match else f"({id})" for id, is_match in ids] == expected


def test_options_of_the_filters_have_counts(noon: datetime) -> None:
    view = live_state_view(snapshot(*SHOP), noon, LiveQuery(kind="Pod"))
    assert [(each.value, each.count) for each in view.kinds] == [("Deployment", 2), ("Pod", 2)]
    assert [(each.value, each.count) for each in view.healths] == [("unhealthy", 1), ("healthy", 3)]
    assert [(each.value, each.badge and each.badge.text) for each in view.targets] == [
        ("osaka", "Healthy"),
        ("tokyo", "Unhealthy"),
    ]
    only = live_state_view(snapshot(SHOP[3]), noon)
    assert only.targets == ()


def test_numbers_in_names_are_sorted_as_numbers(noon: datetime) -> None:
    names = ["web-10", "web-2", "web", "web-7d9-1", "api", "web-1", "9-web", "web-02", "1" * 5000]
    shuffled = [ResourceState(id=name, name=name) for name in names]
    rows = live_state_view(snapshot(*shuffled), noon).roots
    assert [row.name for row in rows] == [
        "9-web",
        "1" * 5000,
        "api",
        "web",
        "web-1",
        "web-02",
        "web-2",
        "web-10",
        "web-7d9-1",
    ]


def test_healthy_branches_of_a_large_tree_are_closed(noon: datetime) -> None:
    many = [resource(f"d{n}", **HEALTHY) for n in range(40)]
    many += [resource(f"p{n}", f"d{n}", **(UNHEALTHY if n == 7 else HEALTHY)) for n in range(40)]
    rows = live_state_view(snapshot(*many), noon).roots
    assert [row.id for row in rows if row.is_open] == ["/d7"]
    assert rows[0].hint == "1 below, unhealthy"
    short = worst_first(live_state_view(snapshot(*many), noon), 25)
    assert outline(short) == [("d7", 0), ("p7", 1)]
    assert short.omitted == 78


def test_a_short_version_shows_what_is_wrong_or_closed_branches(noon: datetime) -> None:
    def short(*resources: ResourceState) -> LiveStateView:
        return worst_first(live_state_view(snapshot(*resources), noon), 25)

    roots = [resource(f"d{n}", **HEALTHY) for n in range(5)]
    pods = [resource(f"p{n}", f"d{n}", **HEALTHY) for n in range(5)]
    healthy = short(*roots, *pods)
    assert (len(outline(healthy)), healthy.omitted) == (10, 0)
    assert not any(row.is_open for row in healthy.roots)
    broken = short(*roots, *pods[:4], resource("p4", "d4", **UNHEALTHY))
    assert (outline(broken), broken.omitted) == ([("d4", 0), ("p4", 1)], 8)
    assert broken.roots[0].is_open
    # A few resources are shown whole.
    few = short(*roots[:2], pods[0], resource("p1", "d1", **UNHEALTHY))
    assert (len(outline(few)), few.omitted) == (4, 0)
    assert all(row.is_open for row in few.roots)


DRIFT = """\
Diff between the defined state in Git at commit 7f3c91a and actual state in cluster:

--- Actual   (LiveState)
+++ Expected (Git)

# 1. name="name of web", kind="Deployment", namespace="", apiVersion="apps/v1"

  spec:
    #spec.replicas
-   replicas: 5
+   replicas: 2
"""


def test_the_panel_of_a_resource_has_its_fields_drift_relations_and_events(
    noon: datetime, start: int
) -> None:
    before = [resource("web", resource_type="Deployment", deploy_target="tokyo", **HEALTHY)]
    after = [resource("web", resource_type="Deployment", deploy_target="tokyo", **MOVING), SHOP[1]]
    after[0].resource_metadata["Image"] = "web:2"
    view = live_state_view(
        snapshot(*after),
        noon,
        LiveQuery(resource="tokyo/web"),
        drift=drift_view(DRIFT),
        events=resource_events(before, after, at=start),
    )
    panel = view.panel
    assert panel
    assert panel.facts == (("Deploy target", "tokyo"), ("Image", "web:2"), ("ID", "web"))
    assert [link.name for link in panel.children] == ["name of web-1"]
    assert [section.name for section in panel.drift] == ["name of web"]
    assert [(e.text, e.at and e.at.relative) for e in panel.events] == [
        ("Progressing: 1 of 2 replicas are updated", "10 min ago")
    ]
    assert panel.row.drift
    gone = live_state_view(snapshot(), noon, LiveQuery(resource="tokyo/web"))
    assert gone.panel is None
    assert gone.is_missing


ECS_DRIFT = """\
Diff between the defined state in Git at commit 7f3c91a and actual live state:

--- Actual   (LiveState)
+++ Expected (Git)

  ServiceDefinition:
    #ServiceDefinition.DesiredCount
-   DesiredCount: 2
+   DesiredCount: 3

"""


@pytest.mark.parametrize("kind", ["Service", "ECS:Service"], ids=["v0", "v1"])
def test_a_service_of_ecs_has_the_drift_of_its_definition(kind: str, noon: datetime) -> None:
    service = resource("web", resource_type=kind, **HEALTHY)
    task = resource("t", "web", resource_type=kind.replace("Service", "Task"), **HEALTHY)
    view = live_state_view(snapshot(service, task), noon, drift=drift_view(ECS_DRIFT))
    assert [row.id for row, _ in flat(view.roots) if row.drift] == ["/web"]


HIGHLIGHTS: dict[str, tuple[dict[str, str], str]] = {
    "a task set of ECS": (
        {
            "status": "PRIMARY",
            "scale": "50%",
            "taskDefinition": "arn:aws:ecs:eu-west-1:123456789012:task-definition/web:2",
            "commit": "c0ffee1",
        },
        "PRIMARY · scale 50% · web:2",
    ),
    "a service of ECS": (
        {"status": "ACTIVE", "runningCount": "6", "desiredCount": "4", "pendingCount": "0"},
        "ACTIVE · running 6 · desired 4",
    ),
    "a revision of Cloud Run": (
        {"Traffic": "10%", "Image": "gcr.io/example/shop:v2", "Namespace": "1234567890"},
        "traffic 10% · gcr.io/example/shop:v2",
    ),
    "a function of Lambda": (
        {"Traffic": "version 2 10%, version 1 90%", "Runtime": "python3.12"},
        "traffic version 2 10%, version 1 90% · python3.12",
    ),
}


@pytest.mark.parametrize(("metadata", "expected"), HIGHLIGHTS.values(), ids=HIGHLIGHTS)
def test_the_highlights_of(metadata: dict[str, str], expected: str, noon: datetime) -> None:
    view = live_state_view(snapshot(resource("a", resource_metadata=metadata)), noon)
    assert [row.highlights for row in view.roots] == [expected]


def test_equal_leaves_are_one_box_of_the_graph(noon: datetime) -> None:
    pods = [resource(f"p{n}", "set", resource_type="Pod", **HEALTHY) for n in range(9)]
    odd = resource("odd", "set", resource_type="Pod", **UNHEALTHY)
    view = live_state_view(snapshot(resource("set", **HEALTHY), odd, *pods), noon)
    graph = live_graph(view.roots)
    assert [box.label for box in graph.boxes] == [
        "name of set",
        "name of odd",
        "9 \N{MULTIPLICATION SIGN} Pod",
    ]
    assert len(graph.edges) == 2
    parent, first, last = graph.boxes
    assert parent.y == first.y < last.y
    assert first.x > parent.x + parent.width


def test_boxes_of_several_targets_say_which_is_theirs(noon: datetime) -> None:
    pods = [
        resource(target, resource_type="Pod", deploy_target=target, **HEALTHY)
        for target in ("osaka", "tokyo")
    ]
    graph = live_graph(live_state_view(snapshot(*pods), noon).roots)
    assert [box.kind for box in graph.boxes] == ["Pod · osaka", "Pod · tokyo"]


def test_the_text_of_a_box_ends_before_the_mark_of_a_difference(noon: datetime) -> None:
    web = resource(
        "of the recommendations, scored in batches",
        resource_type="CustomKindWithAnUnusuallyLongDescriptiveName",
        **HEALTHY,
    )
    (row,) = live_state_view(snapshot(web), noon).roots
    (plain,) = live_graph([row]).boxes
    (marked,) = live_graph([replace(row, drift=Badge(Tone.WAIT, "differ", "Differs"))]).boxes
    assert len(marked.label) < len(plain.label)
    assert len(marked.kind) < len(plain.kind)
    assert "differs from Git" in marked.title


@pytest.mark.parametrize(
    ("letters", "text"),
    [
        (60, "2 of 3 replicas · Differs · Deployment · shop"),
        (44, "Unhealthy · Differs · Deployment · shop"),
        (30, "Unhealthy · Deployment · shop"),
        (20, "Deployment · shop"),
    ],
)
def test_a_box_says_in_words_what_is_wrong_as_far_as_it_has_room(
    letters: int, text: str, noon: datetime
) -> None:
    (row,) = live_state_view(snapshot(resource("web", **UNHEALTHY)), noon).roots
    row = replace(
        row,
        kind="Deployment",
        location="shop",
        text="2 of 3 replicas",
        drift=Badge(Tone.WAIT, "differ", "Differs"),
    )
    assert above_name(row, letters) == text


def test_a_graph_has_a_limited_number_of_boxes(noon: datetime) -> None:
    many = [resource(f"r{n}", resource_type=f"kind {n}", **HEALTHY) for n in range(MAX_BOXES + 7)]
    graph = live_graph(live_state_view(snapshot(*many), noon).roots)
    assert (len(graph.boxes), graph.omitted) == (MAX_BOXES, 7)


def test_long_names_lose_their_middle() -> None:
    assert shortened("web", 25) == "web"
    assert shortened("recommendations-7d9f6c5b8-x2k4z", 25) == "recommendations…5b8-x2k4z"


def test_the_narrow_graph_grows_downwards_and_never_aside(noon: datetime) -> None:
    chain = [resource(f"r{n}", *([f"r{n - 1}"] if n else []), **HEALTHY) for n in range(9)]
    other = resource("other", **HEALTHY)
    graph = narrow_graph(live_state_view(snapshot(*chain, other), noon).roots)
    ids = [box.id.removeprefix("/") for box in graph.boxes]
    assert ids in (["other", *(f"r{n}" for n in range(9))], [*(f"r{n}" for n in range(9)), "other"])
    assert len(graph.edges) == 8
    heights = [box.y for box in graph.boxes]
    assert heights == sorted(set(heights))
    assert {box.x + box.width for box in graph.boxes} == {NARROW_WIDTH - graph.boxes[0].x}
    assert graph.boxes[0].x < graph.boxes[1].x < graph.boxes[2].x
    assert graph.boxes[9].x == graph.boxes[0].x
    assert graph.height == heights[-1] + graph.box_height + graph.boxes[0].y
    # Deep down there is still room for a name.
    assert all(box.width > 200 for box in graph.boxes)


def test_an_empty_graph_is_a_picture_too() -> None:
    for graph in (live_graph([]), narrow_graph([])):
        assert (graph.boxes, graph.edges) == ((), ())
        assert graph.width > 0
        assert graph.height > 0
