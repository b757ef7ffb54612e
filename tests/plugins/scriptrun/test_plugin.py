# SPDX-License-Identifier: Apache-2.0
"""The stage SCRIPT_RUN: environment, log lines, rollback and cancellation."""

import asyncio
import json
from pathlib import Path

import pytest

from pipecd.plugins.scriptrun.plugin import PLUGIN
from pipecd.sdk import RequestedStage, StageStatus, UserMistake
from pipecd.sdk.testing import StageBench
from servers.server import is_running


async def test_a_script_runs_in_the_directory_of_the_application(tmp_path: Path) -> None:
    (tmp_path / "greeting.txt").write_text("Hello\n\nWorld\n")
    bench = StageBench(PLUGIN(), tmp_path)
    result = await bench.run("SCRIPT_RUN", {"run": "cat greeting.txt"})
    assert result.status is StageStatus.SUCCESS
    assert bench.host.lines == ["Hello", " ", "World", "The script succeeded"]
    assert bench.host.plugin_metadata == {}


async def test_a_script_has_the_ssh_command_of_piped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    variables = {"GIT_SSH_COMMAND": "ssh -F of-piped", "PASSWORD": "of-piped"}
    monkeypatch.setattr(bench.host, "git_variables", lambda _: variables)
    await bench.run("SCRIPT_RUN", {"run": "echo $GIT_SSH_COMMAND, $PASSWORD"})
    assert bench.host.lines[0] == "ssh -F of-piped,"


async def test_a_failed_script_fails_the_stage_with_its_last_line(tmp_path: Path) -> None:
    result = await StageBench(PLUGIN(), tmp_path).run(
        "SCRIPT_RUN", {"run": "echo no luck >&2; exit 7"}
    )
    assert result.status is StageStatus.FAILURE
    assert result.message == "The script exited with code 7: no luck"


async def test_a_script_has_variables_of_the_deployment(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path, labels={"env": "prod"}, commander="")
    script = "env | grep ^SR_ | grep -v RAW | sort; echo $SR_CONTEXT_RAW > raw; echo $WHO $HOME"
    await bench.run("SCRIPT_RUN", {"run": script, "env": {"WHO": "me", "SR_SUMMARY": "mine"}})
    deployment = bench.deployment()
    variables = dict(line.split("=", 1) for line in bench.host.lines if line.startswith("SR_"))
    assert int(variables.pop("SR_TRIGGERED_AT")) <= deployment.created_at
    assert variables == {
        "SR_DEPLOYMENT_ID": "deployment-1",
        "SR_APPLICATION_ID": "application-1",
        "SR_APPLICATION_NAME": "tested",
        "SR_TRIGGERED_COMMIT_HASH": "c0ffee",
        "SR_TRIGGERED_COMMANDER": "ann",
        "SR_REPOSITORY_URL": "https://git.example/x",
        "SR_SUMMARY": "mine",
        "SR_IS_ROLLBACK": "false",
        "SR_LABELS_ENV": "prod",
    }
    raw = json.loads((tmp_path / "raw").read_text())
    assert raw["labels"] == {"env": "prod"}
    assert raw["triggeredCommander"] == "ann"
    assert "isRollback" not in raw, "empty members are left out"
    assert any(line.startswith("me /") for line in bench.host.lines), "piped's own environment too"


async def test_log_lines_arrive_while_the_script_runs(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    script = "echo one; while [ ! -e go ]; do sleep 0.01; done; printf 'two, unfinished'"
    running = asyncio.ensure_future(bench.run("SCRIPT_RUN", {"run": script}))
    async with asyncio.timeout(10):
        await bench.host.until(lambda: bench.host.lines == ["one"])
        (tmp_path / "go").touch()
        await running
    assert bench.host.lines == ["one", "two, unfinished", "The script succeeded"]


async def test_binary_output_and_long_lines_are_logged(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4 + b"\n" + b"x" * 1_000_000 + b"\nend\n")
    bench = StageBench(PLUGIN(), tmp_path)
    result = await bench.run("SCRIPT_RUN", {"run": "cat binary"})
    assert result.status is StageStatus.SUCCESS
    assert max(map(len, bench.host.lines)) <= 32 << 10
    assert sum(line.count("x") for line in bench.host.lines) >= 1_000_000, "nothing is lost"
    assert bench.host.lines[-2] == "end"


async def test_the_standard_input_of_a_script_is_empty(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    async with asyncio.timeout(10):
        await bench.run("SCRIPT_RUN", {"run": 'read line; echo "[$line]"'})
    assert bench.host.lines[0] == "[]"


async def test_on_rollback_runs_only_if_the_script_was_started(tmp_path: Path) -> None:
    options = {"run": "true", "onRollback": "echo $SR_IS_ROLLBACK > undone"}
    bench = StageBench(PLUGIN(), tmp_path)
    result = await bench.run("SCRIPT_RUN_ROLLBACK", options, index=2, is_rollback=True)
    assert result.status is StageStatus.SUCCESS
    assert not (tmp_path / "undone").exists()
    await bench.run("SCRIPT_RUN", options, index=2)
    assert bench.host.plugin_metadata == {"started-2": "_"}
    await bench.run("SCRIPT_RUN_ROLLBACK", options, index=2, is_rollback=True)
    assert (tmp_path / "undone").read_text() == "true\n"


@pytest.mark.parametrize(
    ("config", "rollback", "names"),
    [
        pytest.param(b'{"run": "a", "onRollback": "b"}', True, ["SCRIPT_RUN", "SCRIPT_RUN_ROLLBACK"], id="with a rollback stage"),
        pytest.param(b'{"run": "a", "onRollback": "b"}', False, ["SCRIPT_RUN"], id="without rollback"),
        pytest.param(b'{"run": "a"}', True, ["SCRIPT_RUN"], id="without onRollback"),
    ],
)  # fmt: skip
async def test_the_planned_stages(config: bytes, rollback: bool, names: list[str]) -> None:
    requested = RequestedStage("SCRIPT_RUN", 4, "", config)
    planned = await PLUGIN().plan_stage(requested, rollback=rollback)
    assert [(p.name, p.index, p.is_rollback) for p in planned] == [
        (name, 4, name != "SCRIPT_RUN") for name in names
    ]


async def test_a_stage_without_a_script_is_not_planned() -> None:
    with pytest.raises(UserMistake, match="SCRIPT_RUN stage requires run field"):
        await PLUGIN().plan_stage(RequestedStage("SCRIPT_RUN", 0, "", b"{}"), rollback=True)


@pytest.mark.slow
async def test_a_cancelled_stage_kills_the_script_and_its_children(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    script = "(sleep 60; echo late > late) & echo $! $$; wait"
    running = asyncio.ensure_future(bench.run("SCRIPT_RUN", {"run": script}))
    await bench.host.until(lambda: bool(bench.host.lines))
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    for pid in bench.host.lines[0].split():
        assert not is_running(int(pid)), "no process is left"
