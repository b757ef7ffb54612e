# SPDX-License-Identifier: Apache-2.0
"""A stage of a plugin has options, metadata, commands of users, programs and a result."""

import asyncio
import errno
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


def stage_bench(tmp_path: Path, body: Body) -> StageBench:
    return StageBench(Scripted(body), tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param({"waitFor": "1h30m", "name": "x"}, "5400 x", id="values as files write them"),
        pytest.param({}, "1 ", id="no options mean the defaults"),
        pytest.param({"waitFor": "soon"}, 'stage ACT: waitFor: invalid duration "soon"', id="an invalid value is reported"),
        pytest.param({"waitFor": True, "name": 5}, "name: must be a string, not a number, put it in quotes", id="every invalid value is reported"),
    ],
)  # fmt: skip
async def test_options_are_validated(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    async def body(stage: StageContext) -> StageResult:
        options = stage.options(Options)
        return StageResult.succeeded(f"{options.wait_for:g} {options.name}")

    assert message in (await stage_bench(tmp_path, body).run("ACT", given)).message


@pytest.mark.parametrize(
    ("outcome", "status", "line"),
    [
        pytest.param(StageResult.succeeded("done"), StageStatus.SUCCESS, "done", id="success"),
        pytest.param(StageResult.failed("no"), StageStatus.FAILURE, "no", id="failure"),
        pytest.param(StageResult.exited("early"), StageStatus.EXITED, "early", id="exit"),
        pytest.param(StageResult.skipped("not now"), StageStatus.SKIPPED, "not now", id="skip"),
        pytest.param(StageResult(StageStatus.RUNNING), StageStatus.FAILURE, "plugin tested returned RUNNING, which is not a final status", id="a status that is not final"),
        pytest.param(UserMistake("wrong", hint="write x"), StageStatus.FAILURE, "wrong; write x", id="an expected error"),
        pytest.param(PipecdError("broken"), StageStatus.FAILURE, "broken", id="a PipecdError"),
        pytest.param(KeyError("oops"), StageStatus.FAILURE, "plugin tested failed: KeyError: 'oops'", id="a bug"),
        pytest.param(OSError(errno.ENOSPC, "No space left"), StageStatus.FAILURE, "the disk of piped is full: free some space and deploy again ([Errno 28] No space left)", id="a full disk"),
    ],
)  # fmt: skip
async def test_the_last_line_of_the_log_explains_the_result(
    tmp_path: Path, outcome: StageResult | Exception, status: StageStatus, line: str
) -> None:
    async def body(stage: StageContext) -> StageResult:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    bench = stage_bench(tmp_path, body)
    result = await bench.run("ACT")
    assert (result.status, bench.host.lines[-1]) == (status, line)
    assert bench.host.is_log_completed


async def test_every_command_arrives_once_and_immediately(tmp_path: Path) -> None:
    received: list[tuple[str, str]] = []

    async def body(stage: StageContext) -> StageResult:
        async for command in stage.commands():
            received.append((command.kind.value, command.commander))
            if len(received) == 3:
                break
            bench.host.tell(StageCommandKind.SKIP, f"bob {len(received)}")
        return StageResult.succeeded()

    bench = stage_bench(tmp_path, body)
    bench.host.tell(StageCommandKind.APPROVE, "ann")
    async with asyncio.timeout(1):
        await bench.run("ACT")
    assert received == [("approve", "ann"), ("skip", "bob 1"), ("skip", "bob 2")]


async def test_metadata_and_objects_survive_a_stage(tmp_path: Path) -> None:
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

    bench = stage_bench(tmp_path, body)
    bench.host.shared_metadata["who"] = "everyone"
    assert (await bench.run("ACT")).message == "(None, None, None)"
    assert (await bench.run("ACT")).message == "('', 'plugin', b'object')"


async def test_a_program_writes_to_the_log_of_its_stage(tmp_path: Path) -> None:
    async def body(stage: StageContext) -> StageResult:
        code = "import os; print(os.getcwd()); print(); print(os.environ['WHO'])"
        done = await stage.run([sys.executable, "-c", code], env={"WHO": "ann"})
        return StageResult.succeeded(f"{done.code} {done.last_line}")

    bench = stage_bench(tmp_path, body)
    assert (await bench.run("ACT")).message == "0 ann"
    assert bench.host.lines == [str(tmp_path), " ", "ann", "0 ann"]


async def test_a_tool_is_installed_by_piped(tmp_path: Path) -> None:
    async def body(stage: StageContext) -> StageResult:
        return StageResult.succeeded(str(await stage.tool("kubectl", "1.30.0", "curl …")))

    bench = stage_bench(tmp_path, body)
    bench.host.tools["kubectl-1.30.0"] = tmp_path / "kubectl"
    assert (await bench.run("ACT")).message == str(tmp_path / "kubectl")
