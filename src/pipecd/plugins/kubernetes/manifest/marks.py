# SPDX-License-Identifier: Apache-2.0
"""What PipeCD writes on the objects it applies, and what users may write for it."""

from dataclasses import dataclass

from pipecd.plugins.kubernetes.manifest.body import Body, list_at, map_at
from pipecd.plugins.kubernetes.manifest.manifest import Manifest

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
class Owner:
    """The application an object belongs to and the commit it comes from.

    Objects of a first-generation application keep the resource key in its old form, so that an
    upstream piped still recognises them.
    """

    piped: str
    application: str
    commit: str
    first_generation: bool = False

    def marked(self, manifest: Manifest) -> Manifest:
        """Returns the object with the marks of its owner, as labels and as annotations."""
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


def of_variant(manifest: Manifest, label: str, value: str) -> Manifest:
    """Returns the object with the mark of its variant."""
    return manifest.labelled({label: value}).annotated({label: value})


def managing_application(body: Body) -> str:
    """Returns the application that manages an object itself, empty when a controller made it.

    The annotations tell, since controllers copy labels: Endpoints have those of their Service.
    What they make of annotated objects has an owner.
    """
    annotations = map_at(body, "metadata", "annotations")
    if annotations.get(MANAGED_BY) != BY_PIPED or list_at(body, "metadata", "ownerReferences"):
        return ""
    return str(annotations.get(APPLICATION, ""))


def is_enabled(manifest: Manifest, annotation: str) -> bool:
    """Reports whether a user switched something on for this object."""
    return manifest.annotations.get(annotation) in ("enabled", "true")


def order_of(manifest: Manifest) -> int:
    """Returns the place in the order of applying that a user gave, 0 without one."""
    try:
        return int(str(manifest.annotations.get(ORDER, 0)))
    except ValueError:
        return 0
