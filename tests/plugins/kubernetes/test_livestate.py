# SPDX-License-Identifier: Apache-2.0
"""What runs of an application is seen on a real cluster, with its health and its drift."""

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
    look,
    service,
    succeed,
    until,
)
from servers.kubernetes import NEVER_READY


def kinds(state: LiveState) -> list[str]:
    return sorted(resource.kind for resource in state.resources)


def of_kind(state: LiveState, kind: str) -> Resource:
    return next(resource for resource in state.resources if resource.kind == kind)


async def test_everything_that_runs_is_drawn_below_its_owner(application: Application) -> None:
    bench = application.commit("c1", deployment(), service(), config_map())
    await succeed(bench, "K8S_SYNC")
    expected = ["ConfigMap", "Deployment", "EndpointSlice", "Pod", "Pod", "ReplicaSet", "Service"]
    state = await until(
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
    state = await until(bench, lambda state: kinds(state).count("Pod") == 2)
    web = of_kind(state, "Deployment")
    assert web.health is Health.UNHEALTHY
    assert "0 of 2 replicas" in web.health_text


async def test_drift_is_exactly_what_somebody_changed(application: Application) -> None:
    bench = application.commit("c1", deployment(), config_map(a="1"))
    await succeed(bench, "K8S_SYNC")
    assert (await look(bench)).sync.status is SyncStatus.SYNCED
    application.patch("apis/apps/v1", "deployments/web", {"spec": {"replicas": 5}})
    state = await until(bench, lambda state: state.sync.status is SyncStatus.OUT_OF_SYNC)
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
    assert (await look(later)).sync.status is SyncStatus.SYNCED


async def test_what_git_lost_is_seen_even_if_nothing_of_its_kind_is_left(
    application: Application,
) -> None:
    await succeed(application.commit("c1", deployment(), service()), "K8S_SYNC")
    state = await look(application.commit("c2", deployment(), config_map("new")))
    assert state.sync.summary == "There are 2 manifests not synced (1 adds, 1 deletes, 0 changes)"
    assert '- 1. name="web", kind="Service"' in state.sync.details


async def test_what_users_want_ignored_is_ignored(application: Application) -> None:
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
    state = await until(bench, lambda state: kinds(state).count("Pod") == 5)
    assert state.sync.status is SyncStatus.SYNCED, state.sync


async def test_values_of_configuration_are_never_shown(application: Application) -> None:
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
    state = await until(bench, lambda state: "2 changes" in state.sync.summary)
    assert "password: *****" in state.sync.details
    for value in ("hidden", "plain", "aGlkZGVu"):
        assert value not in state.sync.details


async def test_objects_that_upstream_only_annotated_are_recognised(
    application: Application,
) -> None:
    bench = application.commit("c1", config_map(a="1"), config_map("other"))
    theirs = config_map(a="2")
    theirs["metadata"]["annotations"] = {
        "pipecd.dev/managed-by": "piped",
        "pipecd.dev/application": bench.live_context().application_id,
    }
    root = f"/api/v1/namespaces/{application.namespace}/configmaps"
    application.kubernetes.ask("POST", root, theirs)
    application.kubernetes.ask("POST", root, config_map("other"))
    state = await look(bench)
    assert [resource.name for resource in state.resources] == ["settings"]
    assert state.sync.summary == "There are 2 manifests not synced (1 adds, 0 deletes, 1 changes)"


async def test_manifests_that_cannot_be_read_hide_nothing_that_runs(
    application: Application,
) -> None:
    await succeed(application.commit("c1", config_map(a="1")), "K8S_SYNC")
    broken = application.commit("c2")
    (broken.directory / "a.yaml").write_text("kind: [")
    state = await look(broken)
    assert kinds(state) == ["ConfigMap"]
    assert state.sync.status is SyncStatus.INVALID_CONFIG
    assert "a.yaml:2:1: not valid YAML" in state.sync.summary


async def test_a_kind_that_the_cluster_does_not_know_is_missing(application: Application) -> None:
    strange = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}}
    state = await look(application.commit("c1", strange))
    assert state.sync.summary == "There are 1 manifests not synced (1 adds, 0 deletes, 0 changes)"


async def test_kinds_that_a_target_excludes_are_not_compared(application: Application) -> None:
    bench = application.commit("c1", config_map(a="1"), service())
    informer = {"excludeResources": [{"apiVersion": "v1", "kind": "ConfigMap"}]}
    application.aim(bench, name="partly", appStateInformer=informer)
    await succeed(bench, "K8S_SYNC")
    application.patch("api/v1", "configmaps/settings", {"data": {"a": "2"}})
    state = await until(bench, lambda state: "EndpointSlice" in kinds(state))
    assert "ConfigMap" not in kinds(state)
    assert state.sync.status is SyncStatus.SYNCED, state.sync


async def test_changes_are_seen_across_watches_that_end(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_WATCH_SECONDS", 1)
    bench = application.commit("c1", config_map(a="1"))
    await succeed(bench, "K8S_SYNC")
    await look(bench)
    for number in range(2, 5):
        application.patch("api/v1", "configmaps/settings", {"data": {"a": str(number)}})
        await until(bench, lambda state: state.sync.status is SyncStatus.OUT_OF_SYNC)
        application.patch("api/v1", "configmaps/settings", {"data": {"a": "1"}})
        await until(bench, lambda state: state.sync.status is SyncStatus.SYNCED)


async def test_a_preview_shows_what_a_change_would_do(application: Application) -> None:
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


async def test_a_change_is_told_to_piped_for_the_application_that_it_concerns(
    application: Application,
) -> None:
    quiet = application.commit("quiet", config_map())
    quiet.application_id = f"{application.namespace}-quiet"
    await succeed(quiet, "K8S_SYNC")
    await look(quiet)
    bench = application.commit("c1", deployment(), service())
    await succeed(bench, "K8S_SYNC")
    state = await until(bench, lambda state: kinds(state).count("Pod") == 2)
    told = application.host.changed_applications
    told.clear()
    pod = next(resource for resource in state.resources if resource.kind == "Pod")
    place = f"/api/v1/namespaces/{application.namespace}"
    application.kubernetes.ask("DELETE", f"{place}/pods/{pod.name}")
    async with asyncio.timeout(5):
        await application.host.until(lambda: application.namespace in told)
    await until(bench, lambda state: pod.id not in {r.id for r in state.resources})
    assert quiet.application_id not in told


async def test_a_kind_that_nobody_asks_for_is_watched_no_more(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watched() -> set[str]:
        names = (task.get_name() for task in asyncio.all_tasks())
        return {name.split()[1] for name in names if name.startswith("watch ")}

    # Time passes when the test says so: a look may take longer than any time that a test waits.
    now = 0.0
    monkeypatch.setattr(informer, "_now", lambda: now)
    monkeypatch.setattr(informer, "_IDLE_TIMEOUT", 0.02)
    bench = application.commit("c1", config_map())
    await succeed(bench, "K8S_SYNC")
    await look(bench)
    left = watched()
    assert "ConfigMap" in left
    now = 0.02
    async with asyncio.timeout(20):
        while left:
            await asyncio.sleep(0.01)
            left = watched()
    assert (await look(bench)).sync.status is SyncStatus.SYNCED
    assert "ConfigMap" in watched()
