# SPDX-License-Identifier: Apache-2.0
"""Versions, strategy, live state, drift and plan preview."""

from typing import Any

import pytest

from pipecd.plugins.cloudrun.conditions import health
from pipecd.plugins.cloudrun.manifest import ServiceManifest
from pipecd.sdk import Health, SyncStatus, SyncStrategy
from plugins.cloudrun.testbed import Application, manifest
from servers.cloud_run import CloudRun

OLD, NEW = "1111111aaaa", "2222222bbbb"
RUNNING, CANARY = "web-v10-1111111", "web-v20-2222222"
V2 = "gcr.io/shop/web:v2.0"


@pytest.mark.parametrize(
    ("image", "revision"),
    [
        ("gcr.io/shop/web:v1.0.2", "web-v102-1111111"),
        ("gcr.io/shop/web", "web--1111111"),
        ("registry:5000/web:v1", "web-v1-1111111"),
        ("gcr.io/shop/web:RC_1", "web-rc-1-1111111"),
        (f"gcr.io/shop/web@sha256:{'ab' * 32}", "web-abababababab-1111111"),
        (f"gcr.io/shop/web:{'x' * 128}", f"web-{'x' * 51}-1111111"),
    ],
)
def test_the_name_of_a_revision(image: str, revision: str) -> None:
    name = ServiceManifest("web", manifest(image)).revision(OLD)
    assert name == revision
    assert len(name) <= 63


async def test_versions_are_the_images(application: Application) -> None:
    plan = application.commit(OLD).plan_context()
    [version] = await application.plugin.versions(plan)
    assert (version.version, version.name, version.url) == ("v1.0", "web", "gcr.io/shop/web:v1.0")


async def test_a_change_uses_the_pipeline_and_says_why(application: Application) -> None:
    old, new = application.commit(OLD), application.commit(NEW, manifest(V2))
    chosen = await application.plugin.strategy(new.plan_context(running=old.source))
    assert chosen is not None
    assert chosen.strategy is SyncStrategy.PIPELINE
    assert chosen.summary == "Sync with pipeline to update image from v1.0 to v2.0"
    broken = application.commit("3333333", "nothing")
    chosen = await application.plugin.strategy(new.plan_context(running=broken.source))
    assert chosen is not None
    assert chosen.summary == "Sync with the specified pipeline"


async def test_the_live_state_is_the_service_with_its_serving_revisions(
    application: Application, cloud_run: CloudRun
) -> None:
    new = application.commit(NEW, manifest(V2), running=await application.deploy(OLD))
    await new.run("CLOUDRUN_PROMOTE", {"percent": 20})
    live = await application.plugin.live_state(new.live_context())
    service, *revisions = live.resources
    assert (service.kind, service.name, service.health) == ("Service", "web", Health.HEALTHY)
    assert service.created_at is not None
    assert service.metadata["API Version"] == "serving.knative.dev/v1"
    assert {(e.name, e.metadata["Traffic"], e.health, e.parents) for e in revisions} == {
        (CANARY, "20%", Health.HEALTHY, (service.id,)),
        (RUNNING, "80%", Health.HEALTHY, (service.id,)),
    }
    assert {e.target for e in live.resources} == {"dev"}
    assert live.sync.status is SyncStatus.SYNCED


async def test_a_revision_that_failed_is_shown_beside_the_serving_one(
    application: Application, cloud_run: CloudRun
) -> None:
    await application.deploy(OLD)
    cloud_run.broken_images[V2] = "it crashes"
    new = application.commit(NEW, manifest(V2))
    await new.run("CLOUDRUN_SYNC")
    live = await application.plugin.live_state(new.live_context())
    found = {each.name: (each.health, each.health_text) for each in live.resources}
    assert found[RUNNING] == (Health.HEALTHY, "")
    assert found[CANARY] == (Health.UNHEALTHY, "it crashes")
    assert found["web"][0] is Health.UNHEALTHY


async def test_many_applications_are_read_by_few_requests(
    application: Application, cloud_run: CloudRun
) -> None:
    for number in range(12):
        service = manifest()
        service["metadata"] = {"name": f"web-{number}"}
        bench = application.commit(f"{number:07}", service)
        bench.application_id = f"application-{number}"
        await bench.run("CLOUDRUN_SYNC")
    cloud_run.calls.clear()
    for number in range(12):
        bench = application.commit(f"{number:07}")
        bench.application_id = f"application-{number}"
        live = await application.plugin.live_state(bench.live_context())
        assert [each.name for each in live.resources] == [
            f"web-{number}",
            f"web-{number}-v10-{number:07}",
        ]
    assert cloud_run.calls == ["GET shop/services", "GET shop/revisions"]


async def test_a_service_that_is_not_deployed_is_out_of_sync(application: Application) -> None:
    live = await application.plugin.live_state(application.commit(OLD).live_context())
    assert live.resources == []
    assert live.sync.status is SyncStatus.OUT_OF_SYNC
    assert live.sync.summary.startswith("Service web is not deployed")


async def test_a_manifest_that_cannot_be_read_still_shows_the_service(
    application: Application,
) -> None:
    await application.deploy(OLD)
    live = await application.plugin.live_state(application.commit(NEW, "x: [").live_context())
    assert [each.name for each in live.resources] == ["web", RUNNING]
    assert live.sync.status is SyncStatus.INVALID_CONFIG


async def test_drift_shows_what_others_changed_without_values_of_variables(
    application: Application, cloud_run: CloudRun
) -> None:
    service = manifest(env=[{"name": "KEY", "value": "new secret"}])
    service["metadata"]["namespace"] = "shop"
    service["spec"]["traffic"] = [{"latestRevision": True, "percent": 100}]
    bench = await application.deploy(OLD, service)
    live = await application.plugin.live_state(bench.live_context())
    assert live.sync.status is SyncStatus.SYNCED

    def change(body: dict[str, Any]) -> None:
        [container] = body["spec"]["template"]["spec"]["containers"]
        container["env"][0]["value"] = "old secret"
        body["spec"]["template"]["spec"]["containerConcurrency"] = 5

    cloud_run.edit("web", change)
    await bench.run("CLOUDRUN_ROLLBACK")
    live = await application.plugin.live_state(bench.live_context())
    assert live.sync.status is SyncStatus.OUT_OF_SYNC
    assert live.sync.summary == "The service manifest is not synced"
    assert live.sync.details == (
        "Diff between the defined state in Git at commit 1111111 and actual live state:\n\n"
        "--- Actual   (LiveState)\n+++ Expected (Git)\n\n"
        "  spec:\n    template:\n      spec:\n"
        "        #spec.template.spec.containerConcurrency\n"
        "-       containerConcurrency: 5\n+       containerConcurrency: 80\n\n"
        "        containers:\n          - env:\n              -\n"
        "                #spec.template.spec.containers.0.env.0.value\n"
        "-               value: *****\n+               value: *****\n\n\n"
    )
    application.spec = {
        "driftDetection": {
            "ignoreFields": [
                "serving.knative.dev/v1:Service:shop:web#spec.template.spec.containerConcurrency",
                "serving.knative.dev/v1:Service:shop:web#spec.template.spec.containers.0.env",
            ]
        }
    }
    ignoring = application.commit(OLD, service)
    live = await application.plugin.live_state(ignoring.live_context())
    assert live.sync.status is SyncStatus.SYNCED


async def test_a_preview_compares_manifests(application: Application) -> None:
    old, new = application.commit(OLD), application.commit(NEW, manifest(V2))
    [same] = await application.plugin.preview(old.preview_context(running=old.source))
    assert (same.no_change, same.summary) == (True, "No changes were detected")
    [changed] = await application.plugin.preview(new.preview_context(running=old.source))
    assert (changed.target, changed.summary) == ("dev", "1 change was detected")
    assert (
        "-           image: gcr.io/shop/web:v1.0\n+           image: gcr.io/shop/web:v2.0"
        in changed.details
    )
    [first] = await application.plugin.preview(new.preview_context())
    assert first.summary == "Service web is created"
    assert "gcr.io/shop/web:v2.0" in first.details


CONDITIONS: list[tuple[str, dict[str, tuple[str, ...]] | None, Health, str]] = [
    ("Service", None, Health.UNKNOWN, "has not reported a status"),
    ("Service", {"Ready": ("True",)}, Health.UNKNOWN, "the condition ConfigurationsReady"),
    (
        "Service",
        {
            "Ready": ("True",),
            "ConfigurationsReady": ("True",),
            "RoutesReady": ("True",),
            "Other": ("False",),
        },
        Health.HEALTHY,
        "",
    ),
    (
        "Service",
        {
            "Ready": ("False", "a"),
            "RoutesReady": ("False", "b"),
            "ConfigurationsReady": ("Unknown", "c"),
        },
        Health.UNHEALTHY,
        "a; b",
    ),
    ("Service", {"Ready": ("Unknown", "c")}, Health.PROGRESSING, "c"),
    (
        "Revision",
        {
            "Ready": ("True",),
            "ContainerHealthy": ("True",),
            "ResourcesAvailable": ("True",),
            "Active": ("False", "Retired", "Info"),
        },
        Health.HEALTHY,
        "",
    ),
    (
        "Revision",
        {
            "Ready": ("True",),
            "ContainerHealthy": ("True",),
            "ResourcesAvailable": ("True",),
            "Active": ("False", "idle"),
        },
        Health.UNHEALTHY,
        "idle",
    ),
]


@pytest.mark.parametrize(("kind", "conditions", "expected", "text"), CONDITIONS)
def test_health(
    kind: str, conditions: dict[str, tuple[str, ...]] | None, expected: Health, text: str
) -> None:
    listed = [
        {"type": name, **dict(zip(("status", "message", "severity"), given, strict=False))}
        for name, given in (conditions or {}).items()
    ]
    body = {"status": {"conditions": listed}} if conditions is not None else {}
    found, reason = health(body, kind)
    assert found is expected
    assert text in reason
