# SPDX-License-Identifier: Apache-2.0
"""Texts of others are no workflow commands in the log of a job of GitHub Actions."""

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.commandline.main import fail, run
from pipecd.pipectl.cli import tree
from pipecd.pipectl.output import print_table
from pipectl.test_terminal import previewed
from servers.control_plane import StartControlPlane

COMMANDS = ("set-output", "add-mask", "error", "stop-commands", "group")
HOSTILE = """line
::set-output name=x::y
  ::add-mask::e
diff ##[add-mask]e
::stop-commands::guess
::guess::
::error file=a,line=1::b"""


def obeyed(log: str) -> list[str]:
    """The commands in a log that GitHub's runner obeys, besides those that stop and resume it."""
    found: list[str] = []
    token = ""
    for line in log.splitlines():
        command = re.match(r"\s*::(?P<name>[^ :]+).*?::(?P<data>.*)", line) or re.search(
            r"##\[(?P<name>[^ \]]+).*?\](?P<data>.*)", line
        )
        if command is None:
            continue
        if token:
            token = "" if command["name"] == token else token
        elif command["name"] == "stop-commands":
            token = command["data"]
        elif command["name"] in COMMANDS:
            found.append(command["name"])
    return [*found, *(["stopped at the end"] if token else [])]


@pytest.fixture
def in_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")


def test_the_runner_obeys_the_text_alone() -> None:
    assert obeyed(HOSTILE.replace("::stop-commands::guess\n", "")) == [
        "set-output",
        "add-mask",
        "add-mask",
        "error",
    ]


@pytest.mark.usefixtures("in_actions")
async def test_a_plan_preview_of_a_branch_has_no_commands(
    start_plane: StartControlPlane,
    typed_at: Any,
    piped_with_repository: Callable[[Any], Awaitable[str]],
    tmp_path: Path,
) -> None:
    async with start_plane() as plane:
        piped = await piped_with_repository(plane)
        flags = f"--out {tmp_path}/out.json --comment-out {tmp_path}/comment.md"
        code, out, err = await previewed(plane, typed_at, piped, flags)(HOSTILE)
    assert code == 0
    assert HOSTILE in out
    assert obeyed(out) == obeyed(err) == []
    # What programs read is not changed.
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["Applications"][0]["PlanDetails"] == HOSTILE
    assert (tmp_path / "comment.md").read_text().startswith("<!-- pipecd plan-preview -->")
    assert not re.search("::[0-9a-f]{32}", (tmp_path / "comment.md").read_text())


@pytest.mark.usefixtures("in_actions")
def test_tables_and_errors_have_no_commands(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME"], [["::add-mask::e"], ["##[add-mask]e"]])
    assert fail(f"the deployment failed: \n{HOSTILE}") == 1
    shown = capsys.readouterr()
    assert "::add-mask::e" in shown.out
    assert "diff ## [add-mask]e\n: :stop-commands::guess\n" in shown.err
    assert obeyed(shown.out) == obeyed(shown.err) == []


@pytest.mark.usefixtures("in_actions")
def test_findings_of_lint_have_no_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "app.pipecd.yaml"
    file.write_text(
        "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  timeout: '##[add-mask]e'\n"
    )
    assert run(tree(), ["lint", str(file)]) == 1
    shown = capsys.readouterr()
    assert "##[add-mask]e" in shown.out
    assert obeyed(shown.out) == obeyed(shown.err) == []
    assert run(tree(), ["lint", "--output", "json", str(file)]) == 1
    assert "##[add-mask]e" in json.loads(capsys.readouterr().out)[0]["message"]


@pytest.mark.usefixtures("in_actions")
async def test_json_and_ids_are_printed_as_everywhere(
    start_plane: StartControlPlane,
    typed_at: Any,
) -> None:
    async with start_plane() as plane:
        code, out, _ = await typed_at(plane)("application list")
        assert (code, out) == (0, "{}\n")
        assert (await typed_at(plane)("application list --output name"))[1] == ""


def test_elsewhere_nothing_is_added(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    print_table(["NAME"], [["::add-mask::e"]])
    fail(HOSTILE)
    shown = capsys.readouterr()
    assert shown.out == "NAME\n::add-mask::e\n"
    assert HOSTILE in shown.err
