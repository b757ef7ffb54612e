# SPDX-License-Identifier: Apache-2.0
"""Starts a program as piped would, asks its questions, and ends it."""

import asyncio
import socket
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.program import die_with_parent, output
from pipecd.program.port import free_port
from pipecd.program.run import run
from pipecd.proto.plugin import host_pb2
from pipecd.sdk.conformance.finding import Finding, NotTried, Verdict, Wrong
from pipecd.sdk.conformance.questions import Questions, Surroundings
from pipecd.sdk.serving import open_door
from pipecd.sdk.serving.launch import answers, loopback_channel, start_arguments
from pipecd.sdk.testing.host import MemoryHost
from pipecd.sdk.testing.sample import Sample
from pipecd.wire.server import grpc_server

PLUGIN_SERVICE = host_pb2.DESCRIPTOR.services_by_name["PluginService"]
_READY, _REFUSES = 30.0, 30.0
# Upstream's SDK takes up to a minute for the log of a stage that was cancelled.
_ENDS = 75.0
_MADE_UP = DeployTargetSpec(name="made-up")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What to try: a command, its entry if it needs one, and options of the stages to run."""

    command: Sequence[str]
    entry: PluginSpec | None = None
    options: Mapping[str, object] = field(default_factory=dict[str, object])

    def spec(self, port: int) -> PluginSpec:
        """The entry that the program is started with."""
        entry = self.entry or PluginSpec(name="checked", deploy_targets=(_MADE_UP,))
        url = entry.url or Path(self.command[0]).absolute().as_uri()
        return entry.model_copy(update={"port": port, "url": url})


async def try_plugin(trial: Trial) -> AsyncIterator[Finding]:
    """Everything that is found out, as soon as it is."""
    yield await _found("it refuses to start without its flags", lambda: _refuses(trial, ["start"]))
    port = free_port()
    host = MemoryHost()
    door = open_door(PLUGIN_SERVICE, host)
    with tempfile.TemporaryDirectory(prefix="plugin-check-") as directory:
        async with grpc_server([door], host="localhost", port=0, grace=0) as service_port:
            piped = f"localhost:{service_port}"
            bad = ["start", "--piped-plugin-service", piped, "--config", "{"]
            yield await _found("it refuses an entry that is not JSON", lambda: _refuses(trial, bad))
            async for finding in _running(trial, host, Path(directory), (port, service_port)):
                yield finding


async def _running(
    trial: Trial, host: MemoryHost, directory: Path, ports: tuple[int, int]
) -> AsyncIterator[Finding]:
    port, service_port = ports
    spec = trial.spec(port)
    argv = [*trial.command, *start_arguments(spec, service_port=service_port)]
    async with _started(argv) as (program, lines), loopback_channel(port) as channel:
        ready = await _found("it answers on its port", lambda: _ready(program, channel, lines))
        yield ready
        if ready.verdict is Verdict.FAILED:
            return
        sample = Sample(
            plugin=spec.name,
            directory=directory,
            targets=[target.name for target in spec.deploy_targets],
        )
        around = Surroundings(sample, host, trial.options, trial.entry is not None)
        questions = Questions(channel, around)
        async for question, ask in questions.all():
            yield await _found(question, ask)
        yield await _found("it ends when it is told to", lambda: _ends(program))
        yield await _found("it lets go of its port", lambda: _lets_go(port))


async def _found(question: str, ask: Callable[[], Awaitable[None]]) -> Finding:
    try:
        await ask()
    except NotTried as e:
        return Finding(question, Verdict.SKIPPED, str(e))
    except Wrong as e:
        return Finding(question, Verdict.FAILED, str(e))
    return Finding(question, Verdict.OK)


async def _refuses(trial: Trial, arguments: Sequence[str]) -> None:
    try:
        async with asyncio.timeout(_REFUSES):
            done = await run([*trial.command, *arguments], cwd=Path.cwd(), grace=1)
    except TimeoutError as e:
        raise Wrong(f"it still runs after {_REFUSES:g}s") from e
    if done.code == 0:
        raise Wrong("it ends with exit code 0")


@asynccontextmanager
async def _started(
    argv: Sequence[str],
) -> AsyncGenerator[tuple[die_with_parent.ChildProcess, output.Lines], None]:
    lines = output.Lines(None, keep=4096)
    async with output.pipe() as (reader, writing):
        program = await die_with_parent.start(
            argv, cwd=Path.cwd(), env=None, output=writing.fileno()
        )
        writing.close()
        reading = asyncio.ensure_future(lines.read(reader))
        try:
            yield program, lines
        finally:
            await program.end(grace=_ENDS)
            reading.cancel()


async def _ready(
    program: die_with_parent.ChildProcess, channel: grpc.aio.Channel, lines: output.Lines
) -> None:
    ended = asyncio.ensure_future(program.process.wait())
    try:
        async with asyncio.timeout(_READY):
            # A server says by itself that it is there, and not that it is ready.
            while not ended.done() and not await answers(channel, 1):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError as e:
        raise Wrong(f"no answer within {_READY:g}s; it wrote:\n{lines.text()}") from e
    finally:
        is_over = ended.done()
        ended.cancel()
    if is_over:
        raise Wrong(f"it ended at once; it wrote:\n{lines.text()}")


async def _ends(program: die_with_parent.ChildProcess) -> None:
    program.process.terminate()
    try:
        async with asyncio.timeout(_ENDS):
            await program.wait()
    except TimeoutError as e:
        raise Wrong(f"it still runs {_ENDS:g}s after SIGTERM") from e


async def _lets_go(port: int) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise Wrong(f"somebody still listens on {port}")
