# SPDX-License-Identifier: Apache-2.0
"""The manifest of a Cloud Run service, and the service that a stage sends.

Upstream derives the name of a revision from the image and the commit, and finds the running
revision by it, so the names are the same here wherever Cloud Run accepts them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.cloudrun.config import CloudRunApplication
from pipecd.sdk import Source, UserMistake
from pipecd.sdk.diff import is_list, is_map, scalar_text
from pipecd.sdk.images import Image
from pipecd.sdk.manifests import ManifestType
from pipecd.sdk.unstructured import (
    Body,
    list_at,
    text_at,
    with_entries,
    with_value,
    without,
)

SERVICE = ManifestType(
    "serving.knative.dev/v1", "Service", "service", setting="input.serviceManifestFile"
)
REVISION_LABEL = "pipecd-dev-revision-name"
SERVICE_LABEL = "serving.knative.dev/service"
_CONTAINERS = ("spec", "template", "spec", "containers")
_MAX_REVISION_NAME = 63
_COMMIT_LENGTH = 7
_DIGEST_LENGTH = 12
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]")


@dataclass(frozen=True)
class ServiceManifest:
    """A service as it is in Git."""

    name: str
    body: Body

    @property
    def images(self) -> tuple[Image, ...]:
        """The images of all containers; the first one names revisions."""
        containers = list_at(self.body, *_CONTAINERS)
        return tuple(Image.of(text_at(container, "image")) for container in containers)

    def revision(self, commit: str) -> str:
        """Returns the name of the revision that a commit deploys."""
        tag = self.images[0].tag
        if tag.startswith("sha256:"):
            tag = tag.removeprefix("sha256:")[:_DIGEST_LENGTH]
        tag = _NOT_IN_NAMES.sub("-", tag.replace(".", "").lower())
        commit = commit[:_COMMIT_LENGTH]
        rest = _MAX_REVISION_NAME - len(self.name) - len(commit) - 2
        return f"{self.name}-{tag[: max(rest, 0)]}-{commit}"

    def release(
        self, revision: str, traffic: Mapping[str, int], labels: Mapping[str, str]
    ) -> dict[str, Any]:
        """Returns the service that creates a revision and distributes the traffic.

        The same arguments give the same service, so a stage that is repeated creates no second
        revision.
        """
        body = with_entries(with_texts(self.body), ("metadata", "labels"), labels)
        body = with_value(body, ("spec", "template", "metadata", "name"), revision)
        body = with_entries(
            body, ("spec", "template", "metadata", "labels"), {**labels, REVISION_LABEL: revision}
        )
        body = without(body, "status")
        for field in ("resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"):
            body = without(body, "metadata", field)
        return with_traffic(body, traffic)


# Fields of the API that are texts, which people write as numbers and booleans too.
_TEXT_MAPS = frozenset({"labels", "annotations", "limits", "requests", "nodeSelector"})
_TEXT_LISTS = frozenset({"args", "command"})


def with_texts(value: Any, key: str = "") -> Any:
    """Returns a service whose texts are texts: `value: 1` of a variable is `value: "1"`."""
    if is_map(value):
        if key in _TEXT_MAPS:
            return {name: _text(child) for name, child in value.items()}
        is_variable = key == "env"
        return {
            name: _text(child) if is_variable and name == "value" else with_texts(child, name)
            for name, child in value.items()
        }
    if is_list(value):
        return [_text(child) if key in _TEXT_LISTS else with_texts(child, key) for child in value]
    return value


def _text(value: Any) -> Any:
    return scalar_text(value) if isinstance(value, int | float) else value


def with_traffic(body: Body, traffic: Mapping[str, int]) -> dict[str, Any]:
    """Returns a service whose revisions get these percentages."""
    targets = [
        {"revisionName": revision, "percent": percent}
        for revision, percent in traffic.items()
        if percent
    ]
    return with_value(body, ("spec", "traffic"), targets)


def read_manifest(source: Source, plugin: str) -> ServiceManifest:
    """Reads the manifest of an application.

    It checks what the plugin itself needs; Cloud Run checks the rest.
    """
    file = source.application_settings(plugin, CloudRunApplication).input.service_manifest_file
    value = SERVICE.read(source, file)
    name = text_at(value, "metadata", "name")
    if not name:
        raise UserMistake(f"{file}: metadata.name must be set")
    containers = list_at(value, *_CONTAINERS)
    if not containers:
        raise UserMistake(f"{file}: {'.'.join(_CONTAINERS)} must have a container")
    for number, container in enumerate(containers):
        if not text_at(container, "image"):
            raise UserMistake(f"{file}: {'.'.join(_CONTAINERS)}.{number}.image must be set")
    return ServiceManifest(name, value)
