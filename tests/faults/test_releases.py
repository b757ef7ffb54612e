# SPDX-License-Identifier: Apache-2.0
"""Which release an operator installs next."""

from pathlib import Path

import pytest

from faults.program import CURRENT, Program, Release
from faults.workload import next_release

EARLIER = Release(sources=Path("/earlier/src"))
RELEASES = {"new": CURRENT, "earlier": EARLIER}


@pytest.mark.parametrize(
    ("releases", "installed", "expected"),
    [
        pytest.param(RELEASES, CURRENT, ("the earlier version", EARLIER), id="a downgrade"),
        pytest.param(RELEASES, EARLIER, ("the new version", CURRENT), id="then an upgrade"),
        pytest.param({}, CURRENT, ("the same version", CURRENT), id="without releases"),
        pytest.param(RELEASES, Release(), ("the earlier version", EARLIER), id="an equal release"),
    ],
)
def test_which_release_is_next(
    tmp_path: Path,
    releases: dict[str, Release],
    installed: Release,
    expected: tuple[str, Release],
) -> None:
    program = Program("replica-0", tmp_path, ["pipecd"], release=installed)
    assert next_release(releases, program) == expected
