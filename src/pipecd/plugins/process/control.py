# SPDX-License-Identifier: Apache-2.0
"""The socket of the supervisor: one JSON document per line, a request and its answers.

    {"request": "hello"}                             {"version": …, "pid": …}
    {"request": "configure", "status_port": 9180, "trusted_proxies": […]}    {}
    {"request": "apply", "application": …}           {}
    {"request": "remove", "application": "NAME"}     {}
    {"request": "status"}                            {"applications": […]}
    {"request": "watch"}                             {"applications": […]} now and at every change
    {"request": "shut-down"}                         {} once every program has ended
    {"request": "hand-over"}                         {"listeners": […]} with their sockets

An answer with `error` says what was wrong. Sockets come before the answer, with blanks.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from pipecd.plugins.process.applications import CannotStore, Supervisor
from pipecd.plugins.process.desired import LOOPBACK, DesiredApplication
from pipecd.plugins.process.json_codec import from_json, to_json

logger = logging.getLogger("supervisor")

LONGEST_LINE = 64 * 1024 * 1024
MAX_DESCRIPTORS = 200
"""How many descriptors are in one message; the kernel allows 253."""


def send_sockets(connection: socket.socket, sockets: Mapping[str, socket.socket]) -> None:
    """Sends listening sockets, as many in a message as the kernel allows, and their names."""
    descriptors = [each.fileno() for each in sockets.values()]
    for start in range(0, len(descriptors), MAX_DESCRIPTORS):
        socket.send_fds(connection, [b" "], descriptors[start : start + MAX_DESCRIPTORS])
    connection.sendall(json.dumps({"listeners": list(sockets)}).encode() + b"\n")


@asynccontextmanager
async def serve_control(supervisor: Supervisor, control: socket.socket) -> AsyncGenerator[None]:
    """Answers requests until the block ends."""
    connections = set[asyncio.Task[Any]]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
            task.add_done_callback(connections.discard)
        try:
            await _Connection(supervisor, reader, writer).run()
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            # The end of the supervisor.
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(serve, sock=control, limit=LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        for task in [*connections]:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


class _Connection:
    def __init__(
        self, supervisor: Supervisor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._supervisor, self._reader, self._writer = supervisor, reader, writer

    async def run(self) -> None:
        while line := await self._reader.readline():
            try:
                request: dict[str, Any] = json.loads(line)
                await self._answer(request)
            except CannotStore as e:
                await self._send({"error": str(e)})
            except (ValueError, TypeError, KeyError, AttributeError) as e:
                logger.exception("a request cannot be read")
                await self._send({"error": f"the request cannot be read: {e}"})

    async def _answer(self, request: Mapping[str, Any]) -> None:
        supervisor = self._supervisor
        match request["request"]:
            case "hello":
                await self._send({"version": supervisor.version, "pid": os.getpid()})
            case "configure":
                proxies = tuple(map(str, request.get("trusted_proxies", LOOPBACK)))
                await supervisor.configure(int(request["status_port"]), proxies)
                await self._send({})
            case "apply":
                await supervisor.apply(from_json(DesiredApplication, request["application"]))
                await self._send({})
            case "remove":
                found = supervisor.find(str(request["application"]))
                if found is None:
                    await self._send({"error": f"there is no {request['application']!r}"})
                else:
                    await supervisor.apply(DesiredApplication(found.desired.id, found.desired.name))
                    await self._send({})
            case "status":
                await self._send_status()
            case "watch":
                await self._watch()
            case "shut-down":
                await supervisor.shut_down()
                await self._send({})
            case "hand-over":
                await self._hand_over()
            case other:
                await self._send({"error": f"there is no request {other!r}"})

    async def _watch(self) -> None:
        seen = -1
        closed = asyncio.ensure_future(self._reader.read())
        try:
            while not closed.done():
                await self._send_status()
                change = asyncio.ensure_future(self._supervisor.next_change(seen))
                await asyncio.wait({change, closed}, return_when=asyncio.FIRST_COMPLETED)
                if not change.done():
                    change.cancel()
                    with suppress(asyncio.CancelledError):
                        await change
                    return
                seen = change.result()
        finally:
            closed.cancel()

    async def _hand_over(self) -> None:
        raw = self._writer.get_extra_info("socket")
        with socket.socket(fileno=os.dup(raw.fileno())) as connection:
            try:
                await self._supervisor.hand_over(lambda sockets: send_sockets(connection, sockets))
            except OSError as e:
                logger.warning("the sockets cannot be handed over: %s", e)
                raise

    async def _send_status(self) -> None:
        await self._send({"applications": to_json(self._supervisor.statuses())})

    async def _send(self, answer: Mapping[str, Any]) -> None:
        self._writer.write(json.dumps(answer).encode() + b"\n")
        await self._writer.drain()
