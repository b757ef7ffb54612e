# SPDX-License-Identifier: Apache-2.0
"""Plugins that misbehave: undecodable responses, hanging calls, too many log lines."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from pipecd.config.piped import PluginSpec
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.pluginhost import remote
from pipecd.piped.pluginhost import tool_registry as tools
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.plugin import PluginDied
from pipecd.piped.pluginhost.process import PluginInstance, PluginLaunch, PluginTimeouts
from pipecd.piped.pluginhost.remote import RemotePlugin
from pipecd.piped.pluginhost.stage_logs import LogRelay
from pipecd.piped.pluginhost.tool_registry import Tool, ToolRegistry
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import host_pb2
from pipecd.proto.service import piped_pb2
from pipecd.sdk.log import TRUNCATED
from pipecd.sdk.serving import MAX_RESPONSE_BYTES, local_channel

Serve = Callable[[bytes, grpc.aio.ServicerContext[Any, Any]], Any]


class Anything(grpc.GenericRpcHandler):
    """Answers every call with the bytes of one function."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve

    def service(self, handler_call_details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._serve)


@asynccontextmanager
async def serving(serve: Serve) -> AsyncGenerator[tuple[RemotePlugin, PluginInstance], None]:
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((Anything(serve),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with local_channel(f"localhost:{port}") as channel:
            launch = PluginLaunch(PluginSpec(name="odd"), (), "")
            instance = PluginInstance(launch, PluginTimeouts(), lambda: None)
            instance._channel = channel

            async def connect() -> PluginInstance:
                return instance

            yield RemotePlugin("odd", connect), instance
    finally:
        await server.stop(0)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        pytest.param(b"\xff" * 40, "plugin odd returned a response that cannot be decoded", id="garbage"),
        pytest.param(b"\x12" + b"\xff\xff\xff\x7f" + b"x", "plugin odd returned a response that cannot be decoded", id="a length that lies"),
        pytest.param(bytes(MAX_RESPONSE_BYTES + 1), "plugin odd: .*larger than max", id="more than piped will hold"),
    ],
)  # fmt: skip
async def test_an_undecodable_response_is_an_error(content: bytes, error: str) -> None:
    async def serve(request: bytes, context: Any) -> bytes:
        return content

    async with serving(serve) as (plugin, _):
        with pytest.raises(PipecdError, match=error):
            await plugin.ExecuteStage(pb.ExecuteStageRequest())


async def test_an_unknown_stage_status_is_passed_to_the_caller() -> None:
    async def serve(request: bytes, context: Any) -> bytes:
        return b"\x08\xe7\x07"

    async with serving(serve) as (plugin, _):
        answered = await plugin.ExecuteStage(pb.ExecuteStageRequest())
    assert answered.status == 999


async def test_a_call_that_is_never_answered_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_DEADLINE", 0.2)

    async def serve(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with serving(serve) as (plugin, _):
        with pytest.raises(Unavailable, match="plugin odd did not answer in time"):
            await plugin.DetermineVersions(pb.DetermineVersionsRequest())


async def test_a_channel_closed_during_a_call_does_not_cancel_the_caller() -> None:
    called = asyncio.Event()

    async def serve(request: bytes, context: Any) -> bytes:
        called.set()
        await asyncio.sleep(30)
        return b""

    async with serving(serve) as (plugin, instance):
        call = asyncio.ensure_future(plugin.ExecuteStage(pb.ExecuteStageRequest()))
        await called.wait()
        instance._exit("was ended")
        await instance.channel.close()
        with pytest.raises(PluginDied, match="plugin odd was ended"):
            await call


@dataclass
class StoredLog:
    """The RPCs of a control plane that store a log."""

    lines: dict[int, str] = field(default_factory=dict[int, str])
    is_completed: bool = False

    async def report_stage_logs(self, request: piped_pb2.ReportStageLogsRequest) -> None:
        assert request.blocks
        self.lines.update({b.index: b.log for b in request.blocks})

    async def report_stage_logs_from_last_checkpoint(
        self, request: piped_pb2.ReportStageLogsFromLastCheckpointRequest
    ) -> None:
        self.lines.update({b.index: b.log for b in request.blocks})
        self.is_completed = request.completed


def relay(api: StoredLog) -> LogRelay:
    taken: Any = api
    return LogRelay(taken)


def blocks(start: int, count: int, text: str) -> list[LogBlock]:
    return [LogBlock(index=start + i, log=text, created_at=1) for i in range(count)]


def written(some: list[LogBlock], stage: str = "s") -> host_pb2.ReportStageLogsRequest:
    return host_pb2.ReportStageLogsRequest(deployment_id="d", stage_id=stage, blocks=some)


async def test_a_log_that_is_too_long_is_cut_but_for_its_end() -> None:
    api = StoredLog()
    passing = relay(api)
    megabyte = "x" * (32 << 10)
    for round in range(20):
        await passing.ReportStageLogs(written(blocks(round * 32, 32, megabyte)))
    await passing.ReportStageLogs(written(blocks(0, 1, "a line of another stage"), stage="other"))
    last = [*blocks(10_000, 30, "more"), *blocks(20_000, 1, "the reason")]
    await passing.ReportStageLogsFromLastCheckpoint(
        host_pb2.ReportStageLogsFromLastCheckpointRequest(
            deployment_id="d", stage_id="s", blocks=last, completed=True
        )
    )
    (end,) = passing.take_unsent("d", "s")
    await api.report_stage_logs_from_last_checkpoint(end)
    assert api.lines.pop(0) == "a line of another stage"
    assert sum(len(line) for line in api.lines.values()) <= 17 << 20
    assert api.lines[512] == TRUNCATED
    assert [line for index, line in api.lines.items() if index > 512] == ["more"] * 19 + [
        "the reason"
    ]
    assert api.is_completed


async def test_repeated_lines_count_once() -> None:
    api = StoredLog()
    passing = relay(api)
    for _ in range(40):
        await passing.ReportStageLogs(written(blocks(0, 20, "y" * (32 << 10))))
    assert TRUNCATED not in api.lines.values()


async def test_an_overlong_line_is_cut() -> None:
    api = StoredLog()
    await relay(api).ReportStageLogs(written(blocks(0, 1, "z" * (1 << 20))))
    assert len(api.lines[0]) == (64 << 10) + 1


async def test_metadata_that_is_too_large_is_refused() -> None:
    nothing: Any = None
    callbacks = Callbacks(nothing, commands=nothing, metadata=nothing, tools=nothing)
    error = "the metadata big has 100003 characters, at most 65536 are allowed"
    with pytest.raises(UserMistake, match=error):
        await callbacks.PutStageMetadata(
            host_pb2.PutStageMetadataRequest(key="big", value="x" * 100_000)
        )
    with pytest.raises(UserMistake, match=error):
        await callbacks.PutDeploymentPluginMetadataMulti(
            host_pb2.PutDeploymentPluginMetadataMultiRequest(metadata={"big": "x" * 100_000})
        )


@pytest.mark.slow
async def test_an_installation_that_hangs_times_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "_INSTALL_TIMEOUT", 0.2)
    with pytest.raises(Unavailable, match=r"installing t 1 took longer than 0\.2s"):
        await ToolRegistry(tmp_path).install(Tool("t", "1", "sleep 60"))
