# SPDX-License-Identifier: Apache-2.0
"""A test run says where its time went and which tests are flaky."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def run_pytest(directory: Path, *arguments: str, repeated: bool = False) -> str:
    """Runs the tests of a directory with the report, which writes below that directory."""
    plugin = (TESTS / "report.py").read_text()
    (directory / "tests").mkdir(exist_ok=True)
    (directory / "tests/report.py").write_text(plugin)
    # Without a root a file such as setup.py in a directory above would name it.
    options = (f"--rootdir={directory}", "-q", "-p", "report")
    outer = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments, "tests"],
        cwd=directory,
        env={
            **outer,
            "PYTHONPATH": str(directory / "tests"),
            "PIPECD_TESTS_REPEATED": "1" if repeated else "0",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.fixture
def passing(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_one.py").write_text("def test_one(): pass\n")
    return tmp_path


def test_a_test_that_passes_when_repeated_is_recorded_as_flaky(passing: Path) -> None:
    printed = run_pytest(passing, repeated=True)
    assert "FLAKY tests/test_one.py::test_one" in printed
    assert "tests/test_one.py::test_one" in (passing / "build/flaky.txt").read_text()


def test_a_test_that_passes_at_once_is_not_flaky(passing: Path) -> None:
    assert "FLAKY" not in run_pytest(passing)
    assert not (passing / "build").exists()


def test_a_run_with_durations_prints_the_seconds_per_directory(passing: Path) -> None:
    assert "seconds of test time per directory" in run_pytest(passing, "--durations", "3")


GROUPED = """
import os, pathlib, pytest
@pytest.mark.xdist_group("servers")
@pytest.mark.parametrize("text", ["a", "b c", "d@e", "f", "g", "h"])
def test_worker(text):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "none")
    pathlib.Path("workers", worker).touch()
    assert text in "afgh"
"""


def test_tests_of_a_group_share_a_worker_and_are_repeated_if_they_fail(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "workers").mkdir()
    (tmp_path / "tests/test_grouped.py").write_text(GROUPED)
    (tmp_path / "tests/test_other.py").write_text("def test_one(): pass\n")
    printed = run_pytest(tmp_path, "-n", "3", "--dist", "loadgroup")
    assert "2 failed, 5 passed" in printed
    assert "FAILED tests/test_grouped.py::test_worker[d@e] -" in printed
    assert len(list((tmp_path / "workers").iterdir())) == 1
    repeated = run_pytest(tmp_path, "--last-failed", repeated=True)
    assert "2 failed" in repeated
