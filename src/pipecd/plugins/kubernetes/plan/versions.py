# SPDX-License-Identifier: Apache-2.0
"""Which versions an application's manifests deploy."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from pipecd.plugins.kubernetes.manifest.image import Image
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import Version

Images: TypeAlias = Callable[[Manifest], Iterable[Image]]
"""Returns the images of an object that count."""


def versions(manifests: Iterable[Manifest], images: Images) -> list[Version]:
    """Returns every image once, in the order of the manifests."""
    found = dict.fromkeys(image for manifest in manifests for image in images(manifest))
    return [Version(image.tag, name=image.name, url=image.reference) for image in found]
