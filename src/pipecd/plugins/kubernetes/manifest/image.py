# SPDX-License-Identifier: Apache-2.0
"""Container images of workloads."""

from collections.abc import Iterator
from dataclasses import dataclass

from pipecd.plugins.kubernetes.manifest.body import list_at, text_at
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.manifest.pod import CONTAINERS, INIT_CONTAINERS, pod_path


@dataclass(frozen=True)
class Image:
    """An image reference taken apart; the tag is the digest when there is nothing else."""

    reference: str
    name: str
    tag: str

    @classmethod
    def of(cls, reference: str) -> "Image":
        """Takes a reference apart; a port of the registry is no tag."""
        path, _, digest = reference.partition("@")
        name, _, tag = path.rpartition("/")[2].partition(":")
        return cls(reference, name, tag or digest)


def images(manifest: Manifest) -> Iterator[Image]:
    """Yields the images of the containers of a pod template."""
    return _images(manifest, ("spec", "template", "spec"), CONTAINERS)


def all_images(manifest: Manifest) -> Iterator[Image]:
    """Yields the images of all containers, also of those that come first and of Jobs to be."""
    for field in (INIT_CONTAINERS, CONTAINERS):
        yield from _images(manifest, pod_path(manifest), field)


def _images(manifest: Manifest, path: tuple[str, ...], field: str) -> Iterator[Image]:
    for container in list_at(manifest.body, *path, field):
        reference = text_at(container, "image")
        if reference:
            yield Image.of(reference)
