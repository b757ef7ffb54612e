# SPDX-License-Identifier: Apache-2.0
"""Which versions of pipeds are newer."""

from datetime import UTC, datetime

import pytest

from pipecd.controlplane.console.piped_filters import is_older, mark_outdated, newest_version
from pipecd.controlplane.console.pipeds_view import piped_row
from pipecd.controlplane.usecases.pipeds import PipedActivity
from pipecd.proto.model.piped_pb2 import Piped

NOW = datetime(2026, 8, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("version", "newest", "expected"),
    [
        pytest.param("v0.9.0", "v0.10.0", True, id="numbers, not letters"),
        pytest.param("v1.0.0", "v1.0.0", False, id="the same"),
        pytest.param("v1.0.0-rc.1", "v1.0.0", True, id="a release candidate"),
        pytest.param("v1.0.0+dirty", "v1.0.0", False, id="metadata of the build"),
        pytest.param("unspecified", "v1.0.0", False, id="no version"),
        pytest.param("", "v1.0.0", False, id="not reported"),
        pytest.param("v1.0.0", "", False, id="nothing to compare with"),
    ],
)
def test_older(version: str, newest: str, *, expected: bool) -> None:
    assert is_older(version, newest) is expected


def test_the_newest_version() -> None:
    assert newest_version(["v0.9.0", "junk", "v0.10.1", "v0.10.0", ""]) == "v0.10.1"
    assert newest_version(["junk"]) == ""


def test_versions_of_upstream_are_compared_among_themselves() -> None:
    versions = {"a": "v0.1.0", "b": "v0.2.0", "c": "v0.50.0", "d": "v0.51.0", "e": "v0.1.0"}
    pipeds = [
        Piped(id=id, name=id, version=version, disabled=id == "e")
        for id, version in versions.items()
    ]
    rows = [piped_row(piped, PipedActivity(0, "", 0), NOW) for piped in pipeds]
    marked = mark_outdated(rows, {"a", "b", "e"}, "v0.3.0")
    assert {row.id: row.newer_version for row in marked if row.newer_version} == {
        "a": "v0.3.0",
        "b": "v0.3.0",
        "c": "v0.51.0",
    }
