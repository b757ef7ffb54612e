# SPDX-License-Identifier: Apache-2.0
"""Which release an operator installs next, and what an earlier one can deploy."""

from pathlib import Path

import pytest

from faults.applications import Platform
from faults.campaign import known_platforms
from faults.program import CURRENT, Program, Release
from faults.releases import built_in_plugins
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


def test_a_platform_that_the_earlier_release_has_no_plugin_for_is_left_out(tmp_path: Path) -> None:
    about = tmp_path / "pipecd-0.dist-info"
    about.mkdir()
    (about / "entry_points.txt").write_text(
        "[console_scripts]\npiped = a:b\n[pipecd.plugins]\nscriptrun = c:D\nterraform = e:F\n"
    )
    plugins = built_in_plugins(Release(sources=tmp_path))
    assert plugins == {"scriptrun", "terraform"}
    assert known_platforms([*Platform], plugins) == [Platform.SCRIPT, Platform.TERRAFORM]
