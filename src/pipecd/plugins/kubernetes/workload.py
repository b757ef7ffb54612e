# SPDX-License-Identifier: Apache-2.0
"""The pod templates of workloads: images, environment, and the ConfigMaps and Secrets they use."""

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipecd.plugins.kubernetes.manifest import CONFIG_HASH, Manifest
from pipecd.plugins.kubernetes.unstructured import (
    Body,
    at,
    changed,
    list_at,
    map_at,
    text_at,
    with_entries,
)
from pipecd.sdk.diff import is_list, is_map

CONTAINERS, INIT_CONTAINERS = "containers", "initContainers"
POD_TEMPLATE = ("spec", "template", "spec")
_PATHS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): ("spec",),
    ("batch", "CronJob"): ("spec", "jobTemplate", *POD_TEMPLATE),
}


def pod_path(manifest: Manifest) -> tuple[str, ...]:
    """Returns the path of the pod spec in objects of this kind."""
    return _PATHS.get((manifest.key.group, manifest.kind), POD_TEMPLATE)


def without_duplicate_env(manifest: Manifest) -> Manifest:
    """Returns an object whose containers have each env variable once, with its last value.

    Kubectl applies duplicates; server-side apply refuses them.
    """
    path, body = pod_path(manifest), manifest.body
    for field in (CONTAINERS, INIT_CONTAINERS):
        containers = list_at(body, *path, field)
        if any(_has_duplicates(list_at(container, "env")) for container in containers):
            body = changed(body, (*path, field), _with_unique_env)
    return manifest if body is manifest.body else manifest.with_body(body)


def _with_unique_env(containers: Sequence[Any]) -> list[Any]:
    return [
        {**map_at(container), "env": _last_of_each_name(list_at(container, "env"))}
        if is_list(at(container, "env"))
        else container
        for container in containers
    ]


def _has_duplicates(env: Sequence[Any]) -> bool:
    return len({text_at(each, "name") for each in env}) < len(env)


def _last_of_each_name(env: Sequence[Any]) -> list[Any]:
    last = {text_at(each, "name"): index for index, each in enumerate(env)}
    return [env[index] for index in sorted(last.values())]


@dataclass(frozen=True)
class Image:
    """An image reference; the tag is the digest if there is no tag."""

    reference: str
    name: str
    tag: str

    @classmethod
    def of(cls, reference: str) -> "Image":
        """Parses a reference; the port of a registry is no tag."""
        path, _, digest = reference.partition("@")
        name, _, tag = path.rpartition("/")[2].partition(":")
        return cls(reference, name, tag or digest)


def template_images(manifest: Manifest) -> Iterator[Image]:
    """Yields the images of the containers of a pod template."""
    return _container_images(manifest, ("spec", "template", "spec"), CONTAINERS)


def all_images(manifest: Manifest) -> Iterator[Image]:
    """Yields the images of all containers, also of init containers and CronJobs."""
    for field in (INIT_CONTAINERS, CONTAINERS):
        yield from _container_images(manifest, pod_path(manifest), field)


def _container_images(manifest: Manifest, path: tuple[str, ...], field: str) -> Iterator[Image]:
    for container in list_at(manifest.body, *path, field):
        reference = text_at(container, "image")
        if reference:
            yield Image.of(reference)


Rename = Callable[[str, str], str]
"""Returns the new name for a kind and a name."""


@dataclass(frozen=True)
class _ReferencePath:
    """The path of a ConfigMap's or Secret's name below an item of a list."""

    kind: Literal["ConfigMap", "Secret"]
    path: tuple[str, ...]


_VOLUME_REFERENCES = (
    _ReferencePath("ConfigMap", ("configMap", "name")),
    _ReferencePath("Secret", ("secret", "secretName")),
)
_PROJECTED_REFERENCES = (
    _ReferencePath("ConfigMap", ("configMap", "name")),
    _ReferencePath("Secret", ("secret", "name")),
)
_ENV_REFERENCES = (
    _ReferencePath("ConfigMap", ("valueFrom", "configMapKeyRef", "name")),
    _ReferencePath("Secret", ("valueFrom", "secretKeyRef", "name")),
)
_ENV_FROM_REFERENCES = (
    _ReferencePath("ConfigMap", ("configMapRef", "name")),
    _ReferencePath("Secret", ("secretRef", "name")),
)


def referenced_config(body: Body) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of the ConfigMaps and of the Secrets that a workload uses."""
    names: dict[str, set[str]] = {"ConfigMap": set(), "Secret": set()}

    def collect(kind: str, name: str) -> str:
        names[kind].add(name)
        return name

    with_renamed_config(body, collect)
    return frozenset(names["ConfigMap"]), frozenset(names["Secret"])


def with_renamed_config(body: Body, rename: Rename) -> dict[str, Any]:
    """Returns a workload whose pods use other ConfigMaps and Secrets."""
    return changed(body, POD_TEMPLATE, lambda pod: _rename_in_pod(pod, rename))


def _rename_in_pod(pod: Any, rename: Rename) -> Any:
    if not is_map(pod):
        return pod
    spec: dict[str, Any] = dict(pod)
    for field in ("containers", "initContainers"):
        if field in spec:
            spec[field] = _map_list(
                spec[field], lambda container: _rename_in_container(container, rename)
            )
    if "volumes" in spec:
        spec["volumes"] = _map_list(
            spec["volumes"], lambda volume: _rename_in_volume(volume, rename)
        )
    return spec


def _rename_in_container(container: Any, rename: Rename) -> Any:
    for field, references in (("env", _ENV_REFERENCES), ("envFrom", _ENV_FROM_REFERENCES)):
        container = _rename_in_list(container, (field,), references, rename)
    return container


def _rename_in_volume(volume: Any, rename: Rename) -> Any:
    return _rename_in_list(
        _rename_references(volume, _VOLUME_REFERENCES, rename),
        ("projected", "sources"),
        _PROJECTED_REFERENCES,
        rename,
    )


def _rename_in_list(
    value: Any, path: tuple[str, ...], references: tuple[_ReferencePath, ...], rename: Rename
) -> Any:
    if not is_list(at(value, *path)):
        return value
    return changed(
        value,
        path,
        lambda items: _map_list(items, lambda item: _rename_references(item, references, rename)),
    )


def _rename_references(value: Any, references: tuple[_ReferencePath, ...], rename: Rename) -> Any:
    for reference in references:
        name = at(value, *reference.path)
        if isinstance(name, str):
            value = changed(
                value, reference.path, lambda old, kind=reference.kind: rename(kind, old)
            )
    return value


def _map_list(items: Any, change: Callable[[Any], Any]) -> Any:
    return [change(item) for item in items] if is_list(items) else items


def normalized_secret(body: Body) -> dict[str, Any]:
    """Returns a Secret as the API server stores it, with `stringData` in `data`."""
    plain = {
        key: base64.b64encode(str(value).encode()).decode()
        for key, value in map_at(body, "stringData").items()
    }
    rest = {key: value for key, value in body.items() if key != "stringData"}
    data = {key: _canonical_base64(value) for key, value in map_at(body, "data").items()}
    return {**rest, "data": {**data, **plain}} if data or plain else rest


def _canonical_base64(value: Any) -> Any:
    """Returns base64 in the form that the API server writes."""
    try:
        return base64.b64encode(base64.b64decode(value)).decode()
    except (TypeError, ValueError, binascii.Error):
        return value


_LENGTH = 10
# Upstream replaces these digits and letters so that no words are formed.
_SAFE_LETTERS = str.maketrans({"0": "g", "1": "h", "3": "k", "a": "m", "e": "t"})
_ESCAPED = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def with_config_hash(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Returns the manifests with a hash of the used ConfigMaps and Secrets on pod templates.

    A changed configuration changes the hash, so that the pods are replaced.
    """
    config = {
        (manifest.kind, manifest.name): manifest
        for manifest in manifests
        if manifest.is_builtin("", "ConfigMap", "Secret")
    }
    return [_with_hash(manifest, config) for manifest in manifests]


def config_hash(config: Sequence[Manifest]) -> str:
    """Returns upstream's hash over ConfigMaps and Secrets."""
    digest = hashlib.sha256("".join(map(_encode, config)).encode()).hexdigest()
    return digest[:_LENGTH].translate(_SAFE_LETTERS)


def _with_hash(manifest: Manifest, config: Mapping[tuple[str, str], Manifest]) -> Manifest:
    if not config or not manifest.is_builtin("apps", "Deployment", "StatefulSet", "DaemonSet"):
        return manifest
    config_maps, secrets = referenced_config(manifest.body)
    used_keys = [("ConfigMap", name) for name in sorted(config_maps)]
    used_keys += [("Secret", name) for name in sorted(secrets)]
    used = [config[key] for key in used_keys if key in config]
    if not used:
        return manifest
    reference = ("spec", "template", "metadata", "annotations")
    return manifest.with_body(
        with_entries(manifest.body, reference, {CONFIG_HASH: config_hash(used)})
    )


def _encode(manifest: Manifest) -> str:
    body = manifest.body
    fields: dict[str, Any] = {
        "kind": manifest.kind,
        "name": manifest.name,
        "data": at(body, "data"),
    }
    if manifest.kind == "Secret":
        fields["type"] = at(body, "type") or ""
        fields["data"] = at(normalized_secret(body), "data")
    elif at(body, "binaryData"):
        fields["binaryData"] = at(body, "binaryData")
    if at(body, "immutable") is not None:
        fields["immutable"] = at(body, "immutable")
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "".join(_ESCAPED.get(character, character) for character in text)
