# SPDX-License-Identifier: Apache-2.0
"""SCRIPT_RUN runs a script with the facts of the deployment, and takes it along when stopped."""

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
    assert bench.host.plugin_metadata == {"started-0": "_"}


async def test_git_of_a_script_takes_the_way_of_piped_over_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    way = {"GIT_SSH_COMMAND": "ssh -F of-piped", "PASSWORD": "of-piped"}
    monkeypatch.setattr(bench.host, "git_variables", lambda _: way)
    await bench.run("SCRIPT_RUN", {"run": "echo $GIT_SSH_COMMAND, $PASSWORD"})
    assert bench.host.lines[0] == "ssh -F of-piped,"


async def test_a_script_that_fails_says_how(tmp_path: Path) -> None:
    result = await StageBench(PLUGIN(), tmp_path).run(
        "SCRIPT_RUN", {"run": "echo no luck >&2; exit 7"}
    )
    assert result.status is StageStatus.FAILURE
    assert result.message == "The script exited with code 7: no luck"


async def test_a_script_knows_what_is_deployed(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path, labels={"env": "prod"}, commander="")
    script = "env | grep ^SR_ | grep -v RAW | sort; echo $SR_CONTEXT_RAW > raw; echo $WHO $HOME"
    await bench.run("SCRIPT_RUN", {"run": script, "env": {"WHO": "me", "SR_SUMMARY": "mine"}})
    deployment = bench.deployment()
    known = dict(line.split("=", 1) for line in bench.host.lines if line.startswith("SR_"))
    assert int(known.pop("SR_TRIGGERED_AT")) <= deployment.created_at
    assert known == {
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


async def test_lines_are_there_while_the_script_runs(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    script = "echo one; while [ ! -e go ]; do sleep 0.01; done; printf 'two, unfinished'"
    running = asyncio.ensure_future(bench.run("SCRIPT_RUN", {"run": script}))
    async with asyncio.timeout(10):
        await bench.host.until(lambda: bench.host.lines == ["one"])
        (tmp_path / "go").touch()
        await running
    assert bench.host.lines == ["one", "two, unfinished", "The script succeeded"]


async def test_bytes_that_are_no_text_and_endless_lines_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 4 + b"\n" + b"x" * 1_000_000 + b"\nend\n")
    bench = StageBench(PLUGIN(), tmp_path)
    result = await bench.run("SCRIPT_RUN", {"run": "cat binary"})
    assert result.status is StageStatus.SUCCESS
    assert max(map(len, bench.host.lines)) <= 32 << 10
    assert sum(line.count("x") for line in bench.host.lines) >= 1_000_000, "nothing is lost"
    assert bench.host.lines[-2] == "end"


async def test_a_script_that_asks_gets_no_answer(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    async with asyncio.timeout(10):
        await bench.run("SCRIPT_RUN", {"run": 'read answer; echo "[$answer]"'})
    assert bench.host.lines[0] == "[]"


async def test_a_script_is_undone_only_if_it_was_started(tmp_path: Path) -> None:
    options = {"run": "true", "onRollback": "echo $SR_IS_ROLLBACK > undone"}
    bench = StageBench(PLUGIN(), tmp_path)
    result = await bench.run("SCRIPT_RUN_ROLLBACK", options, index=2, is_rollback=True)
    assert result.status is StageStatus.SUCCESS
    assert not (tmp_path / "undone").exists()
    await bench.run("SCRIPT_RUN", options, index=2)
    await bench.run("SCRIPT_RUN_ROLLBACK", options, index=2, is_rollback=True)
    assert (tmp_path / "undone").read_text() == "true\n"


@pytest.mark.parametrize(
    ("config", "rollback", "names"),
    [
        pytest.param(b'{"run": "a", "onRollback": "b"}', True, ["SCRIPT_RUN", "SCRIPT_RUN_ROLLBACK"], id="what undoes it comes along"),
        pytest.param(b'{"run": "a", "onRollback": "b"}', False, ["SCRIPT_RUN"], id="unless rollbacks are off"),
        pytest.param(b'{"run": "a"}', True, ["SCRIPT_RUN"], id="or there is nothing to run"),
    ],
)  # fmt: skip
async def test_the_plan(config: bytes, rollback: bool, names: list[str]) -> None:
    requested = RequestedStage("SCRIPT_RUN", 4, "", config)
    planned = await PLUGIN().plan_stage(requested, rollback=rollback)
    assert [(p.name, p.index, p.is_rollback) for p in planned] == [
        (name, 4, name != "SCRIPT_RUN") for name in names
    ]


async def test_a_stage_without_a_script_is_not_planned() -> None:
    with pytest.raises(UserMistake, match="SCRIPT_RUN stage requires run field"):
        await PLUGIN().plan_stage(RequestedStage("SCRIPT_RUN", 0, "", b"{}"), rollback=True)


@pytest.mark.slow
async def test_a_stopped_stage_takes_its_whole_script_along(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    script = "(sleep 60; echo late > late) & echo $! $$; wait"
    running = asyncio.ensure_future(bench.run("SCRIPT_RUN", {"run": script}))
    await bench.host.until(lambda: bool(bench.host.lines))
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    for pid in bench.host.lines[0].split():
        assert not is_running(int(pid)), "nothing is left running"
