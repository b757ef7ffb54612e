# SPDX-License-Identifier: Apache-2.0
"""Which versions a deployment brings, from what its plugins say."""

from collections.abc import Iterable, Sequence

from pipecd.proto.model.common_pb2 import ArtifactVersion

UNKNOWN = ArtifactVersion(kind=ArtifactVersion.UNKNOWN, version="unknown")


def merge_versions(answers: Iterable[Sequence[ArtifactVersion]]) -> tuple[ArtifactVersion, ...]:
    """Every version once, in the order the plugins were asked; nothing known is said as such."""
    merged: list[ArtifactVersion] = []
    for answer in answers:
        merged += [version for version in answer if version not in merged]
    return tuple(merged) or (UNKNOWN,)
