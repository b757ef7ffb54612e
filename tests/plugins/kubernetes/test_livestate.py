# SPDX-License-Identifier: Apache-2.0
"""The live state of an application on a cluster: its objects, their health and drift."""

import asyncio
import json
from typing import Any

import pytest

from pipecd.plugins.kubernetes import informer, watch
from pipecd.sdk import Health, LiveState, Resource, SyncStatus
from pipecd.sdk.testing import StageBench
from plugins.kubernetes.testbed import (
    Application,
    config_map,
    deployment,
    live_state,
    service,
    succeed,
    wait_for_live_state,
)
from servers.kubernetes import NEVER_READY


def kinds(state: LiveState) -> list[str]:
    return sorted(resource.kind for resource in state.resources)


def of_kind(state: LiveState, kind: str) -> Resource:
    return next(resource for resource in state.resources if resource.kind == kind)


async def test_owned_objects_are_children_of_their_owners(application: Application) -> None:
    bench = application.commit("c1", deployment(), service(), config_map())
    await succeed(bench, "K8S_SYNC")
    expected = ["ConfigMap", "Deployment", "EndpointSlice", "Pod", "Pod", "ReplicaSet", "Service"]
    state = await wait_for_live_state(
        bench,
        lambda state: (
            kinds(state) == expected
            and all(resource.health is Health.HEALTHY for resource in state.resources)
        ),
    )
    assert state.sync.status is SyncStatus.SYNCED, state.sync
    web, sets = of_kind(state, "Deployment"), of_kind(state, "ReplicaSet")
    assert (web.parents, web.target) == ((), "cluster")
    assert web.created_at is not None
    assert web.metadata["Namespace"] == application.namespace
    assert sets.parents == (web.id,)
    assert of_kind(state, "Pod").parents == (sets.id,)
    assert of_kind(state, "EndpointSlice").parents == (of_kind(state, "Service").id,)


async def test_health_follows_the_pods(application: Application) -> None:
    bench = application.commit("c1", deployment(**NEVER_READY))
    await succeed(bench, "K8S_SYNC")
    state = await wait_for_live_state(bench, lambda state: kinds(state).count("Pod") == 2)
    web = of_kind(state, "Deployment")
    assert web.health is Health.PROGRESSING
    assert "0 of 2 replicas" in web.health_text


async def test_a_changed_field_is_drift(application: Application) -> None:
    bench = application.commit("c1", deployment(), config_map(a="1"))
    await succeed(bench, "K8S_SYNC")
    assert (await live_state(bench)).sync.status is SyncStatus.SYNCED
    application.patch("apis/apps/v1", "deployments/web", {"spec": {"replicas": 5}})
    state = await wait_for_live_state(
        bench, lambda state: state.sync.status is SyncStatus.OUT_OF_SYNC
    )
    assert state.sync.summary == "There are 1 manifests not synced (0 adds, 0 deletes, 1 changes)"
    assert state.sync.details == (
        "Diff between the defined state in Git at commit c1 and actual state in cluster:\n\n"
        "--- Actual   (LiveState)\n+++ Expected (Git)\n\n"
        f'# 1. name="web", kind="Deployment", namespace="{application.namespace}", '
        'apiVersion="apps/v1"\n\n'
        "  spec:\n    #spec.replicas\n-   replicas: 5\n+   replicas: 2\n\n\n"
    )


async def test_a_later_commit_with_the_same_manifests_is_no_drift(application: Application) -> None:
    await succeed(application.commit("c1", deployment(), config_map(a="1")), "K8S_SYNC")
    later = application.commit("c2", deployment(), config_map(a="1"))
    assert (await live_state(later)).sync.status is SyncStatus.SYNCED


async def test_an_object_whose_kind_left_git_is_drift(
    application: Application,
) -> None:
    await succeed(application.commit("c1", deployment(), service()), "K8S_SYNC")
    state = await live_state(application.commit("c2", deployment(), config_map("new")))
    assert state.sync.summary == "There are 2 manifests not synced (1 adds, 1 deletes, 0 changes)"
    assert '- 1. name="web", kind="Service"' in state.sync.details


async def test_ignored_fields_and_objects_are_no_drift(application: Application) -> None:
    ignored = config_map("mine", a="1")
    ignored["metadata"]["annotations"] = {"pipecd.dev/ignore-drift-detection": "true"}
    key = f"apps/v1:Deployment:{application.namespace}:web"
    bench = application.commit("c1", deployment(), ignored)
    bench.config = json.dumps(
        {
            **(config := json.loads(bench.config)),
            "spec": {
                **config["spec"],
                "driftDetection": {"ignoreFields": [f"{key}#spec.replicas"]},
            },
        }
    )
    await succeed(bench, "K8S_SYNC")
    application.patch("apis/apps/v1", "deployments/web", {"spec": {"replicas": 5}})
    application.patch("api/v1", "configmaps/mine", {"data": {"a": "2"}})
    state = await wait_for_live_state(bench, lambda state: kinds(state).count("Pod") == 5)
    assert state.sync.status is SyncStatus.SYNCED, state.sync


async def test_values_of_config_maps_and_secrets_are_masked(application: Application) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "stringData": {"password": "hidden-in-git"},
    }
    bench = application.commit("c1", secret, config_map(a="plain-in-git"))
    await succeed(bench, "K8S_SYNC")
    application.patch("api/v1", "secrets/s", {"stringData": {"password": "hidden-live"}})
    application.patch("api/v1", "configmaps/settings", {"data": {"a": "plain-live"}})
    state = await wait_for_live_state(bench, lambda state: "2 changes" in state.sync.summary)
    assert "password: *****" in state.sync.details
    for value in ("hidden", "plain", "aGlkZGVu"):
        assert value not in state.sync.details


async def test_objects_with_annotations_but_no_labels_are_managed(
    application: Application,
) -> None:
    bench = application.commit("c1", config_map(a="1"), config_map("other"))
    annotated = config_map(a="2")
    annotated["metadata"]["annotations"] = {
        "pipecd.dev/managed-by": "piped",
        "pipecd.dev/application": bench.live_context().application_id,
    }
    root = f"/api/v1/namespaces/{application.namespace}/configmaps"
    application.kubernetes.ask("POST", root, annotated)
    application.kubernetes.ask("POST", root, config_map("other"))
    state = await live_state(bench)
    assert [resource.name for resource in state.resources] == ["settings"]
    assert state.sync.summary == "There are 2 manifests not synced (1 adds, 0 deletes, 1 changes)"


async def test_invalid_manifests_do_not_hide_live_objects(
    application: Application,
) -> None:
    await succeed(application.commit("c1", config_map(a="1")), "K8S_SYNC")
    broken = application.commit("c2")
    (broken.directory / "a.yaml").write_text("kind: [")
    state = await live_state(broken)
    assert kinds(state) == ["ConfigMap"]
    assert state.sync.status is SyncStatus.INVALID_CONFIG
    assert "a.yaml:2:1: not valid YAML" in state.sync.summary


async def test_an_object_of_an_unserved_kind_is_missing(application: Application) -> None:
    strange = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    state = await live_state(application.commit("c1", strange))
    assert state.sync.summary == "There are 1 manifests not synced (1 adds, 0 deletes, 0 changes)"


async def test_excluded_kinds_are_not_compared(application: Application) -> None:
    bench = application.commit("c1", config_map(a="1"), service())
    informer = {"excludeResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]}
    application.set_target(bench, name="partly", appStateInformer=informer)
    await succeed(bench, "K8S_SYNC")
    application.patch("api/v1", "configmaps/settings", {"data": {"a": "2"}})
    state = await wait_for_live_state(bench, lambda state: "EndpointSlice" in kinds(state))
    assert "ConfigMap" not in kinds(state)
    assert state.sync.status is SyncStatus.SYNCED, state.sync


async def test_changes_are_received_after_a_watch_ends(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_WATCH_SECONDS", 1)
    bench = application.commit("c1", config_map(a="1"))
    await succeed(bench, "K8S_SYNC")
    await live_state(bench)
    for number in range(2, 5):
        application.patch("api/v1", "configmaps/settings", {"data": {"a": str(number)}})
        await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.OUT_OF_SYNC)
        application.patch("api/v1", "configmaps/settings", {"data": {"a": "1"}})
        await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.SYNCED)


async def test_a_plan_preview_shows_the_diff(application: Application) -> None:
    first = application.commit("c1", deployment(), config_map(a="1"), service())
    second = application.commit("c2", deployment("web:v2"), config_map("new"), service())
    (shown,) = await preview(second, first)
    assert shown.target == "cluster"
    assert shown.summary == ("1 added manifests, 1 changed manifests, 1 deleted manifests")
    assert shown.details.startswith("--- Last Deploy\n+++ Head Commit\n\n- 1. ")
    assert "-           image: web:v1\n+           image: web:v2\n" in shown.details
    (same,) = await preview(first, first)
    assert (same.no_change, same.details) == (True, "")
    (brought,) = await preview(first, None)
    assert brought.summary.startswith("3 added")


async def preview(bench: StageBench, running: StageBench | None) -> Any:
    context = bench.preview_context(running=running.source if running else None)
    return await bench.plugin.preview(context)  # type: ignore[attr-defined]


async def test_a_change_notifies_piped_of_its_application(
    application: Application,
) -> None:
    unchanged = application.commit("unchanged", config_map())
    unchanged.application_id = f"{application.namespace}-unchanged"
    await succeed(unchanged, "K8S_SYNC")
    await live_state(unchanged)
    bench = application.commit("c1", deployment(), service())
    await succeed(bench, "K8S_SYNC")
    state = await wait_for_live_state(bench, lambda state: kinds(state).count("Pod") == 2)
    changed = application.host.changed_applications
    changed.clear()
    pod = next(resource for resource in state.resources if resource.kind == "Pod")
    path = f"/api/v1/namespaces/{application.namespace}"
    application.kubernetes.ask("DELETE", f"{path}/pods/{pod.name}")
    async with asyncio.timeout(5):
        await application.host.until(lambda: application.namespace in changed)
    await wait_for_live_state(bench, lambda state: pod.id not in {r.id for r in state.resources})
    assert unchanged.application_id not in changed


async def test_a_change_that_the_live_state_does_not_show_does_not_notify_piped(
    application: Application,
) -> None:
    other = application.commit("other", config_map("other", a="1"))
    other.application_id = f"{application.namespace}-other"
    bench = application.commit("c1", config_map(a="1"))
    for each in (bench, other):
        await succeed(each, "K8S_SYNC")
        await wait_for_live_state(each, lambda state: state.sync.status is SyncStatus.SYNCED)
    changed = application.host.changed_applications
    changed.clear()

    async def change(body: dict[str, Any], of_other: str) -> None:
        # Both are observed by one watch, in this order.
        application.patch("api/v1", "configmaps/settings", body)
        application.patch("api/v1", "configmaps/other", {"data": {"a": of_other}})
        async with asyncio.timeout(5):
            await application.host.until(lambda: other.application_id in changed)

    await change({"metadata": {"annotations": {"note": "mine"}}, "data": {"b": "2"}}, "2")
    assert application.namespace not in changed
    await live_state(other)
    changed.clear()
    await change({"data": {"a": "3"}}, "1")
    assert application.namespace in changed
    assert (await live_state(bench)).sync.status is SyncStatus.OUT_OF_SYNC
    changed.clear()
    application.patch("api/v1", "configmaps/settings", {"data": {"a": "1"}})
    async with asyncio.timeout(5):
        await application.host.until(lambda: application.namespace in changed)
    assert (await live_state(bench)).sync.status is SyncStatus.SYNCED


async def test_a_watch_that_is_not_used_is_stopped(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched() -> set[str]:
        names = (task.get_name() for task in asyncio.all_tasks())
        return {name.split()[1] for name in names if name.startswith("watch ")}

    # The test controls the clock: a query may take longer than a test waits.
    now = 0.0
    monkeypatch.setattr(informer, "_now", lambda: now)
    monkeypatch.setattr(informer, "_IDLE_TIMEOUT", 0.02)
    bench = application.commit("c1", config_map())
    await succeed(bench, "K8S_SYNC")
    await live_state(bench)
    left = watched()
    assert "ConfigMap" in left
    now = 0.02
    async with asyncio.timeout(20):
        while left:
            await asyncio.sleep(0.01)
            left = watched()
    assert (await live_state(bench)).sync.status is SyncStatus.SYNCED
    assert "ConfigMap" in watched()
