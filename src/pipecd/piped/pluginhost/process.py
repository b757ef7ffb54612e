# SPDX-License-Identifier: Apache-2.0
"""Starts a plugin program, waits until it answers and never lets it outlive piped."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

import grpc
import grpc.aio
import structlog

from pipecd.config.piped.plugin import PluginSpec
from pipecd.model.errors import UserMistake
from pipecd.piped.pluginhost.remote import RemotePlugin
from pipecd.program import group

logger = structlog.get_logger()

_READY_WITHIN = 30.0
_GRACE = 30.0
# The shell becomes the plugin; what it leaves behind holds the reading end of a pipe from piped and
# ends the whole group when that pipe closes, also when piped was killed and could do nothing.
_LEASH = 'exec 3<&0; (read -r _ <&3; kill -KILL 0) & exec "$@" 3<&- </dev/null'


@asynccontextmanager
async def plugin_process(
    spec: PluginSpec, *, service_port: int, ready_within: float = _READY_WITHIN
) -> AsyncGenerator[RemotePlugin, None]:
    """Runs a plugin program while the block runs."""
    if not spec.port:
        raise UserMistake(
            f"plugin {spec.name} has no port", hint="set plugins[].port to a free TCP port"
        )
    program = await asyncio.to_thread(_program, spec)
    argv = [str(program), "start", "--piped-plugin-service", f"localhost:{service_port}"]
    process = await group.start(
        ["/bin/sh", "-c", _LEASH, "sh", *argv, "--config", entry_json(spec)],
        cwd=Path("/"),
        env=None,
        stdin=asyncio.subprocess.PIPE,
        stdout=2,
        stderr=2,
    )
    try:
        async with grpc.aio.insecure_channel(
            f"localhost:{spec.port}", options=[("grpc.max_receive_message_length", -1)]
        ) as channel:
            await _until_ready(spec, process, channel, ready_within)
            logger.info("plugin started", plugin=spec.name, port=spec.port)
            yield RemotePlugin(spec.name, channel)
    finally:
        await group.end(process, grace=_GRACE)
        if process.stdin is not None:
            process.stdin.close()


def entry_json(spec: PluginSpec) -> str:
    """The JSON of the plugin's entry, in upstream's shape."""
    entry: dict[str, object] = {"name": spec.name, "url": spec.url, "port": spec.port}
    if spec.config:
        entry["config"] = spec.config
    if spec.deploy_targets:
        entry["deployTargets"] = [
            {"name": t.name, **({"labels": t.labels} if t.labels else {}), "config": t.config}
            for t in spec.deploy_targets
        ]
    return json.dumps(entry)


def _program(spec: PluginSpec) -> Path:
    parts = urlsplit(spec.url)
    if parts.scheme != "file":
        raise UserMistake(
            f"plugin {spec.name}: a plugin cannot be fetched from {parts.scheme} yet",
            hint="download it and write its place as file:///path/to/plugin",
        )
    path = Path(unquote(parts.path))
    if not path.is_file():
        raise UserMistake(f"plugin {spec.name}: there is no file {path}", hint="correct its url")
    if not os.access(path, os.X_OK):
        raise UserMistake(
            f"plugin {spec.name}: {path} is not a program", hint=f"run chmod +x {path}"
        )
    return path


async def _until_ready(
    spec: PluginSpec, process: asyncio.subprocess.Process, channel: grpc.aio.Channel, within: float
) -> None:
    """Waits for the port to answer; a program that ends meanwhile is not waited for."""
    async with asyncio.TaskGroup() as tasks:
        ready = tasks.create_task(channel.channel_ready())
        ended = tasks.create_task(process.wait())
        await asyncio.wait({ready, ended}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        is_ready, code = ready.done(), ended.result() if ended.done() else None
        ready.cancel()
        ended.cancel()
    if code is not None:
        raise UserMistake(
            f"plugin {spec.name} ended with exit code {code} instead of starting",
            hint="its own messages are in the log of piped",
        )
    if not is_ready:
        raise UserMistake(
            f"plugin {spec.name} did not answer on port {spec.port} within {within:g}s",
            hint="check that plugins[].port is free and the same in the plugin's own settings",
        )
