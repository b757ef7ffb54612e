# SPDX-License-Identifier: Apache-2.0
"""The sync strategy by the difference of manifests."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.config import WorkloadReference
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plan import decide_strategy, image_versions
from pipecd.plugins.kubernetes.workload import template_images
from pipecd.sdk import ArtifactKind, SyncStrategy, Version

PIPELINE, QUICK = SyncStrategy.PIPELINE, SyncStrategy.QUICK_SYNC


def deployment(image: str = "a/web:v1", replicas: int | None = 1, **metadata: Any) -> Manifest:
    """Returns a Deployment of one container."""
    spec: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}
    if replicas is not None:
        spec["replicas"] = replicas
    return Manifest(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "simple", **metadata},
            "spec": spec,
        }
    )


def config(kind: str = "ConfigMap", name: str = "c", **fields: Any) -> Manifest:
    """Returns a ConfigMap or a Secret."""
    return Manifest({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **fields})


SECRET = config("Secret", "s", data={"a": "YWJj"})


@pytest.mark.parametrize(
    ("old", "new", "expected", "why"),
    [
        pytest.param(
            [deployment()],
            [deployment(replicas=2)],
            QUICK,
            "Deployment/simple from 1 to 2",
            id="scaling",
        ),
        pytest.param(
            [deployment(replicas=None)],
            [deployment(replicas=2)],
            QUICK,
            "Deployment/simple from <nil> to 2",
            id="scaling for the first time",
        ),
        pytest.param(
            [deployment()],
            [deployment("a/web:v2")],
            PIPELINE,
            "image web from v1 to v2",
            id="another tag",
        ),
        pytest.param(
            [deployment()],
            [deployment("b/web2:v2")],
            PIPELINE,
            "image web:v1 to web2:v2",
            id="another image",
        ),
        pytest.param(
            [deployment()],
            [deployment(labels={"a": "b"})],
            QUICK,
            "applying all manifests",
            id="a label of the object",
        ),
        pytest.param(
            [deployment(namespace="a")],
            [deployment("a/web:v2", namespace="b")],
            QUICK,
            "applying all manifests",
            id="another namespace is another workload",
        ),
        pytest.param(
            [deployment(namespace="default")],
            [deployment("a/web:v2")],
            PIPELINE,
            "from v1 to v2",
            id="the default namespace is no namespace",
        ),
        pytest.param(
            [deployment(), SECRET],
            [deployment(), SECRET],
            QUICK,
            "applying all",
            id="the same Secret",
        ),
        pytest.param(
            [deployment(), SECRET],
            [deployment(), config("Secret", "s", stringData={"a": "abc"})],
            QUICK,
            "applying all",
            id="the same Secret in plain text",
        ),
        pytest.param(
            [deployment(), config(data={"a": "1"})],
            [deployment(), config(data={"a": "2"})],
            PIPELINE,
            "ConfigMap c was updated",
            id="a changed ConfigMap",
        ),
        pytest.param(
            [deployment(), config()],
            [deployment(), config(name="d")],
            PIPELINE,
            "ConfigMap c was deleted",
            id="a renamed ConfigMap",
        ),
        pytest.param(
            [deployment()],
            [deployment(), SECRET],
            PIPELINE,
            "1 new configmap/secret",
            id="a new Secret",
        ),
        pytest.param(
            [deployment(), SECRET],
            [deployment()],
            PIPELINE,
            "1 configmap/secret deleted",
            id="one less",
        ),
        pytest.param(
            [SECRET], [deployment()], QUICK, "currently running workloads", id="none before"
        ),
        pytest.param([deployment()], [SECRET], QUICK, "in the new manifests", id="none after"),
    ],
)
def test_a_change_is_planned(
    old: list[Manifest], new: list[Manifest], expected: SyncStrategy, why: str
) -> None:
    planned = decide_strategy(old, new, ())
    assert planned.strategy == expected
    assert why in planned.summary


def test_only_configured_workloads_are_compared() -> None:
    named = (WorkloadReference(kind="Deployment", name="other"),)
    planned = decide_strategy([deployment()], [deployment("a/web:v2")], named)
    assert planned.strategy == QUICK


def test_image_versions_are_unique() -> None:
    assert image_versions([deployment(), deployment(), config()], template_images) == [
        Version("v1", name="web", url="a/web:v1", kind=ArtifactKind.CONTAINER_IMAGE)
    ]
