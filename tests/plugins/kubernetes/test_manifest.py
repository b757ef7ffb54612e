# SPDX-License-Identifier: Apache-2.0
"""Manifests: reading, tracking labels, apply order and the hash of configuration."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.manifest import (
    Manifest,
    TrackingLabels,
    read_manifests,
    waves,
    with_variant_label,
)
from pipecd.plugins.kubernetes.workload import config_hash, with_config_hash
from pipecd.sdk import UserMistake
from pipecd.sdk.images import Image
from plugins.kubernetes.testbed import manifest

OWNER = TrackingLabels(piped="p1", application="a1", commit="c0ffee")


def workload(name: str = "web", **pod: Any) -> Manifest:
    """Returns a Deployment with a pod."""
    return manifest("Deployment", name, "apps/v1", spec={"replicas": 2, "template": {"spec": pod}})


def test_objects_are_read_from_several_documents_and_lists() -> None:
    text = """\
# nothing here
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: one}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: two}}
--- # a comment
apiVersion: apps/v1
kind: Deployment
metadata:
  name: web
  namespace: prod
  labels: {on: yes, mode: 0755}
---
{}
"""
    manifests = read_manifests(text, file="all.yaml")
    assert [(m.kind, m.name, m.origin) for m in manifests] == [
        ("ConfigMap", "one", "all.yaml:2"),
        ("ConfigMap", "two", "all.yaml:2"),
        ("Deployment", "web", "all.yaml:8"),
    ]
    assert manifests[-1].body["metadata"]["labels"] == {"true": True, "mode": 493}
    assert manifests[-1].key.text == "apps:Deployment:prod:web"
    assert manifests[-1].key.first_generation_text == "apps/v1:Deployment:prod:web"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a: [", "x.yaml:2:1", id="broken YAML with its line"),
        pytest.param("v: 1\n---\na: b\n  c: d", "x.yaml:4:", id="in a later document too"),
        pytest.param("- 1", "must be a map, this is a list", id="a list is no manifest"),
        pytest.param("hidden", "must be a map, this is a text$", id="a text is not quoted"),
        pytest.param("a: 1", "x.yaml:1: a manifest must have 'kind'", id="a kind is needed"),
        pytest.param("kind: A", "a manifest must have 'apiVersion'", id="and an API version"),
        pytest.param("kind: A\napiVersion: v1", "A has no name", id="and a name"),
    ],
)
def test_an_invalid_manifest_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserMistake, match=message.replace("[", r"\[")):
        read_manifests(text, file="x.yaml")


def test_an_object_has_the_tracking_labels() -> None:
    added_to = OWNER.added_to(manifest("Service", "web", metadata={"namespace": "prod"}))
    added_to = with_variant_label(added_to, "pipecd.dev/variant", "canary")
    metadata = added_to.body["metadata"]
    assert metadata["labels"] == {
        "pipecd.dev/managed-by": "piped",
        "pipecd.dev/piped": "p1",
        "pipecd.dev/application": "a1",
        "pipecd.dev/commit-hash": "c0ffee",
        "pipecd.dev/variant": "canary",
    }
    assert metadata["annotations"] == {
        **metadata["labels"],
        "pipecd.dev/original-api-version": "v1",
        "pipecd.dev/resource-key": ":Service:prod:web",
    }


def test_a_first_generation_application_has_the_old_resource_keys() -> None:
    owner = TrackingLabels(piped="p1", application="a1", commit="c", first_generation=True)
    added_to = owner.added_to(manifest("Service", "web"))
    assert added_to.annotations["pipecd.dev/resource-key"] == "v1:Service:default:web"


def test_kinds_are_applied_in_the_order_of_their_dependencies() -> None:
    kinds = [
        "Widget",
        "Deployment",
        "Service",
        "ConfigMap",
        "Namespace",
        "CustomResourceDefinition",
    ]
    objects = [manifest(kind, "x") for kind in kinds] + [manifest("Secret", "y")]
    assert [[m.kind for m in wave] for wave in waves(objects)] == [
        ["Namespace"],
        ["CustomResourceDefinition"],
        ["ConfigMap", "Secret"],
        ["Service"],
        ["Deployment"],
        ["Widget"],
    ]


def test_the_order_annotation_takes_precedence() -> None:
    last = manifest("Namespace", "n", metadata={"annotations": {"pipecd.dev/order": "1"}})
    first = manifest("Job", "j", metadata={"annotations": {"pipecd.dev/order": "-1"}})
    odd = manifest("Pod", "p", metadata={"annotations": {"pipecd.dev/order": "soon"}})
    assert [[m.name for m in wave] for wave in waves([last, odd, first])] == [["j"], ["p"], ["n"]]


C1 = manifest("ConfigMap", "c1", data={"k": "v<1>&"})
S1 = manifest("Secret", "s1", type="Opaque", data={"a": "YWJj"})


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        pytest.param([C1], "6h7g6t2fdb", id="a ConfigMap"),
        pytest.param([S1], "9777ctd4b6", id="a Secret"),
        pytest.param([manifest("ConfigMap", "c2")], "dmf659bb9d", id="a ConfigMap without data"),
        pytest.param([C1, S1], "b7fk4cbd8k", id="both"),
    ],
)
def test_configuration_is_hashed_as_upstream_does(config: list[Manifest], expected: str) -> None:
    assert config_hash(config) == expected


def test_string_data_has_the_hash_of_its_encoded_data() -> None:
    plain = manifest("Secret", "s1", type="Opaque", stringData={"a": "abc"})
    assert config_hash([plain]) == config_hash([S1])


def test_a_workload_has_the_hash_of_its_configuration() -> None:
    unused = manifest("ConfigMap", "unused", data={"a": "b"})
    uses = workload(
        containers=[{"envFrom": [{"configMapRef": {"name": "c1"}}]}],
        initContainers=[{"env": [{"valueFrom": {"secretKeyRef": {"name": "s1"}}}]}],
        volumes=[{"configMap": {"name": "elsewhere"}}, {"emptyDir": {}}],
    )
    other = workload("other", containers=[{"image": "x"}])
    hashed = with_config_hash([S1, uses, other, C1, unused])
    template = hashed[1].body["spec"]["template"]
    assert template["metadata"] == {"annotations": {"pipecd.dev/config-hash": "b7fk4cbd8k"}}
    assert [hashed[0], *hashed[2:]] == [S1, other, C1, unused]
    assert "metadata" not in uses.body["spec"]["template"]


@pytest.mark.parametrize(
    ("reference", "name", "tag"),
    [
        ("web:v1", "web", "v1"),
        ("a/b/web:v1", "web", "v1"),
        ("registry:5000/a/web:v2", "web", "v2"),
        ("registry:5000/a/web", "web", ""),
        ("a/web@sha256:abcd", "web", "sha256:abcd"),
        ("a/web:v1@sha256:abcd", "web", "v1"),
    ],
)
def test_an_image_reference_is_parsed(reference: str, name: str, tag: str) -> None:
    image = Image.of(reference)
    assert (image.name, image.tag) == (name, tag)
