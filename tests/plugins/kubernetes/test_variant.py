# SPDX-License-Identifier: Apache-2.0
"""The objects of canary and baseline, patches, and traffic splits."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.config import Patch, PatchOp, PatchTarget, VariantLabel
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.traffic import (
    Subsets,
    TrafficSplit,
    split_by_selector,
    split_http_route,
    split_virtual_service,
    validate_split,
)
from pipecd.plugins.kubernetes.variant import (
    VariantBuilder,
    apply_patches,
    require_selector_label,
    with_selector_label,
)
from pipecd.sdk import UserMistake
from pipecd.sdk.config import Replicas
from plugins.kubernetes.testbed import manifest

LABEL = VariantLabel()
CANARY = VariantBuilder(LABEL.key, "canary", "canary")


DEPLOYMENT = manifest(
    "Deployment",
    "web",
    "apps/v1",
    spec={
        "replicas": 5,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [{"envFrom": [{"configMapRef": {"name": "c"}}, {"x": 1}]}],
                "volumes": [
                    {"secret": {"secretName": "s"}},
                    {"projected": {"sources": [{"configMap": {"name": "c"}}]}},
                    {"configMap": {"name": "foreign"}},
                ],
            },
        },
    },
)
CONFIG = [manifest("ConfigMap", "c", data={"a": "b"}), manifest("Secret", "s")]


def test_a_canary_has_its_own_name_label_replicas_and_configuration() -> None:
    canary = CANARY.workload(DEPLOYMENT, Replicas.parse("30%"), CONFIG)
    spec = canary.body["spec"]
    assert canary.name == "web-canary"
    assert spec["replicas"] == 2
    assert spec["selector"]["matchLabels"] == {"app": "web", "pipecd.dev/variant": "canary"}
    assert spec["template"]["metadata"]["labels"] == spec["selector"]["matchLabels"]
    pod = spec["template"]["spec"]
    assert pod["containers"] == [{"envFrom": [{"configMapRef": {"name": "c-canary"}}, {"x": 1}]}]
    assert pod["volumes"] == [
        {"secret": {"secretName": "s-canary"}},
        {"projected": {"sources": [{"configMap": {"name": "c-canary"}}]}},
        {"configMap": {"name": "foreign"}},
    ]
    assert DEPLOYMENT.body["spec"]["replicas"] == 5


@pytest.mark.parametrize(
    ("replicas", "count"), [("0", 1), ("1", 1), ("3", 3), ("10%", 1), ("100%", 5)]
)
def test_replicas_are_a_number_or_a_percentage(replicas: str, count: int) -> None:
    assert CANARY.workload(DEPLOYMENT, Replicas.parse(replicas)).body["spec"]["replicas"] == count


def test_only_a_deployment_has_variants() -> None:
    with pytest.raises(UserMistake, match="StatefulSet db cannot have a variant"):
        CANARY.workload(manifest("StatefulSet", "db", "apps/v1"), Replicas(1))


def test_the_service_of_a_variant_is_a_cluster_ip_service() -> None:
    service = manifest(
        "Service",
        "web",
        spec={
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.7",
            "loadBalancerIP": "1.2.3.4",
            "selector": {"app": "web"},
            "ports": [{"port": 80, "nodePort": 30080}],
        },
    )
    built = CANARY.service(service)
    assert built.name == "web-canary"
    assert built.body["spec"] == {
        "type": "ClusterIP",
        "selector": {"app": "web", "pipecd.dev/variant": "canary"},
        "ports": [{"port": 80}],
    }


def test_a_headless_service_stays_headless() -> None:
    built = CANARY.service(manifest("Service", "web", spec={"clusterIP": "None"}))
    assert built.body["spec"]["clusterIP"] == "None"


def test_require_selector_label_refuses_a_workload_without_it() -> None:
    require_selector_label(
        [with_selector_label(DEPLOYMENT, LABEL.key, "primary")], LABEL.key, "primary"
    )
    with pytest.raises(UserMistake, match=r"lacks pipecd.dev/variant: primary in spec.selector"):
        require_selector_label([DEPLOYMENT], LABEL.key, "primary")


@pytest.mark.parametrize(
    ("path", "value", "location", "expected"),
    [
        pytest.param("$.spec.replicas", "9", ("spec", "replicas"), 9, id="a number"),
        pytest.param("spec.replicas", '"9"', ("spec", "replicas"), "9", id="a quoted text"),
        pytest.param(
            "$..matchLabels.app",
            "x",
            ("spec", "selector", "matchLabels", "app"),
            "x",
            id="anywhere",
        ),
        pytest.param(
            "$.spec.template.spec.volumes[2].configMap.name",
            "x",
            ("spec", "template", "spec", "volumes", 2, "configMap", "name"),
            "x",
            id="an element of a list",
        ),
    ],
)
def test_a_patch_replaces_a_value(
    path: str, value: str, location: tuple[Any, ...], expected: Any
) -> None:
    patch = Patch(
        target=PatchTarget(kind="Deployment", name="web"), ops=(PatchOp(path=path, value=value),)
    )
    patched: Any = apply_patches([*CONFIG, DEPLOYMENT], [patch])[-1].body
    for step in location:
        patched = patched[step]
    assert patched == expected


def test_a_patch_changes_a_document_in_a_text_field() -> None:
    envoy = manifest("ConfigMap", "envoy", data={"envoy.yaml": "a:\n  port: 1\nb: two\n"})
    patch = Patch(
        target=PatchTarget(kind="ConfigMap", name="envoy", document_root="$.data"),
        ops=(PatchOp(path="$.a.port", value="9"),),
    )
    with pytest.raises(UserMistake, match=r"documentRoot \$\.data is no text"):
        apply_patches([envoy], [patch])
    patch = patch.model_copy(
        update={
            "target": PatchTarget(
                kind="ConfigMap", name="envoy", document_root="$.data.'envoy.yaml'"
            )
        }
    )
    assert apply_patches([envoy], [patch])[0].body["data"] == {
        "envoy.yaml": "a:\n  port: 9\nb: two\n"
    }


@pytest.mark.parametrize(
    ("target", "op", "message"),
    [
        (
            ("Deployment", "unknown"),
            PatchOp(path="$.a", value=""),
            "no Deployment unknown to patch",
        ),
        (("Deployment", "web"), PatchOp(path="$.a", value=""), r"nothing at \$\.a"),
        (("Deployment", "web"), PatchOp(path="$", value=""), "is no path"),
        (("Deployment", "web"), PatchOp(path="$.a[x]", value=""), "is no path"),
        (("Deployment", "web"), PatchOp(op="add", path="$.a"), "unknown op 'add'"),
    ],
)
def test_a_wrong_patch_is_refused(target: tuple[str, str], op: PatchOp, message: str) -> None:
    patch = Patch(target=PatchTarget(kind=target[0], name=target[1]), ops=(op,))
    with pytest.raises(UserMistake, match=message):
        apply_patches([DEPLOYMENT], [patch])


SERVICE = manifest("Service", "web", spec={"selector": {LABEL.key: "primary"}})


def test_a_service_selects_one_variant() -> None:
    moved = split_by_selector(SERVICE, TrafficSplit(0, 100), LABEL)
    assert moved.body["spec"]["selector"] == {LABEL.key: "canary"}
    assert split_by_selector(SERVICE, TrafficSplit(100), LABEL) == SERVICE


@pytest.mark.parametrize(
    ("service", "shares", "message"),
    [
        (SERVICE, TrafficSplit(50, 50), "all of its traffic"),
        (SERVICE, TrafficSplit(0, 0, 100), "all of its traffic"),
        (
            manifest("Service", "web"),
            TrafficSplit(100),
            "must select pipecd.dev/variant: primary in Git",
        ),
    ],
)
def test_a_service_cannot_split_traffic(
    service: Manifest, shares: TrafficSplit, message: str
) -> None:
    with pytest.raises(UserMistake, match=message):
        split_by_selector(service, shares, LABEL)


def test_a_split_must_add_up_to_100() -> None:
    validate_split(TrafficSplit(50, 30, 20))
    for wrong in (TrafficSplit(50, 30), TrafficSplit(120, -20)):
        with pytest.raises(UserMistake, match="do not add up to 100%"):
            validate_split(wrong)


WEB = Subsets("web", LABEL)


def virtual_service(*routes: Any) -> Manifest:
    """Returns a VirtualService."""
    return manifest("VirtualService", "web", "networking.istio.io/v1", spec={"http": list(routes)})


@pytest.mark.parametrize(
    ("shares", "weights"),
    [
        (TrafficSplit(60, 30, 10), [("primary", 46), ("canary", 22), ("baseline", 7), (None, 25)]),
        (TrafficSplit(70, 30), [("primary", 53), ("canary", 22), (None, 25)]),
        (TrafficSplit(100), [("primary", 75), (None, 25)]),
    ],
)
def test_a_virtual_service_splits_the_weight_that_other_hosts_leave(
    shares: TrafficSplit, weights: list[tuple[str | None, int]]
) -> None:
    mine = {"destination": {"host": "web", "port": {"number": 80}}, "weight": 75}
    other = {"destination": {"host": "other"}, "weight": 25}
    split = split_virtual_service(virtual_service({"route": [mine, other]}), shares, WEB)
    routes = split.body["spec"]["http"][0]["route"]
    assert [(each["destination"].get("subset"), each["weight"]) for each in routes] == weights
    assert routes[0]["destination"]["port"] == {"number": 80}


def test_only_editable_routes_are_changed() -> None:
    one = {"name": "one", "route": [{"destination": {"host": "web"}}]}
    two = {"name": "two", "route": [{"destination": {"host": "web"}}]}
    split = split_virtual_service(virtual_service(one, two), TrafficSplit(0, 100), WEB, ("two",))
    routes = split.body["spec"]["http"]
    assert routes[0] == one
    assert [each["weight"] for each in routes[1]["route"]] == [0, 100]


def test_an_unchanged_split_leaves_the_virtual_service_as_in_git() -> None:
    canary = {"destination": {"host": "web", "subset": "canary"}, "weight": 0}
    primary = {"destination": {"host": "web", "subset": "primary"}, "weight": 100}
    elsewhere = {"route": [{"destination": {"host": "other"}}]}
    git = virtual_service({"route": [canary, primary]}, elsewhere)
    assert split_virtual_service(git, TrafficSplit(100), WEB) == git
    moved = split_virtual_service(git, TrafficSplit(70, 30), WEB).body["spec"]["http"]
    assert [each["weight"] for each in moved[0]["route"]] == [30, 70]
    assert moved[1] == elsewhere


@pytest.mark.parametrize(
    ("subsets", "editable", "message"),
    [
        pytest.param(Subsets("shop", LABEL), (), "no http route to shop", id="the host"),
        pytest.param(WEB, ("b",), "no http route of b to web", id="the routes"),
    ],
)
def test_a_virtual_service_without_a_matching_route_is_refused(
    subsets: Subsets, editable: tuple[str, ...], message: str
) -> None:
    git = virtual_service({"name": "a", "route": [{"destination": {"host": "web"}}]})
    with pytest.raises(UserMistake, match=message):
        split_virtual_service(git, TrafficSplit(50, 50), subsets, editable)


NAMES = ("web", "web-canary", "web-baseline")


def http_route(*backends: Any) -> Manifest:
    """Returns an HTTPRoute of one rule."""
    rules = [{"backendRefs": list(backends)}]
    return manifest("HTTPRoute", "web", "gateway.networking.k8s.io/v1", spec={"rules": rules})


def backends_of(route: Manifest) -> Any:
    return route.body["spec"]["rules"][0]["backendRefs"]


@pytest.mark.parametrize(
    ("backends", "shares", "weights"),
    [
        pytest.param([("web", None)], TrafficSplit(80, 20), [80, 20], id="all of it"),
        pytest.param(
            [("web", None)], TrafficSplit(80, 15, 5), [80, 15, 5], id="all of it in three"
        ),
        pytest.param([("web", 1), ("other", 1)], TrafficSplit(80, 20), [4, 1, 5], id="half of it"),
        pytest.param(
            [("web", 70), ("other", 30)], TrafficSplit(90, 10), [63, 7, 30], id="70 percent"
        ),
        pytest.param([("web", 7)], TrafficSplit(100), [7], id="an unchanged split"),
        pytest.param(
            [("web", 1), ("other", 3)], TrafficSplit(100), [1, 3], id="so in Git beside others"
        ),
        pytest.param(
            [("web", 5), ("web-canary", 0)], TrafficSplit(100), [5, 0], id="a canary with none"
        ),
        pytest.param(
            [("web", 5), ("web-canary", 0)], TrafficSplit(0, 100), [0, 100], id="all to canary"
        ),
        pytest.param(
            [("web", 0), ("other", 1)], TrafficSplit(80, 20), [0, 1], id="no share of the traffic"
        ),
    ],
)
def test_an_http_route_splits_the_weight_of_the_variants(
    backends: list[tuple[str, int | None]], shares: TrafficSplit, weights: list[int]
) -> None:
    route = http_route(
        *({"name": n, "port": 80, **({} if w is None else {"weight": w})} for n, w in backends)
    )
    split = backends_of(split_http_route(route, shares, NAMES))
    assert [each["weight"] for each in split] == weights
    assert {each["port"] for each in split} == {80}


def test_an_http_route_without_the_service_is_refused() -> None:
    for route in (http_route(), http_route({"name": "web", "kind": "Bucket"})):
        with pytest.raises(UserMistake, match="no rule with the Service web"):
            split_http_route(route, TrafficSplit(80, 20), NAMES)
