# SPDX-License-Identifier: Apache-2.0
"""Objects are routed to clusters by `resourceRoutes`."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.cluster_target import resolve_routes
from pipecd.plugins.kubernetes.config import ResourceRoute
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.sdk import DeployTarget, StageStatus, SyncStatus, UserMistake
from plugins.kubernetes.testbed import (
    Application,
    config_map,
    deployment,
    image,
    succeed,
    wait_for_live_state,
)
from servers.kubernetes import Kubernetes

TARGETS = (
    DeployTarget("own", {}, {}),
    DeployTarget("a", {"zone": "eu", "for": "config"}, {}),
    DeployTarget("b", {"zone": "eu"}, {}),
)


def object_of(kind: str, name: str) -> Manifest:
    return Manifest({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}})


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        pytest.param([], {"own"}, id="nothing is routed"),
        pytest.param([{"provider": {"name": "a"}}], {"a"}, id="everything is routed"),
        pytest.param(
            [{"match": {"kind": "Secret"}, "provider": {"name": "a"}}], {"own"}, id="another kind"
        ),
        pytest.param(
            [{"match": {"name": "x"}, "provider": {"name": "a"}}], {"own"}, id="another name"
        ),
        pytest.param(
            [
                {"match": {"kind": "ConfigMap", "name": "settings"}, "provider": {"name": "b"}},
                {"match": {"kind": "ConfigMap"}, "provider": {"name": "a"}},
            ],
            {"b"},
            id="the first that matches",
        ),
        pytest.param([{"provider": {"labels": {"zone": "eu"}}}], {"a", "b"}, id="by a label"),
        pytest.param(
            [{"provider": {"labels": {"zone": "eu", "for": "config"}}}], {"a"}, id="by all labels"
        ),
    ],
)
def test_the_first_matching_route_decides_the_targets(
    declared: list[Any], expected: set[str]
) -> None:
    routes = resolve_routes(
        "own", [ResourceRoute.model_validate(each) for each in declared], TARGETS
    )
    assert routes.targets_of(object_of("ConfigMap", "settings")) == expected


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ({"name": "c"}, "provider c specified in resourceRoutes was not found; .* own, a, b"),
        ({"labels": {"zone": "us"}}, r"no provider that matches the specified labels \(zone: us\)"),
        ({}, r"no provider that matches the specified labels \(\)"),
    ],
)
def test_a_route_to_an_unknown_provider_is_refused(provider: Any, message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        resolve_routes("own", [ResourceRoute.model_validate({"provider": provider})], TARGETS)


@pytest.mark.slow
async def test_routed_objects_are_applied_compared_and_rolled_back_on_their_clusters(
    application: Application, other: Kubernetes
) -> None:
    application.other = other
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": application.namespace}}
    other.ask("POST", "/api/v1/namespaces", body)
    routing: dict[str, Any] = {
        "resourceRoutes": [{"match": {"kind": "ConfigMap"}, "provider": {"name": "other"}}]
    }
    first = application.commit("c1", deployment(), config_map(a="1"), **routing)
    await succeed(first, "K8S_SYNC")
    assert "settings" not in application.live("configmaps", "api/v1")
    assert "settings" in application.live("configmaps", "api/v1", other)
    assert not application.live("deployments", on=other)
    state = await wait_for_live_state(first, lambda state: state.sync.status is SyncStatus.SYNCED)
    assert {(r.kind, r.target) for r in state.resources} >= {
        ("Deployment", "cluster"),
        ("ConfigMap", "other"),
    }
    manifests = (deployment("web:v2"), config_map(a="2"), config_map("new"))
    second = application.commit("c2", *manifests, running=first, **routing)
    await succeed(second, "K8S_CANARY_ROLLOUT")
    assert "settings-canary" in application.live("configmaps", "api/v1", other)
    await succeed(second, "K8S_PRIMARY_ROLLOUT")
    await succeed(second, "K8S_ROLLBACK")
    assert {n: image(d) for n, d in application.live("deployments").items()} == {"web": "web:v1"}
    config = application.live("configmaps", "api/v1", other)
    assert config["settings"]["data"] == {"a": "1"}
    assert not {"new", "settings-canary"} & set(config)
    third = application.commit("c3", deployment(), config_map(a="1"), running=first)
    await succeed(third, "K8S_SYNC")
    assert "settings" in application.live("configmaps", "api/v1")


async def test_a_route_to_an_unknown_provider_fails_the_stage(application: Application) -> None:
    routing: dict[str, Any] = {"resourceRoutes": [{"provider": {"name": "unknown"}}]}
    result = await application.commit("c1", config_map(), **routing).run("K8S_SYNC")
    assert result.status is StageStatus.FAILURE
    assert "provider unknown specified in resourceRoutes was not found" in result.message
    assert "settings" not in application.live("configmaps", "api/v1")
