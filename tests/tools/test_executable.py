# SPDX-License-Identifier: Apache-2.0
"""The start of an executable: what it leaves on the disk, removes, and says when it is incomplete."""

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# It says that it runs, and does so until its input ends.
GREET = 'def main():\n    print("hello", flush=True)\n    input()\n'
BUILD = """\
import sys, json, pathlib, executables
target, wheel, version, python, machine = sys.argv[1:]
program = executables.Program("greet", "greet:main", ())
executables.write(pathlib.Path(target), program, version, {python: [pathlib.Path(wheel)]}, machine)
"""
MONTHS_AGO = time.time() - 60 * 24 * 3600


def build(directory: Path, version: str) -> Path:
    """Builds the executable of a program with one module."""
    wheel, target = directory / f"greet-{version}-py3-none-any.whl", directory / f"greet_{version}"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greet.py", f"{GREET}# {version}\n")
    subprocess.run(
        [sys.executable, "-c", BUILD, target, wheel, version, PYTHON, platform.machine()],
        cwd=TOOLS,
        check=True,
    )
    return target


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """The environment of an executable: this Python, and a directory for what it unpacks."""
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    (bin_directory / "python3").symlink_to(sys.executable)
    return {
        "PATH": f"{bin_directory}:{os.environ['PATH']}",
        "PIPECD_EXECUTABLES": str(tmp_path / "unpacked"),
    }


def run(file: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [file], env=variables, input="\n", capture_output=True, text=True, check=False
    )


def unpacked(variables: dict[str, str]) -> dict[str, Path]:
    """The directories of the unpacked versions."""
    directories = Path(variables["PIPECD_EXECUTABLES"]).iterdir()
    return {directory.name.split("-")[1]: directory for directory in directories}


@contextmanager
def running(argv: list[Path | str], variables: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello\n"
        yield
        process.communicate("\n")


def test_a_version_that_is_not_started_for_a_month_is_removed(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    assert run(build(tmp_path, "1"), variables).stdout == "hello\n"
    os.utime(unpacked(variables)["1"], (MONTHS_AGO, MONTHS_AGO))
    assert run(build(tmp_path, "2"), variables).stdout == "hello\n"
    assert list(unpacked(variables)) == ["2"]


def test_a_version_that_still_runs_is_not_removed(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    with running([build(tmp_path, "1")], variables):
        os.utime(unpacked(variables)["1"], (MONTHS_AGO, MONTHS_AGO))
        assert run(build(tmp_path, "2"), variables).stdout == "hello\n"
        assert sorted(unpacked(variables)) == ["1", "2"]
    assert run(build(tmp_path, "3"), variables).stdout == "hello\n"
    assert sorted(unpacked(variables)) == ["2", "3"]


def test_a_version_of_which_only_another_program_runs_is_not_removed(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """Such as the supervisor of processes, which outlives the piped that started it."""
    assert run(build(tmp_path, "1"), variables).stdout == "hello\n"
    python = unpacked(variables)["1"] / "bin" / "python"
    with running([python, "-P", "-c", "import greet; greet.main()"], variables):
        os.utime(unpacked(variables)["1"], (MONTHS_AGO, MONTHS_AGO))
        assert run(build(tmp_path, "2"), variables).stdout == "hello\n"
        assert sorted(unpacked(variables)) == ["1", "2"]


def test_what_an_interrupted_start_has_left_does_not_stop_the_next_one(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """Also if it had the same process id, as in a container, where every start has."""
    file = build(tmp_path, "1")
    with zipfile.ZipFile(file) as archive:
        release = json.loads(archive.read("release.json"))
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    key = hashlib.sha256(f"{release['digest']} {base}".encode()).hexdigest()[:16]
    left = Path(variables["PIPECD_EXECUTABLES"], f"greet-1-{key}")
    left.mkdir(parents=True)
    left.rmdir()
    start = f'mkdir "{left}.$$" && exec "$0"'
    done = subprocess.run(
        ["/bin/sh", "-c", start, file],
        env=variables,
        input="\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")
    [partial] = [path for path in left.parent.iterdir() if path.name.startswith(f"{left.name}.")]
    os.utime(partial, (MONTHS_AGO, MONTHS_AGO))
    assert run(build(tmp_path, "2"), variables).stdout == "hello\n"
    assert not partial.exists()


def cut(file: Path, part: float) -> tuple[int, int]:
    """Cuts off the end of a file; returns its size before and after."""
    content = file.read_bytes()
    size = int(len(content) * part)
    file.write_bytes(content[:size])
    return len(content), size


@pytest.mark.parametrize("part", [0.2, 0.5, 0.999])
def test_an_incomplete_download_says_so(
    tmp_path: Path, variables: dict[str, str], part: float
) -> None:
    file = build(tmp_path, "1")
    whole, size = cut(file, part)
    done = run(file, variables)
    assert (done.returncode, done.stderr) == (
        1,
        f"greet_1 cannot start: it has {size} of {whole} bytes, download it again\n",
    )


def test_an_incomplete_download_says_so_to_python(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    file = build(tmp_path, "1")
    cut(file, 0.5)
    done = subprocess.run(
        [sys.executable, file], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "this file is incomplete: download it again" in done.stderr
    assert "null bytes" not in done.stderr
