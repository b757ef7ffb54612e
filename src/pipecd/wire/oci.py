# SPDX-License-Identifier: Apache-2.0
"""The formats of OCI registries: references, manifests and indexes of manifests."""

import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from pipecd.model.errors import PipecdError, UserMistake

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
_DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
MEDIA_TYPES = (INDEX, MANIFEST, _DOCKER_INDEX, _DOCKER_MANIFEST)
EMPTY_CONFIG = b"{}"
_EMPTY = "application/vnd.oci.empty.v1+json"
# The layer of an artifact that is the program of a plugin.
PLUGIN_LAYER = "application/vnd.pipecd.piped.plugin"

_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Reference:
    """A tag or digest of a repository: `oci://HOST/REPOSITORY[:TAG][@DIGEST]`."""

    host: str
    repository: str
    tag: str = "latest"
    digest: str = ""

    @property
    def identifier(self) -> str:
        """The digest, which cannot change, or the tag."""
        return self.digest or self.tag

    @property
    def is_on_loopback(self) -> bool:
        """Whether the registry runs on this machine, where plain HTTP is safe."""
        name = urlsplit(f"//{self.host}").hostname or ""
        try:
            return ipaddress.ip_address(name).is_loopback
        except ValueError:
            return name == "localhost"

    def __str__(self) -> str:
        digest = f"@{self.digest}" if self.digest else ""
        return f"{self.host}/{self.repository}:{self.tag}{digest}"


def parse_reference(url: str) -> Reference:
    """Parses a reference; raises `UserMistake` for an invalid one."""
    rest = url.removeprefix("oci://")
    host, _, path = rest.partition("/")
    path, _, digest = path.partition("@")
    repository, colon, tag = path.partition(":")
    is_valid = (
        host
        and _REPOSITORY.fullmatch(repository)
        and (not colon or _TAG.fullmatch(tag))
        and (not digest or DIGEST.fullmatch(digest))
        and ("@" in rest) == bool(digest)
    )
    if not is_valid:
        raise UserMistake(
            f"{url} is not a valid OCI reference",
            hint="write oci://HOST/REPOSITORY:TAG or oci://HOST/REPOSITORY@sha256:DIGEST",
        )
    return Reference(host, repository, tag or "latest", digest)


@dataclass(frozen=True)
class Platform:
    """An operating system and an architecture, by their names in Go."""

    os: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.os}/{self.architecture}"


@dataclass(frozen=True)
class Descriptor:
    """The media type, digest and size of a blob or manifest."""

    media_type: str
    digest: str
    size: int

    def to_json(self) -> dict[str, Any]:
        """Returns the form used in manifests."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


def digest_of(content: bytes) -> str:
    """Returns the digest of content."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Document:
    """A manifest or an index of manifests that a registry returned."""

    def __init__(self, content: bytes, media_type: str, *, source: str) -> None:
        self._source = source
        try:
            parsed: Any = json.loads(content)
        except (ValueError, RecursionError) as e:
            raise PipecdError(f"{source} returned a manifest that is not JSON: {e}") from e
        if not isinstance(parsed, dict):
            raise PipecdError(f"{source} returned a manifest that is not an object")
        self._json = cast("dict[str, Any]", parsed)
        self._media_type = str(self._json.get("mediaType") or media_type.partition(";")[0].strip())

    @property
    def is_index(self) -> bool:
        """Whether it lists manifests by platform."""
        return self._media_type in (INDEX, _DOCKER_INDEX) or "manifests" in self._json

    def for_platform(self, platform: Platform) -> Descriptor:
        """Returns the descriptor of the manifest for a platform."""
        offered: list[str] = []
        for entry in self._entries("manifests"):
            declared: Any = entry.get("platform")
            if not isinstance(declared, dict):
                continue
            fields = cast("dict[str, Any]", declared)
            candidate = Platform(str(fields.get("os", "")), str(fields.get("architecture", "")))
            if candidate == platform:
                return self._descriptor(entry)
            offered.append(str(candidate))
        raise UserMistake(
            f"{self._source} has no manifest for {platform}",
            hint=f"it supports {', '.join(offered) or 'no platform at all'}",
        )

    def layers(self, media_type: str) -> list[Descriptor]:
        """Returns the layers of one type; raises UserMistake if there are none."""
        layers = [self._descriptor(entry) for entry in self._entries("layers")]
        matching = [layer for layer in layers if layer.media_type == media_type]
        if not matching:
            types = ", ".join(sorted({layer.media_type for layer in layers})) or "none"
            raise UserMistake(
                f"{self._source} has no layer of type {media_type}",
                hint=f"push it with pipectl plugin push; the types of its layers are: {types}",
            )
        return matching

    def _entries(self, key: str) -> list[dict[str, Any]]:
        entries: Any = self._json.get(key) or []
        if not isinstance(entries, list):
            raise PipecdError(f"{self._source} returned a manifest whose {key} are not a list")
        return [
            cast("dict[str, Any]", e) for e in cast("list[Any]", entries) if isinstance(e, dict)
        ]

    def _descriptor(self, entry: Mapping[str, Any]) -> Descriptor:
        try:
            return Descriptor(str(entry["mediaType"]), str(entry["digest"]), int(entry["size"]))
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise PipecdError(f"{self._source} returned a manifest that lacks {e}") from e


def image_manifest(layer: Descriptor, *, artifact_type: str) -> bytes:
    """Returns a manifest of one layer, in version 1.1 of the format."""
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
    """Returns an index of the manifests by platform."""
    entries = [
        {
            **manifest.to_json(),
            "platform": {"os": platform.os, "architecture": platform.architecture},
        }
        for platform, manifest in manifests
    ]
    return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()
