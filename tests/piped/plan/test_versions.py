# SPDX-License-Identifier: Apache-2.0
"""The versions of a deployment."""

from pipecd.piped.plan.versions import merge_versions
from pipecd.proto.model.common_pb2 import ArtifactVersion


def test_every_plugin_adds_its_versions_once() -> None:
    a, b = ArtifactVersion(version="v1", name="web"), ArtifactVersion(version="v1", name="job")
    assert merge_versions([[a], [b, a], []]) == (a, b)


def test_nothing_known_is_said_as_such() -> None:
    (unknown,) = merge_versions([[], []])
    assert (unknown.kind, unknown.version) == (ArtifactVersion.UNKNOWN, "unknown")
