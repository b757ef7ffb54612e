# SPDX-License-Identifier: Apache-2.0
"""A stepped clock counts as a fault only if the program notices it."""

from pathlib import Path

import pytest

from faults.program import CURRENT, Program, Release

BIN = Path("/opt/pipecd/bin")


@pytest.mark.parametrize(
    ("release", "has_library", "is_stepped"),
    [
        (CURRENT, False, True),
        (Release(sources=Path("/src")), False, True),
        (Release(executables=BIN), True, True),
        (Release(executables=BIN), False, False),
        (Release(upstream_piped=BIN / "piped"), True, False),
    ],
)
def test_a_clock_steps_if_the_program_can_be_given_another_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: Release,
    has_library: bool,
    is_stepped: bool,
) -> None:
    library = tmp_path / "libfaketime.so.1"
    if has_library:
        library.touch()
    monkeypatch.setenv("PIPECD_LIBFAKETIME", str(library))
    program = Program("piped", tmp_path, ["piped"], release=release)
    assert program.step_clock(60) is is_stepped
    # It has this time already.
    assert not program.step_clock(60)
