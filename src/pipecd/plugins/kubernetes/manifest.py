# SPDX-License-Identifier: Apache-2.0
"""Manifests: the objects that an application declares, and PipeCD's labels on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

from pipecd.sdk import UserMistake
from pipecd.sdk.unstructured import (
    Body,
    list_at,
    map_at,
    text_at,
    with_entries,
    with_value,
)
from pipecd.sdk.yaml import plain_documents

DEFAULT_NAMESPACE = "default"

Identity: TypeAlias = tuple[str, str, str, str]
"""API group, kind, namespace and name of an object."""


@dataclass(frozen=True, order=True)
class ResourceKey:
    """An object by API version, kind, namespace and name; no namespace is an empty one."""

    api_version: str
    kind: str
    namespace: str
    name: str

    @property
    def group(self) -> str:
        """The API group, empty for the core one."""
        group, slash, _ = self.api_version.rpartition("/")
        return group if slash else ""

    @property
    def identity(self) -> Identity:
        """The parts of the key that do not depend on the API version."""
        namespace = "" if self.namespace == DEFAULT_NAMESPACE else self.namespace
        return self.group.lower(), self.kind.lower(), namespace, self.name

    @property
    def first_generation_text(self) -> str:
        """The resource key as upstream's first generation writes it."""
        namespace = self.namespace or DEFAULT_NAMESPACE
        return f"{self.api_version}:{self.kind}:{namespace}:{self.name}"

    @property
    def text(self) -> str:
        """The resource key as upstream's second generation writes it."""
        return f"{self.group}:{self.kind}:{self.namespace}:{self.name}"

    def __str__(self) -> str:
        """Kind, name and namespace for messages."""
        suffix = f" in {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{suffix}"


@dataclass(frozen=True)
class Manifest:
    """An object with the file and line that it was read from; it is never changed in place."""

    body: Body
    origin: str = ""

    @cached_property
    def key(self) -> ResourceKey:
        """The key that identifies the object."""
        return ResourceKey(
            api_version=text_at(self.body, "apiVersion"),
            kind=self.kind,
            namespace=text_at(self.body, "metadata", "namespace"),
            name=self.name,
        )

    @property
    def kind(self) -> str:
        """The kind of the object."""
        return text_at(self.body, "kind")

    @property
    def name(self) -> str:
        """The name of the object."""
        return text_at(self.body, "metadata", "name")

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The annotations of the object."""
        return map_at(self.body, "metadata", "annotations")

    def is_builtin(self, group: str, *kinds: str) -> bool:
        """Reports whether this is one of the kinds of an API group."""
        return self.key.group == group and self.kind in kinds

    def named(self, name: str) -> "Manifest":
        """Returns the same object under another name."""
        return self.with_body(with_value(self.body, ("metadata", "name"), name))

    def with_body(self, body: Body) -> "Manifest":
        """Returns a manifest with another body and the same origin."""
        return replace(self, body=body)

    def annotated(self, annotations: Mapping[str, str]) -> "Manifest":
        """Returns the object with annotations added."""
        return self.with_body(with_entries(self.body, ("metadata", "annotations"), annotations))

    def labelled(self, labels: Mapping[str, str]) -> "Manifest":
        """Returns the object with labels added."""
        return self.with_body(with_entries(self.body, ("metadata", "labels"), labels))


def read_manifests(text: str, *, file: str) -> list[Manifest]:
    """Reads the objects of a file; a List yields its items."""
    return manifests_of(plain_documents(text, file), file=file)


def manifests_of(documents: Iterable[tuple[Any, int]], *, file: str) -> list[Manifest]:
    """Returns the objects of documents with their lines; a List yields its items."""
    manifests: list[Manifest] = []
    for value, line in documents:
        if value:
            manifests += _objects(value, f"{file}:{line}")
    return manifests


def _objects(value: Any, origin: str) -> list[Manifest]:
    if not isinstance(value, dict):
        # The value itself may be a secret.
        type_name = "a text" if isinstance(value, str) else "a single value"
        type_name = "a list" if isinstance(value, list) else type_name
        raise UserMistake(f"{origin}: a manifest must be a map, this is {type_name}")
    manifest = Manifest(value, origin)  # pyright: ignore[reportUnknownArgumentType]
    if manifest.kind == "List" and manifest.key.group == "":
        return [
            each for item in manifest.body.get("items") or () for each in _objects(item, origin)
        ]
    for missing in ("kind", "apiVersion"):
        if not text_at(manifest.body, missing):
            raise UserMistake(f"{origin}: a manifest must have {missing!r}")
    if not manifest.name:
        raise UserMistake(
            f"{origin}: {manifest.kind} has no name",
            hint="write one at metadata.name; generateName is not supported",
        )
    return [manifest]


MANAGED_BY = "pipecd.dev/managed-by"
PIPED = "pipecd.dev/piped"
APPLICATION = "pipecd.dev/application"
COMMIT = "pipecd.dev/commit-hash"
ORIGINAL_API_VERSION = "pipecd.dev/original-api-version"
RESOURCE_KEY = "pipecd.dev/resource-key"
CONFIG_HASH = "pipecd.dev/config-hash"

ORDER = "pipecd.dev/order"
FORCE_REPLACE = "pipecd.dev/force-sync-by-replace"
REPLACE = "pipecd.dev/sync-by-replace"
IGNORE_DRIFT = "pipecd.dev/ignore-drift-detection"

BY_PIPED = "piped"


@dataclass(frozen=True)
class TrackingLabels:
    """The labels and annotations that tie an object to its piped, application and commit.

    A first-generation application has the old form of the resource key, so that an upstream piped
    still recognises its objects.
    """

    piped: str
    application: str
    commit: str
    first_generation: bool = False

    def added_to(self, manifest: Manifest) -> Manifest:
        """Returns the object with these labels and annotations."""
        key = manifest.key
        labels = {
            MANAGED_BY: BY_PIPED,
            PIPED: self.piped,
            APPLICATION: self.application,
            COMMIT: self.commit,
        }
        text = key.first_generation_text if self.first_generation else key.text
        annotations = {**labels, ORIGINAL_API_VERSION: key.api_version, RESOURCE_KEY: text}
        return manifest.labelled(labels).annotated(annotations)


def with_variant_label(manifest: Manifest, label: str, value: str) -> Manifest:
    """Returns the object with its variant as a label and an annotation."""
    return manifest.labelled({label: value}).annotated({label: value})


def managing_application(body: Body) -> str:
    """Returns the id of the application that manages an object, empty if a controller created it.

    Annotations decide, because controllers copy labels: Endpoints have those of their Service.
    """
    annotations = map_at(body, "metadata", "annotations")
    if annotations.get(MANAGED_BY) != BY_PIPED or list_at(body, "metadata", "ownerReferences"):
        return ""
    return str(annotations.get(APPLICATION, ""))


def is_enabled(manifest: Manifest, annotation: str) -> bool:
    """Reports whether an annotation is set to `enabled` or `true`."""
    return manifest.annotations.get(annotation) in ("enabled", "true")


def order_of(manifest: Manifest) -> int:
    """Returns the number at `pipecd.dev/order`, 0 without one."""
    try:
        return int(str(manifest.annotations.get(ORDER, 0)))
    except ValueError:
        return 0


# Kinds of one entry are applied concurrently.
_APPLY_ORDER: tuple[tuple[str, ...], ...] = (
    ("Namespace",),
    ("CustomResourceDefinition", "PriorityClass", "StorageClass", "IngressClass", "RuntimeClass"),
    ("ResourceQuota", "LimitRange", "ServiceAccount", "ConfigMap", "Secret", "PersistentVolume"),
    ("ClusterRole", "Role", "PersistentVolumeClaim", "NetworkPolicy", "PodDisruptionBudget"),
    ("ClusterRoleBinding", "RoleBinding"),
    ("Service",),
    (
        *("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "Pod"),
        *("Job", "CronJob"),
    ),
)
_RANK_BY_KIND = {kind: rank for rank, kinds in enumerate(_APPLY_ORDER) for kind in kinds}
# An admission webhook or an aggregated API needs its workload to serve requests.
_LAST = frozenset({"APIService", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"})


def apply_rank(manifest: Manifest) -> int:
    """Returns the rank of a kind in the apply order; unknown kinds follow the workloads."""
    if manifest.kind in _LAST:
        return len(_APPLY_ORDER) + 1
    return _RANK_BY_KIND.get(manifest.kind, len(_APPLY_ORDER))


def waves(manifests: Sequence[Manifest]) -> list[list[Manifest]]:
    """Returns the waves of objects; one wave is applied concurrently.

    `pipecd.dev/order` takes precedence over the kind.
    """

    def sort_key(manifest: Manifest) -> tuple[int, int]:
        return order_of(manifest), apply_rank(manifest)

    return [list(group) for _, group in groupby(sorted(manifests, key=sort_key), key=sort_key)]
