# SPDX-License-Identifier: Apache-2.0
"""Traffic stages and their rollback on a cluster."""

from typing import Any

import pytest

from pipecd.sdk import DISPLAY_KEY, RequestedStage, StageStatus, SyncStatus
from pipecd.sdk.testing import StageBench
from plugins.kubernetes.testbed import (
    VARIANT,
    Application,
    deployment,
    image,
    service,
    succeed,
    wait_for_live_state,
)

PRIMARY = {VARIANT: "primary"}
ISTIO, GATEWAY = "networking.istio.io/v1", "gateway.networking.k8s.io/v1"
BLUE_GREEN = (
    "K8S_CANARY_ROLLOUT",
    "K8S_TRAFFIC_ROUTING",
    "K8S_PRIMARY_ROLLOUT",
    "K8S_TRAFFIC_ROUTING",
    "K8S_CANARY_CLEAN",
)


def virtual_service(*routes: dict[str, Any]) -> dict[str, Any]:
    spec = {"hosts": ["web.example.com"], "http": list(routes)}
    return {
        "apiVersion": ISTIO,
        "kind": "VirtualService",
        "metadata": {"name": "web"},
        "spec": spec,
    }


def route(name: str, *destinations: tuple[str, int]) -> dict[str, Any]:
    """Returns a route to hosts; the subset follows a slash."""
    listed: list[dict[str, Any]] = []
    for text, weight in destinations:
        host, _, subset = text.partition("/")
        destination = {"host": host, **({"subset": subset} if subset else {})}
        listed.append({"destination": destination, "weight": weight})
    return {"name": name, "route": listed}


def http_route(*backends: dict[str, Any], name: str = "web") -> dict[str, Any]:
    spec = {"parentRefs": [{"name": "gateway"}], "rules": [{"backendRefs": list(backends)}]}
    return {
        "apiVersion": GATEWAY,
        "kind": "HTTPRoute",
        "metadata": {"name": name},
        "spec": spec,
    }


def istio_weights(application: Application) -> dict[str, dict[str, int]]:
    live = application.live("virtualservices", f"apis/{ISTIO}")["web"]["spec"]["http"]
    return {
        each["name"]: {
            f"{d['destination']['host']}/{d['destination'].get('subset', '')}": d["weight"]
            for d in each["route"]
        }
        for each in live
    }


def gateway_weights(application: Application, name: str = "web") -> dict[str, int]:
    rules = application.live("httproutes", f"apis/{GATEWAY}")[name]["spec"]["rules"]
    return {backend["name"]: backend["weight"] for backend in rules[0]["backendRefs"]}


def selected(application: Application) -> str:
    return application.live("services", "api/v1")["web"]["spec"]["selector"][VARIANT]


async def wait_until_synced(bench: StageBench) -> None:
    await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.SYNCED)


async def test_a_primary_rollout_does_not_apply_the_routing_manifest_before_a_traffic_stage(
    application: Application,
) -> None:
    first = application.commit("c1", deployment(**PRIMARY), service(**PRIMARY))
    await succeed(first, "K8S_SYNC")
    second = application.commit(
        "c2",
        deployment("web:v2", **PRIMARY),
        service(**PRIMARY),
        running=first,
        pipeline=BLUE_GREEN,
    )
    await succeed(second, "K8S_CANARY_ROLLOUT", {"replicas": "100%"}, index=0)
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"all": "canary"}, index=1)
    await succeed(second, "K8S_PRIMARY_ROLLOUT", {"prune": True}, index=2)
    assert selected(application) == "canary"
    assert image(application.live("deployments")["web"]) == "web:v2"
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"all": "primary"}, index=3)
    assert selected(application) == "primary"
    await succeed(second, "K8S_CANARY_CLEAN", index=4)
    await wait_until_synced(second)


async def test_a_primary_rollout_after_the_last_traffic_stage_applies_the_routing_manifest(
    application: Application,
) -> None:
    manifests = (deployment(**PRIMARY), service(**PRIMARY))
    bench = application.commit("c1", *manifests, pipeline=(*BLUE_GREEN[:3],))
    await succeed(bench, "K8S_CANARY_ROLLOUT", index=0)
    await succeed(bench, "K8S_TRAFFIC_ROUTING", {"all": "canary"}, index=1)
    await succeed(bench, "K8S_PRIMARY_ROLLOUT", index=2)
    assert selected(application) == "primary"


async def test_a_workload_without_the_variant_label_is_refused(application: Application) -> None:
    manifests = (deployment(), service(**PRIMARY))
    bench = application.commit("c1", *manifests, pipeline=BLUE_GREEN)
    result = await bench.run("K8S_PRIMARY_ROLLOUT", index=2)
    assert result.status is StageStatus.FAILURE
    assert f"Deployment web in {application.namespace} lacks {VARIANT}: primary" in result.message
    assert "set addVariantLabelToSelector: true" in result.message
    assert not application.live("deployments")
    await succeed(bench, "K8S_PRIMARY_ROLLOUT", {"addVariantLabelToSelector": True}, index=2)
    labels = application.live("deployments")["web"]["spec"]["selector"]["matchLabels"]
    assert labels == {"app": "web", VARIANT: "primary"}


async def test_the_variant_label_is_optional_without_a_traffic_stage(
    application: Application,
) -> None:
    bench = application.commit("c1", deployment(), service(), pipeline=("K8S_PRIMARY_ROLLOUT",))
    await succeed(bench, "K8S_PRIMARY_ROLLOUT")


@pytest.mark.usefixtures("routes")
async def test_istio_splits_the_editable_routes_and_a_rollback_restores_them(
    application: Application,
) -> None:
    routing: dict[str, Any] = {
        "service": {"name": "web"},
        "trafficRouting": {
            "method": "istio",
            "istio": {"host": "web", "editableRoutes": ["open"]},
        },
    }
    git = virtual_service(
        route("open", ("web/primary", 80), ("legacy", 20)), route("closed", ("web", 100))
    )
    as_in_git = {"open": {"web/primary": 80, "legacy/": 20}, "closed": {"web/": 100}}
    first = application.commit("c1", deployment(), service(), git, **routing)
    await succeed(first, "K8S_SYNC")
    manifests = (deployment("web:v2"), service(), git)
    second = application.commit("c2", *manifests, running=first, pipeline=BLUE_GREEN, **routing)
    await succeed(second, "K8S_CANARY_ROLLOUT")
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"primary": 75, "canary": 25}, index=1)
    split = {"web/primary": 60, "web/canary": 20, "legacy/": 20}
    assert istio_weights(application) == {**as_in_git, "open": split}
    await succeed(second, "K8S_PRIMARY_ROLLOUT", {"prune": True}, index=2)
    assert istio_weights(application)["open"] == split
    await succeed(second, "K8S_ROLLBACK")
    assert istio_weights(application) == as_in_git
    assert {n: image(d) for n, d in application.live("deployments").items()} == {"web": "web:v1"}
    await wait_until_synced(first)
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"all": "primary"}, index=3)
    assert istio_weights(application) == as_in_git
    assert second.host.stage_metadata["canary-percentage"] == "0"


@pytest.mark.usefixtures("routes")
async def test_an_http_route_is_split_and_a_rollback_restores_it(
    application: Application,
) -> None:
    routing: dict[str, Any] = {"service": {"name": "web"}, "trafficRouting": {"method": "gateway"}}
    git = http_route({"name": "web", "port": 80})
    first = application.commit("c1", deployment(), service(), git, **routing)
    await succeed(first, "K8S_SYNC")
    manifests = (deployment("web:v2"), service(), git)
    second = application.commit("c2", *manifests, running=first, pipeline=BLUE_GREEN, **routing)
    early = await second.run("K8S_TRAFFIC_ROUTING", {"primary": 90, "canary": 10}, index=1)
    assert early.status is StageStatus.FAILURE
    assert "canary has no Service that could get traffic; set createService: true" in early.message
    options = {"createService": True, "suffix": "next"}
    await succeed(second, "K8S_CANARY_ROLLOUT", options)
    await succeed(second, "K8S_TRAFFIC_ROUTING", {"primary": 90, "canary": 10}, index=1)
    assert gateway_weights(application) == {"web": 90, "web-next": 10}
    await succeed(second, "K8S_PRIMARY_ROLLOUT", index=2)
    assert gateway_weights(application) == {"web": 90, "web-next": 10}
    await succeed(second, "K8S_ROLLBACK")
    assert gateway_weights(application) == {"web": 1}
    assert set(application.live("services", "api/v1")) == {"web"}
    await wait_until_synced(first)


@pytest.mark.usefixtures("routes")
async def test_every_http_route_to_the_service_is_split(application: Application) -> None:
    routing: dict[str, Any] = {"trafficRouting": {"method": "gateway"}}
    matching = [http_route({"name": "web", "port": 80}, name=name) for name in ("plain", "secure")]
    unrelated = http_route({"name": "other", "port": 80}, name="unrelated")
    manifests = (deployment(), service(), unrelated, *matching)
    bench = application.commit("c1", *manifests, pipeline=BLUE_GREEN, **routing)
    await succeed(bench, "K8S_CANARY_ROLLOUT", {"createService": True})
    await succeed(bench, "K8S_PRIMARY_ROLLOUT", index=2)
    assert set(application.live("httproutes", f"apis/{GATEWAY}")) == {"unrelated"}
    await succeed(bench, "K8S_TRAFFIC_ROUTING", {"canary": 40}, index=1)
    split = {"web": 60, "web-canary": 40}
    assert gateway_weights(application, "plain") == split
    assert gateway_weights(application, "secure") == split
    assert gateway_weights(application, "unrelated") == {"other": 1}


async def test_a_planned_traffic_stage_displays_its_split(application: Application) -> None:
    options = b'{"primary": 70, "canary": 30}'
    requested = RequestedStage("K8S_TRAFFIC_ROUTING", 1, "", options)
    (planned,) = await application.plugin.plan_pipeline([requested], rollback=False)
    assert planned.metadata == {DISPLAY_KEY: "Primary: 70%, Canary: 30%, Baseline: 0%"}


@pytest.mark.usefixtures("routes")
@pytest.mark.parametrize(
    ("manifests", "routing", "message"),
    [
        pytest.param(
            [],
            {"trafficRouting": {"method": "istio", "istio": {"host": "web"}}},
            "there is no VirtualService to route the traffic with",
            id="no VirtualService",
        ),
        pytest.param(
            [virtual_service(route("a", ("web", 100)))],
            {"trafficRouting": {"method": "istio"}},
            "no host is named",
            id="no host",
        ),
        pytest.param(
            [http_route({"name": "other", "port": 80})],
            {"trafficRouting": {"method": "gateway"}},
            "has no rule with the Service web",
            id="an HTTPRoute to another Service",
        ),
        pytest.param(
            [],
            {"trafficRouting": {"method": "smi"}},
            "cannot be routed by 'smi'",
            id="an unknown method",
        ),
    ],
)
async def test_a_traffic_stage_fails_with_the_reason(
    application: Application, manifests: Any, routing: Any, message: str
) -> None:
    bench = application.commit("c1", deployment(), service(), *manifests, **routing)
    result = await bench.run("K8S_TRAFFIC_ROUTING", {"all": "primary"})
    assert result.status is StageStatus.FAILURE
    assert message in result.message
