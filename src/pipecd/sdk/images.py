# SPDX-License-Identifier: Apache-2.0
"""References to container images."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Image:
    """An image reference; the tag is the digest if there is no tag."""

    reference: str
    name: str
    tag: str

    @classmethod
    def of(cls, reference: str) -> "Image":
        """Parses a reference; the port of a registry is no tag."""
        path, _, digest = reference.partition("@")
        name, _, tag = path.rpartition("/")[2].partition(":")
        return cls(reference, name, tag or digest)
