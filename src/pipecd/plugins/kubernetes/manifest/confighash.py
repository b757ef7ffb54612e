# SPDX-License-Identifier: Apache-2.0
"""A mark on pod templates that changes with their configuration, so that pods are replaced."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import at, with_entries
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.marks import CONFIG_HASH
from pipecd.plugins.kubernetes.manifest.references import referenced
from pipecd.plugins.kubernetes.manifest.secret import comparable

_LENGTH = 10
# Letters instead of digits keep words from being formed; the choice is upstream's.
_SPELLED = str.maketrans({"0": "g", "1": "h", "3": "k", "a": "m", "e": "t"})
_ESCAPED = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def with_config_hash(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Returns the manifests with the hash of its configuration on every workload that has one."""
    config = {
        (manifest.kind, manifest.name): manifest
        for manifest in manifests
        if manifest.is_builtin("", "ConfigMap", "Secret")
    }
    return [_hashed(manifest, config) for manifest in manifests]


def config_hash(config: Sequence[Manifest]) -> str:
    """Returns upstream's hash over ConfigMaps and Secrets."""
    digest = hashlib.sha256("".join(map(_encoded, config)).encode()).hexdigest()
    return digest[:_LENGTH].translate(_SPELLED)


def _hashed(manifest: Manifest, config: Mapping[tuple[str, str], Manifest]) -> Manifest:
    if not config or not manifest.is_builtin("apps", "Deployment", "StatefulSet", "DaemonSet"):
        return manifest
    config_maps, secrets = referenced(manifest.body)
    wanted = [("ConfigMap", name) for name in sorted(config_maps)]
    wanted += [("Secret", name) for name in sorted(secrets)]
    used = [config[key] for key in wanted if key in config]
    if not used:
        return manifest
    place = ("spec", "template", "metadata", "annotations")
    return manifest.with_body(with_entries(manifest.body, place, {CONFIG_HASH: config_hash(used)}))


def _encoded(manifest: Manifest) -> str:
    body = manifest.body
    fields: dict[str, Any] = {
        "kind": manifest.kind,
        "name": manifest.name,
        "data": at(body, "data"),
    }
    if manifest.kind == "Secret":
        fields["type"] = at(body, "type") or ""
        fields["data"] = at(comparable(body), "data")
    elif at(body, "binaryData"):
        fields["binaryData"] = at(body, "binaryData")
    if at(body, "immutable") is not None:
        fields["immutable"] = at(body, "immutable")
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "".join(_ESCAPED.get(character, character) for character in text)
