# SPDX-License-Identifier: Apache-2.0
"""Cached comparisons with Git equal full ones, and a change without effect is recognised."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.plugins.kubernetes.drift import sync_state
from pipecd.plugins.kubernetes.drift_cache import DriftCache
from pipecd.plugins.kubernetes.manifest import (
    APPLICATION,
    BY_PIPED,
    IGNORE_DRIFT,
    MANAGED_BY,
    Manifest,
)
from pipecd.plugins.kubernetes.watch import ObservedObject, observe
from pipecd.sdk import SyncState, SyncStatus
from pipecd.sdk.unstructured import with_value

MANAGED = {MANAGED_BY: BY_PIPED, APPLICATION: "app"}
IGNORED = {"v1:ConfigMap:prod:a": ["data.x"], "apps:Deployment:prod:b": ["spec"]}


def live(
    uid: str, name: str, fields: dict[str, Any], kind: str = "ConfigMap", **annotations: str
) -> ObservedObject:
    metadata = {"name": name, "namespace": "prod", "uid": uid}
    metadata["annotations"] = {**MANAGED, **annotations}  # type: ignore[assignment]
    return observe({**fields, "metadata": metadata}, api_version(kind), kind)


def manifest(name: str, fields: dict[str, Any], kind: str = "ConfigMap", **annotations: str) -> Any:
    metadata = {"name": name, "namespace": "prod", "annotations": annotations}
    return Manifest({**fields, "apiVersion": api_version(kind), "kind": kind, "metadata": metadata})


def api_version(kind: str) -> str:
    return "apps/v1" if kind == "Deployment" else "v1"


def full_comparison(objects: Any, manifests: Any, ignored: Any) -> SyncState:
    return sync_state(DriftCache().compare("app", objects, manifests, ignored), "commit")


NAMES = st.sampled_from("ab")
KINDS = st.sampled_from(["ConfigMap", "Secret", "Deployment"])
SCALARS = st.sampled_from(["1", "x", 1, 1.0, True, "500m", "0.5", None])
VALUES = st.dictionaries(st.sampled_from("xy"), SCALARS, max_size=2)
FIELDS = st.dictionaries(st.sampled_from(["data", "spec", "status", "limits"]), VALUES, max_size=2)
ANNOTATIONS = st.sampled_from([{}, {}, {IGNORE_DRIFT: "true"}, {"note": "1"}, {"note": "2"}])
LIVE = st.builds(
    lambda uid, name, fields, kind, more: live(uid, name, fields, kind, **more),
    *(st.sampled_from("123"), NAMES, FIELDS, KINDS, ANNOTATIONS),
)
MANIFESTS = st.lists(
    st.builds(
        lambda name, fields, kind, more: manifest(name, fields, kind, **more),
        *(NAMES, FIELDS, KINDS, ANNOTATIONS),
    ),
    max_size=4,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("changed"), LIVE),
        st.tuples(st.just("deleted"), st.sampled_from("123")),
        st.tuples(st.just("committed"), MANIFESTS),
        st.tuples(st.just("ignored"), st.sampled_from([{}, IGNORED])),
        st.tuples(st.just("read"), st.none()),
    ),
    max_size=12,
)


@given(STEPS)
def test_a_cached_comparison_equals_the_full_one_after_any_changes(
    steps: list[tuple[str, Any]],
) -> None:
    cache, objects = DriftCache(), dict[str, ObservedObject]()
    manifests: list[Manifest] = []
    ignored: dict[str, list[str]] = {}
    steps.append(("read", None))
    for step, value in steps:
        match step:
            case "changed":
                objects[value.uid] = value
            case "deleted":
                objects.pop(value, None)
            case "committed":
                manifests = value
            case "ignored":
                ignored = value
            case _:
                expected = full_comparison(list(objects.values()), manifests, ignored)
                drifts = cache.compare("app", list(objects.values()), manifests, ignored)
                assert sync_state(drifts, "commit") == expected


def edited(observed: ObservedObject, field: str, value: Any) -> ObservedObject:
    """Returns an object after an edit of one field."""
    body = observed.manifest.body
    path = ("metadata", "annotations", "note") if field == "annotations" else (field, "x")
    return observe(with_value(body, path, value), body["apiVersion"], body["kind"])


EDITS = st.tuples(st.sampled_from("123"), st.sampled_from(["annotations", "data", "spec"]), SCALARS)


@given(st.lists(LIVE, max_size=4), MANIFESTS, st.lists(st.one_of(EDITS, EDITS, LIVE), max_size=6))
def test_a_change_without_effect_leaves_the_full_comparison_as_it_was(
    listed: list[ObservedObject], manifests: list[Manifest], changes: list[Any]
) -> None:
    cache = DriftCache()
    objects = {each.uid: each for each in listed}
    cache.compare("app", list(objects.values()), manifests, IGNORED)
    reported = full_comparison(list(objects.values()), manifests, IGNORED)
    shown = {uid: replace(each, body=b"") for uid, each in objects.items()}
    for change in changes:
        if isinstance(change, tuple) and change[0] not in objects:
            continue
        observed = edited(objects[change[0]], *change[1:]) if isinstance(change, tuple) else change
        objects[observed.uid] = observed
        if cache.changes_live_state(observed):
            return
        assert full_comparison(list(objects.values()), manifests, IGNORED) == reported
        assert {uid: replace(each, body=b"") for uid, each in objects.items()} == shown


def compared_cache(*manifests: Manifest) -> DriftCache:
    cache = DriftCache()
    cache.compare("app", [live("1", "a", {"data": {"x": "1"}})], manifests, {})
    return cache


SAME = manifest("a", {"data": {"x": "1"}})


@pytest.mark.parametrize(
    ("change", "has_effect"),
    [
        pytest.param(live("1", "a", {"data": {"x": "1"}}, note="n"), False, id="an annotation"),
        pytest.param(live("1", "a", {"data": {"x": "1", "y": "2"}}), False, id="a field of others"),
        pytest.param(live("1", "a", {"data": {"x": "2"}}), True, id="a declared field"),
        pytest.param(live("2", "a", {"data": {"x": "1"}}), True, id="created anew"),
        pytest.param(
            live("1", "a", {"data": {"x": "1"}}, **{IGNORE_DRIFT: "true"}), True, id="ignored"
        ),
        pytest.param(
            replace(live("1", "a", {"data": {"x": "1"}}), owners=("o",)), True, id="its owners"
        ),
    ],
)
def test_only_a_change_with_an_effect_is_reported(change: ObservedObject, has_effect: bool) -> None:
    assert compared_cache(SAME).changes_live_state(change) is has_effect


def test_a_deleted_object_is_a_change() -> None:
    cache = compared_cache(SAME)
    observed = live("1", "a", {"data": {"x": "1"}})
    assert cache.changes_live_state(observed, is_deleted=True)
    assert cache.changes_live_state(observed), "it was created again"


def test_a_value_that_returns_to_that_of_the_last_live_state_is_no_change() -> None:
    cache = compared_cache(SAME)
    assert cache.changes_live_state(live("1", "a", {"data": {"x": "2"}}))
    assert not cache.changes_live_state(live("1", "a", {"data": {"x": "1"}}))


def test_every_change_counts_while_the_live_state_is_read() -> None:
    cache = compared_cache(SAME)
    same = live("1", "a", {"data": {"x": "1"}})
    cache.expire("app")
    assert cache.changes_live_state(same)
    cache.compare("app", [live("1", "a", {"data": {"x": "2"}})], [SAME], {})
    assert cache.changes_live_state(same)


def test_every_change_counts_if_not_all_objects_are_watched() -> None:
    cache = DriftCache()
    observed = live("1", "a", {"data": {"x": "1"}})
    cache.compare("app", [observed], [SAME], {}, is_watched=False)
    assert cache.changes_live_state(observed)


def test_a_hidden_value_is_no_change_of_an_object_that_is_out_of_sync() -> None:
    cache = DriftCache()
    cache.compare("app", [live("1", "a", {"data": {"x": "2"}})], [SAME], {})
    assert not cache.changes_live_state(live("1", "a", {"data": {"x": "3"}}))


def test_an_object_that_is_nested_too_deeply_is_a_change() -> None:
    nested: dict[str, Any] = {}
    for _ in range(600):
        nested = {"x": nested}
    assert compared_cache(SAME).changes_live_state(live("1", "a", {"data": nested}))


def test_applications_that_are_not_read_any_more_are_removed() -> None:
    cache = compared_cache(SAME)
    observed = live("1", "a", {"data": {"x": "1"}})
    cache.remove_unused()
    assert not cache.changes_live_state(observed)
    cache.remove_unused()
    assert cache.changes_live_state(observed)


def test_an_application_in_sync_has_no_drift() -> None:
    cache = compared_cache(SAME)
    drifts = cache.compare("app", [live("1", "a", {"data": {"x": "1"}})], [SAME], {})
    assert sync_state(drifts, "commit").status is SyncStatus.SYNCED
