# SPDX-License-Identifier: Apache-2.0
"""What the author of a plugin gets: options, metadata, commands, programs, and results as asked."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pipecd.sdk import (
    Duration,
    PipecdError,
    Spec,
    Stage,
    StageCommandKind,
    StageContext,
    StagePlugin,
    StageResult,
    StageStatus,
    UserMistake,
)
from pipecd.sdk.testing import StageBench

Body = Callable[[StageContext], Awaitable[StageResult]]


class Options(Spec):
    wait_for: Duration = Duration(1)
    name: str = ""


class Scripted(StagePlugin):
    """A plugin whose stage does what the test says."""

    stages = (Stage("ACT", Options),)

    def __init__(self, body: Body) -> None:
        self._body = body

    async def execute(self, stage: StageContext) -> StageResult:
        return await self._body(stage)


def bench(tmp_path: Path, body: Body) -> StageBench:
    return StageBench(Scripted(body), tmp_path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"waitFor": "1h30m", "name": "x"}, "5400 x", id="values as files write them"),
        pytest.param({}, "1 ", id="nothing means the defaults"),
        pytest.param({"waitFor": "soon"}, 'stage ACT: waitFor: invalid duration "soon"', id="a wrong value is named"),
        pytest.param({"waitFor": True, "name": 5}, "name: must be a string, not a number, put it in quotes", id="every wrong value is named"),
    ],
)  # fmt: skip
async def test_options(tmp_path: Path, given: dict[str, object], told: str) -> None:
    async def body(stage: StageContext) -> StageResult:
        options = stage.options(Options)
        return StageResult.succeeded(f"{options.wait_for:g} {options.name}")

    assert told in (await bench(tmp_path, body).run("ACT", given)).message


@pytest.mark.parametrize(
    ("ends", "status", "line"),
    [
        pytest.param(StageResult.succeeded("done"), StageStatus.SUCCESS, "done", id="success"),
        pytest.param(StageResult.failed("no"), StageStatus.FAILURE, "no", id="failure"),
        pytest.param(StageResult.exited("early"), StageStatus.EXITED, "early", id="exit"),
        pytest.param(StageResult.skipped("not now"), StageStatus.SKIPPED, "not now", id="skip"),
        pytest.param(StageResult(StageStatus.RUNNING), StageStatus.FAILURE, "plugin tested answered RUNNING, which is not an ending", id="not an ending at all"),
        pytest.param(UserMistake("wrong", hint="write x"), StageStatus.FAILURE, "wrong; write x", id="an expected error"),
        pytest.param(PipecdError("broken"), StageStatus.FAILURE, "broken", id="an error of its own"),
        pytest.param(KeyError("oops"), StageStatus.FAILURE, "plugin tested failed: KeyError: 'oops'", id="a bug"),
    ],
)  # fmt: skip
async def test_however_a_stage_ends_people_read_why(
    tmp_path: Path, ends: StageResult | Exception, status: StageStatus, line: str
) -> None:
    async def body(stage: StageContext) -> StageResult:
        if isinstance(ends, Exception):
            raise ends
        return ends

    tried = bench(tmp_path, body)
    result = await tried.run("ACT")
    assert (result.status, tried.host.lines[-1]) == (status, line)
    assert tried.host.is_log_completed


async def test_commands_arrive_once_and_at_once(tmp_path: Path) -> None:
    heard: list[tuple[str, str]] = []

    async def body(stage: StageContext) -> StageResult:
        async for command in stage.commands():
            heard.append((command.kind.value, command.commander))
            if len(heard) == 3:
                break
            tried.host.tell(StageCommandKind.SKIP, f"bob {len(heard)}")
        return StageResult.succeeded()

    tried = bench(tmp_path, body)
    tried.host.tell(StageCommandKind.APPROVE, "ann")
    async with asyncio.timeout(1):
        await tried.run("ACT")
    assert heard == [("approve", "ann"), ("skip", "bob 1"), ("skip", "bob 2")]


async def test_what_a_stage_remembers(tmp_path: Path) -> None:
    async def body(stage: StageContext) -> StageResult:
        before = (
            await stage.metadata.get("seen"),
            await stage.shared.get("seen"),
            await stage.objects.get("seen"),
        )
        await stage.metadata.put({"seen": ""})
        await stage.shared.put({"seen": "plugin"})
        await stage.objects.put("seen", b"object")
        assert await stage.shared.of_all_plugins("who") == "everyone"
        return StageResult.succeeded(repr(before))

    tried = bench(tmp_path, body)
    tried.host.shared_metadata["who"] = "everyone"
    assert (await tried.run("ACT")).message == "(None, None, None)"
    assert (await tried.run("ACT")).message == "('', 'plugin', b'object')"


async def test_a_program_writes_to_the_log_of_its_stage(tmp_path: Path) -> None:
    async def body(stage: StageContext) -> StageResult:
        code = "import os; print(os.getcwd()); print(); print(os.environ['WHO'])"
        done = await stage.run([sys.executable, "-c", code], env={"WHO": "ann"})
        return StageResult.succeeded(f"{done.code} {done.last_line}")

    tried = bench(tmp_path, body)
    assert (await tried.run("ACT")).message == "0 ann"
    assert tried.host.lines == [str(tmp_path), " ", "ann", "0 ann"]


async def test_a_tool_is_installed_by_piped(tmp_path: Path) -> None:
    async def body(stage: StageContext) -> StageResult:
        return StageResult.succeeded(str(await stage.tool("kubectl", "1.30.0", "curl …")))

    tried = bench(tmp_path, body)
    tried.host.tools["kubectl-1.30.0"] = tmp_path / "kubectl"
    assert (await tried.run("ACT")).message == str(tmp_path / "kubectl")
