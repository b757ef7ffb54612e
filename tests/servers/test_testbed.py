# SPDX-License-Identifier: Apache-2.0
"""Programs come from the testbed, the PATH or a variable; CI fails if one is missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers.programs import TESTBED, NotInstalled, built_program, find, skip_or_fail


def run_testbed(
    *arguments: str, cache: Path, left_out: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TESTBED, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PIPECD_TESTBED_SKIP": left_out},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_that_was_not_built_has_no_path(tmp_path: Path) -> None:
    done = run_testbed("path", "dex", cache=tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, "")


def test_a_program_without_a_recipe_is_reported(tmp_path: Path) -> None:
    done = run_testbed("emacs", cache=tmp_path)
    assert done.returncode == 2
    assert "no recipe for emacs; available: envoy, rclone, axe, dex" in done.stderr


@pytest.mark.parametrize("left_out", ["all", "dex, dolt"])
def test_skipped_programs_are_not_built(tmp_path: Path, left_out: str) -> None:
    done = run_testbed("dex", "dolt", cache=tmp_path, left_out=left_out)
    assert done.returncode == 0
    assert done.stdout.count("is skipped because of PIPECD_TESTBED_SKIP") == 2
    assert not list(tmp_path.iterdir())


def test_a_program_may_be_on_the_path_or_named_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PIPECD_DEX", raising=False)
    with pytest.raises(NotInstalled, match="make testbed builds it, or PIPECD_DEX names its path"):
        built_program("dex")
    monkeypatch.setenv("PIPECD_DEX", "/somewhere/dex")
    assert built_program("dex") == "/somewhere/dex"
    (tmp_path / "dex").touch(mode=0o755)
    assert built_program("dex") == str(tmp_path / "dex")


def test_a_missing_system_program_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotInstalled, match=r"no-such-server is not installed: tools/test_packages"):
        find("no-such-server")


@pytest.mark.parametrize(
    ("ci", "left_out", "ending"),
    [
        pytest.param("", "", pytest.skip.Exception, id="a test is skipped"),
        pytest.param("true", "", pytest.fail.Exception, id="but fails in CI"),
        pytest.param("true", "dolt", pytest.fail.Exception, id="also if another is left out"),
        pytest.param("true", "dolt dex", pytest.skip.Exception, id="unless this one is left out"),
        pytest.param("true", "all", pytest.skip.Exception, id="or all are"),
    ],
)
def test_without_its_program(
    ci: str, left_out: str, ending: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PIPECD_TESTBED_SKIP", left_out)
    with pytest.raises(ending, match="dex is not installed: build it"):
        skip_or_fail(NotInstalled("dex", "build it"))
