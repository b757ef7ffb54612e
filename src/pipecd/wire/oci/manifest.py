# SPDX-License-Identifier: Apache-2.0
"""What a registry tells about an artifact: for which platforms it is, and what it is made of."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipecd.model.errors import PipecdError, UserMistake

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
KNOWN = (INDEX, MANIFEST, _DOCKER_INDEX, _DOCKER_MANIFEST)
EMPTY_CONFIG = b"{}"
_EMPTY = "application/vnd.oci.empty.v1+json"
# The layer of an artifact that is the program of a plugin.
PLUGIN_LAYER = "application/vnd.pipecd.piped.plugin"


@dataclass(frozen=True)
class Platform:
    """An operating system and an architecture, in the words of Go."""

    os: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


@dataclass(frozen=True)
class Descriptor:
    """A piece of content: what it is, its digest and its size."""

    media_type: str
    digest: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """As it is written into manifests."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def digest_of(content: bytes) -> str:
    """The digest under which a registry keeps the content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Document:
    """A manifest or an index of manifests, as it came from a registry."""

    def __init__(self, content: bytes, media_type: str, *, source: str) -> None:
        self._source = source
        try:
            parsed: Any = json.loads(content)
        except ValueError as e:
            raise PipecdError(f"{source} answered a manifest that is not JSON: {e}") from e
        if not isinstance(parsed, dict):
            raise PipecdError(f"{source} answered a manifest that is not an object")
        self._json = cast("dict[str, Any]", parsed)
        self._media_type = str(self._json.get("mediaType") or media_type.partition(";")[0].strip())

    @property
    def is_index(self) -> bool:
        """Whether it only tells which manifest is for which platform."""
        return self._media_type in (INDEX, _DOCKER_INDEX) or "manifests" in self._json

    def for_platform(self, platform: Platform) -> Descriptor:
        """The manifest for a platform."""
        offered: list[str] = []
        for entry in self._entries("manifests"):
            said: Any = entry.get("platform") or {}
            here = Platform(str(said.get("os", "")), str(said.get("architecture", "")))
            if here == platform:
                return self._descriptor(entry)
            offered.append(str(here))
        raise UserMistake(
            f"{self._source} has nothing for {platform}",
            hint=f"it is there for {', '.join(offered) or 'no platform at all'}",
        )

    def layers(self, media_type: str) -> list[Descriptor]:
        """The layers of one type, at least one of them."""
        layers = [self._descriptor(entry) for entry in self._entries("layers")]
        found = [layer for layer in layers if layer.media_type == media_type]
        if not found:
            types = ", ".join(sorted({layer.media_type for layer in layers})) or "none"
            raise UserMistake(
                f"{self._source} has no layer of type {media_type}",
                hint=f"push it with pipectl plugin push; the types of its layers are: {types}",
            )
        return found

    def _entries(self, key: str) -> list[dict[str, Any]]:
        entries: Any = self._json.get(key) or []
        if not isinstance(entries, list):
            raise PipecdError(f"{self._source} answered a manifest whose {key} are not a list")
        return [
            cast("dict[str, Any]", e) for e in cast("list[Any]", entries) if isinstance(e, dict)
        ]

    def _descriptor(self, entry: Mapping[str, Any]) -> Descriptor:
        try:
            return Descriptor(str(entry["mediaType"]), str(entry["digest"]), int(entry["size"]))
        except (KeyError, TypeError, ValueError) as e:
            raise PipecdError(f"{self._source} answered a manifest that lacks {e}") from e


def image_manifest(layer: Descriptor, *, artifact_type: str) -> bytes:
    """A manifest of one layer, in version 1.1 of the format."""
    config = Descriptor(_EMPTY, digest_of(EMPTY_CONFIG), len(EMPTY_CONFIG))
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact_type,
        "config": config.to_json(),
        "layers": [layer.to_json()],
    }
    return json.dumps(document).encode()


def image_index(manifests: Sequence[tuple[Platform, Descriptor]]) -> bytes:
    """An index that tells which manifest is for which platform."""
    entries = [
        {
            **manifest.to_json(),
            "platform": {"os": platform.os, "architecture": platform.architecture},
        }
        for platform, manifest in manifests
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
