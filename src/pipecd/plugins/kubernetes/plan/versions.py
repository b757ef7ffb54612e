# SPDX-License-Identifier: Apache-2.0
"""Which versions an application's manifests deploy."""

from collections.abc import Iterable

from pipecd.plugins.kubernetes.manifest.image import images
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import Version


def versions(manifests: Iterable[Manifest]) -> list[Version]:
    """Returns every image once, in the order of the manifests."""
    found = dict.fromkeys(image for manifest in manifests for image in images(manifest))
    return [Version(image.tag, name=image.name, url=image.reference) for image in found]
