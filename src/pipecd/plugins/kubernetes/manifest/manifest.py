# SPDX-License-Identifier: Apache-2.0
"""One object that an application declares."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipecd.plugins.kubernetes.manifest.body import Body, map_at, text_at, with_entries, with_value
from pipecd.plugins.kubernetes.manifest.key import Key
from pipecd.sdk import UserMistake
from pipecd.sdk.yaml import read_documents


@dataclass(frozen=True)
class Manifest:
    """An object and the place it was read from; changes are made on copies."""

    body: Body
    origin: str = ""

    @property
    def key(self) -> Key:
        """What identifies the object."""
        return Key(
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
        """Returns a manifest of another body from the same place."""
        return replace(self, body=body)

    def annotated(self, annotations: Mapping[str, str]) -> "Manifest":
        """Returns the object with annotations added."""
        return self.with_body(with_entries(self.body, ("metadata", "annotations"), annotations))

    def labelled(self, labels: Mapping[str, str]) -> "Manifest":
        """Returns the object with labels added."""
        return self.with_body(with_entries(self.body, ("metadata", "labels"), labels))


def read_manifests(text: str, *, file: str) -> list[Manifest]:
    """Reads the objects of a file; lists are taken apart."""
    manifests: list[Manifest] = []
    for document in read_documents(text, file=file):
        origin = f"{file}:{document.line}"
        if document.value:
            manifests += _objects(document.value, origin)
    return manifests


def _objects(value: Any, origin: str) -> list[Manifest]:
    if not isinstance(value, dict):
        raise UserMistake(f"{origin}: a manifest must be a map, this is {_shape(value)}")
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
            hint="write one at metadata.name; generateName cannot be kept in step with Git",
        )
    return [manifest]


def _shape(value: object) -> str:
    """Tells what a value is and not the value, which may be a secret."""
    match value:
        case list():
            return "a list"
        case str():
            return "a text"
        case _:
            return "a single value"
