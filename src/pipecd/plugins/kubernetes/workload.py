# SPDX-License-Identifier: Apache-2.0
"""The pod templates of workloads: images, environment, and the ConfigMaps and Secrets they use."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.manifest import CONFIG_HASH, Manifest
from pipecd.sdk.diff import is_list, is_map
from pipecd.sdk.images import Image
from pipecd.sdk.unstructured import (
    Body,
    at,
    list_at,
    map_at,
    text_at,
    with_entries,
    with_value,
)

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
        containers = [*list_at(body, *path, field)]
        has_duplicates = False
        for index, container in enumerate(containers):
            env = list_at(container, "env")
            last = {text_at(variable, "name"): i for i, variable in enumerate(env)}
            if len(last) < len(env):
                unique = [env[i] for i in sorted(last.values())]
                containers[index] = {**container, "env": unique}
                has_duplicates = True
        if has_duplicates:
            body = with_value(body, (*path, field), containers)
    return manifest if body is manifest.body else manifest.with_body(body)


def template_images(manifest: Manifest) -> Iterator[Image]:
    """Yields the images of the containers of a pod template."""
    return _container_images(manifest, POD_TEMPLATE, CONTAINERS)


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

_EACH = "*"
_CONTAINER_REFERENCES = (
    ("ConfigMap", ("env", _EACH, "valueFrom", "configMapKeyRef", "name")),
    ("Secret", ("env", _EACH, "valueFrom", "secretKeyRef", "name")),
    ("ConfigMap", ("envFrom", _EACH, "configMapRef", "name")),
    ("Secret", ("envFrom", _EACH, "secretRef", "name")),
)
# Where a pod spec names ConfigMaps and Secrets.
_REFERENCES: tuple[tuple[str, tuple[str, ...]], ...] = (
    *((kind, (CONTAINERS, _EACH, *path)) for kind, path in _CONTAINER_REFERENCES),
    *((kind, (INIT_CONTAINERS, _EACH, *path)) for kind, path in _CONTAINER_REFERENCES),
    ("ConfigMap", ("volumes", _EACH, "configMap", "name")),
    ("Secret", ("volumes", _EACH, "secret", "secretName")),
    ("ConfigMap", ("volumes", _EACH, "projected", "sources", _EACH, "configMap", "name")),
    ("Secret", ("volumes", _EACH, "projected", "sources", _EACH, "secret", "name")),
)


def referenced_config(body: Body) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of the ConfigMaps and of the Secrets that a workload uses."""
    names: dict[str, set[str]] = {"ConfigMap": set(), "Secret": set()}

    def collect(kind: str, name: str) -> str:
        names[kind].add(name)
        return name

    with_renamed_config(body, collect)
    return frozenset(names["ConfigMap"]), frozenset(names["Secret"])


def with_renamed_config(body: Body, rename: Rename) -> Body:
    """Returns a workload whose pods use other ConfigMaps and Secrets."""
    for kind, path in _REFERENCES:
        body = _with_renamed(body, (*POD_TEMPLATE, *path), kind, rename)
    return body


def _with_renamed(value: Any, path: tuple[str, ...], kind: str, rename: Rename) -> Any:
    if not path:
        return rename(kind, value) if isinstance(value, str) else value
    step, rest = path[0], path[1:]
    if step == _EACH and is_list(value):
        return [_with_renamed(each, rest, kind, rename) for each in value]
    if is_map(value) and step in value:
        return {**value, step: _with_renamed(value[step], rest, kind, rename)}
    return value


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
    except (TypeError, ValueError):
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
    config = {(m.kind, m.name): m for m in manifests if m.is_builtin("", "ConfigMap", "Secret")}
    hashed: list[Manifest] = []
    for manifest in manifests:
        used: list[Manifest] = []
        if manifest.is_builtin("apps", "Deployment", "StatefulSet", "DaemonSet"):
            config_maps, secrets = referenced_config(manifest.body)
            keys = [("ConfigMap", name) for name in sorted(config_maps)]
            keys += [("Secret", name) for name in sorted(secrets)]
            used = [config[key] for key in keys if key in config]
        if used:
            path = ("spec", "template", "metadata", "annotations")
            entries = {CONFIG_HASH: config_hash(used)}
            hashed.append(manifest.with_body(with_entries(manifest.body, path, entries)))
        else:
            hashed.append(manifest)
    return hashed


def config_hash(config: Sequence[Manifest]) -> str:
    """Returns upstream's hash over ConfigMaps and Secrets."""
    digest = hashlib.sha256("".join(map(_encode, config)).encode()).hexdigest()
    return digest[:_LENGTH].translate(_SAFE_LETTERS)


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
