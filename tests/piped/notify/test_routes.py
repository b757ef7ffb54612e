# SPDX-License-Identifier: Apache-2.0
"""Routes match the events they select and none that they ignore."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.piped_notifications import RouteSpec
from pipecd.piped.notify.event import EventSubject, EventType
from pipecd.piped.notify.notifier import route_matches
from pipecd.proto.model import notification_pb2 as pb

FAILED = EventType.DEPLOYMENT_FAILED
STAGE = EventType.STAGE_STARTED
PIPED = EventType.PIPED_STARTED
CART = EventSubject("shop", "a1", "cart", {"env": "prod", "team": "x", "empty": ""})
ITSELF = EventSubject("shop")


def route(**fields: Any) -> RouteSpec:
    return RouteSpec(name="r", receiver="x", **fields)


@pytest.mark.parametrize(
    ("spec", "type_", "subject", "expected"),
    [
        pytest.param(route(), FAILED, CART, True, id="a route without settings matches every event"),
        pytest.param(route(events=("DEPLOYMENT_FAILED",)), FAILED, CART, True, id="a selected event"),
        pytest.param(route(events=("STAGE_FAILED",)), FAILED, CART, False, id="another event"),
        pytest.param(route(events=("EVENT_DEPLOYMENT_FAILED",)), FAILED, CART, False, id="names come without the prefix of the wire"),
        pytest.param(route(groups=("DEPLOYMENT",)), FAILED, CART, True, id="a selected group"),
        pytest.param(route(groups=("DEPLOYMENT",)), STAGE, CART, False, id="a stage is no deployment"),
        pytest.param(route(groups=("STAGE", "PIPED")), PIPED, ITSELF, True, id="one of several groups"),
        pytest.param(route(apps=("cart",)), FAILED, CART, True, id="a selected application"),
        pytest.param(route(apps=("web",)), FAILED, CART, False, id="another application"),
        pytest.param(route(apps=("web",)), PIPED, ITSELF, True, id="piped has no application and matches"),
        pytest.param(route(labels={"env": "prod"}), FAILED, CART, True, id="a selected label"),
        pytest.param(route(labels={"env": "prod", "team": "x"}), FAILED, CART, True, id="all selected labels"),
        pytest.param(route(labels={"env": "prod", "team": "y"}), FAILED, CART, False, id="one of the labels differs"),
        pytest.param(route(labels={"zone": "a"}), FAILED, CART, False, id="a label that the application lacks"),
        pytest.param(route(labels={"zone": "a"}), PIPED, ITSELF, True, id="piped has no labels and matches"),
        pytest.param(route(ignore_events=("DEPLOYMENT_FAILED",), events=("DEPLOYMENT_FAILED",)), FAILED, CART, False, id="an ignored event takes precedence over a selected one"),
        pytest.param(route(ignore_groups=("DEPLOYMENT",), events=("DEPLOYMENT_FAILED",)), FAILED, CART, False, id="and so does an ignored group"),
        pytest.param(route(ignore_apps=("cart",)), FAILED, CART, False, id="an ignored application"),
        pytest.param(route(ignore_labels={"env": "prod", "team": "y"}), FAILED, CART, False, id="one ignored label suffices"),
        pytest.param(route(ignore_labels={"env": "dev"}), FAILED, CART, True, id="the value of an ignored label counts"),
        pytest.param(route(ignore_labels={"zone": "a"}), FAILED, CART, True, id="a label with an empty value is not ignored by others"),
        pytest.param(route(ignore_apps=("",), ignore_labels={"a": ""}), PIPED, ITSELF, True, id="settings for applications do not ignore piped"),
    ],
)  # fmt: skip
def test_route_matches(
    spec: RouteSpec, type_: EventType, subject: EventSubject, expected: bool
) -> None:
    assert route_matches(spec, type_, subject) is expected


def test_the_groups_equal_those_of_the_wire() -> None:
    groups = {name.removeprefix("EVENT_") for name, _ in pb.NotificationEventGroup.items()} - {
        "NONE"
    }
    assert {kind.group for kind in EventType} == groups
    assert all(kind.name.startswith(kind.group.partition("_")[0]) for kind in EventType)


NAMES = st.sampled_from(["a", "b", "c"])
LISTS = st.lists(NAMES, max_size=2).map(tuple)
MAPS = st.dictionaries(NAMES, NAMES, max_size=2)
KINDS = st.sampled_from(list(EventType))
EVENTS = st.lists(KINDS.map(lambda kind: kind.name), max_size=3).map(tuple)
GROUPS = st.lists(KINDS.map(lambda kind: kind.group), max_size=2).map(tuple)
ROUTES = st.builds(
    RouteSpec, events=EVENTS, ignore_events=EVENTS, groups=GROUPS, ignore_groups=GROUPS,
    apps=LISTS, ignore_apps=LISTS, labels=MAPS, ignore_labels=MAPS,
)  # fmt: skip
SUBJECTS = st.builds(EventSubject, st.just("p"), st.just("id"), NAMES, MAPS)


@given(ROUTES, KINDS, SUBJECTS)
def test_matching_events_are_selected_and_not_ignored(
    spec: RouteSpec, type_: EventType, subject: EventSubject
) -> None:
    if route_matches(spec, type_, subject):
        labels = dict(subject.labels or {})
        assert type_.name not in spec.ignore_events
        assert type_.group not in spec.ignore_groups
        assert subject.application not in spec.ignore_apps
        assert not any(labels.get(key) == value for key, value in spec.ignore_labels.items())
        assert not spec.apps or subject.application in spec.apps
        assert all(labels.get(key) == value for key, value in spec.labels.items())
        assert not spec.events or type_.name in spec.events
        assert not spec.groups or type_.group in spec.groups


@given(ROUTES, KINDS, SUBJECTS, NAMES, NAMES)
def test_ignore_settings_only_narrow_a_route(
    spec: RouteSpec, type_: EventType, subject: EventSubject, key: str, value: str
) -> None:
    stricter = spec.model_copy(update={"ignore_labels": {**spec.ignore_labels, key: value}})
    if key not in spec.ignore_labels:
        assert route_matches(spec, type_, subject) or not route_matches(stricter, type_, subject)
