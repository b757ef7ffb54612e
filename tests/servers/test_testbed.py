# SPDX-License-Identifier: Apache-2.0
"""Programs are found in the testbed, on this machine, or as told; CI misses none silently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers.programs import TESTBED, NotInstalled, built_program, find, skip_or_fail


def ask_testbed(
    *arguments: str, cache: Path, left_out: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, TESTBED, *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), "PIPECD_TESTBED_SKIP": left_out},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_program_that_was_not_made_has_no_path(tmp_path: Path) -> None:
    asked = ask_testbed("path", "dex", cache=tmp_path)
    assert (asked.returncode, asked.stdout.strip()) == (0, "")


def test_a_program_without_a_recipe_is_told(tmp_path: Path) -> None:
    asked = ask_testbed("emacs", cache=tmp_path)
    assert asked.returncode == 2
    assert "no recipe for emacs; there are envoy, dex" in asked.stderr


@pytest.mark.parametrize("left_out", ["all", "dex, dolt"])
def test_what_is_left_out_is_not_made(tmp_path: Path, left_out: str) -> None:
    asked = ask_testbed("dex", "dolt", cache=tmp_path, left_out=left_out)
    assert asked.returncode == 0
    assert asked.stdout.count("is left out by PIPECD_TESTBED_SKIP") == 2
    assert not list(tmp_path.iterdir())


def test_a_program_may_be_on_this_machine_or_told(
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


def test_a_missing_program_of_the_system_is_told(
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
