# SPDX-License-Identifier: Apache-2.0
"""The diff of manifests, its text as upstream renders it, and quantities."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.drift import (
    canonical_quantity,
    diff_manifests,
    ignored_paths,
    object_drift,
    render_diff,
)
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.sdk.diff import Options

DRIFT = Options(equate_empty=True, subset=True, numeric_strings=True)


def manifest(kind: str, name: str, version: str = "v1", **fields: Any) -> Manifest:
    """Returns an object of the namespace `prod`."""
    metadata = {"name": name, "namespace": "prod"}
    return Manifest({"apiVersion": version, "kind": kind, "metadata": metadata, **fields})


def test_the_diff_numbers_added_deleted_and_changed_objects() -> None:
    live = [
        manifest("Service", "old"),
        manifest("Deployment", "simple", "apps/v1", spec={"replicas": 2, "paused": False}),
    ]
    desired = [
        manifest("Deployment", "simple", "apps/v1", spec={"replicas": 3}),
        manifest("Service", "new"),
    ]
    diff = diff_manifests(live, desired, DRIFT)
    assert diff.total == 3
    assert render_diff(diff) == (
        '- 1. name="old", kind="Service", namespace="prod", apiVersion="v1"\n\n'
        '+ 2. name="new", kind="Service", namespace="prod", apiVersion="v1"\n\n'
        '# 3. name="simple", kind="Deployment", namespace="prod", apiVersion="apps/v1"\n\n'
        "  spec:\n    #spec.replicas\n-   replicas: 2\n+   replicas: 3\n\n\n"
    )


def test_objects_are_compared_across_api_versions() -> None:
    one = manifest("Ingress", "web", "networking.k8s.io/v1")
    other = manifest("Ingress", "web", "networking.k8s.io/v1beta1")
    diff = diff_manifests([one], [other], DRIFT)
    assert (diff.added, diff.deleted) == ((), ())


@pytest.mark.parametrize("field", ["data", "stringData"])
def test_values_of_secrets_are_masked(field: str) -> None:
    live = manifest("Secret", "s", data={"password": "b2xkLXNlY3JldA=="})
    value = "bmV3LXNlY3JldA==" if field == "data" else "new-secret"
    text = render_diff(
        diff_manifests(
            [live], [manifest("Secret", "s", "v1", **{field: {"password": value}})], DRIFT
        )
    )
    assert "password: *****" in text
    for secret in ("old-secret", "new-secret", "b2xkLXNlY3JldA==", "bmV3LXNlY3JldA=="):
        assert secret not in text


def test_string_data_equals_its_encoded_data() -> None:
    live = manifest("Secret", "s", data={"a": "YWJj"})
    assert not diff_manifests([live], [manifest("Secret", "s", stringData={"a": "abc"})], DRIFT)


def test_ignored_fields_are_not_compared() -> None:
    live = manifest("Deployment", "web", "apps/v1", spec={"replicas": 5})
    desired = manifest("Deployment", "web", "apps/v1", spec={"replicas": 2})
    for key in ("apps/v1:Deployment:prod:web", "apps:Deployment:prod:web"):
        assert not object_drift(live, desired, ignored_paths(live.key, {key: ["spec.replicas"]}))
    assert object_drift(live, desired, ignored_paths(live.key, {"other": ["spec.replicas"]}))


def test_the_number_of_shown_changes_is_limited() -> None:
    live = [manifest("ConfigMap", name, data={"a": "1"}) for name in "abc"]
    desired = [manifest("ConfigMap", name, data={"a": "2"}) for name in "abc"]
    text = render_diff(
        diff_manifests(live, desired, DRIFT), show_at_most=2, masked=frozenset({"ConfigMap"})
    )
    assert text.count("# ") == 2
    assert text.endswith("... (omitted 1 other changed manifests)\n")
    assert "a: *****" in text


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("1000m", "1"),
        ("0.5", "500m"),
        (1, "1"),
        ("1", "1"),
        ("1.5", "1500m"),
        ("1024Mi", "1Gi"),
        ("1536Mi", "1536Mi"),
        ("0.5Gi", "512Mi"),
        ("128974848", "128974848"),
        ("1e3", "1k"),
        ("2000M", "2G"),
        ("0", "0"),
        ("0Gi", "0"),
        ("lots", "lots"),
        (True, True),
        (None, None),
        pytest.param("1e9999", "1e9999", id="a large exponent"),
        pytest.param("1e99999999999999999999", "1e99999999999999999999", id="a huge exponent"),
        pytest.param("1" * 40 + "Ei", "1" * 40 + "Ei", id="a large binary quantity"),
        pytest.param("9" * 5000, "9" * 5000, id="many digits"),
    ],
)
def test_quantities_have_a_canonical_form(written: Any, canonical: Any) -> None:
    assert canonical_quantity(written) == canonical


def test_equal_quantities_are_no_change() -> None:
    def pod(cpu: Any) -> Manifest:
        containers = [{"name": "c", "resources": {"limits": {"cpu": cpu, "memory": "1024Mi"}}}]
        return manifest("Pod", "p", spec={"containers": containers})

    assert not diff_manifests([pod("500m")], [pod(0.5)], Options())
    assert diff_manifests([pod("500m")], [pod("600m")], Options())
