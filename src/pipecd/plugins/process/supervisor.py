# SPDX-License-Identifier: Apache-2.0
"""The supervisor: a small program of its own that keeps programs running and routes to them.

    python -m pipecd.plugins.process.supervisor DIRECTORY [--take-over]
    python -m pipecd.plugins.process.supervisor DIRECTORY --remove APPLICATION

The second form ends the programs of an application that nobody deploys any more.

The plugin starts it, and finds it again by the socket in the directory. It outlives piped. What
shall run is in its state file, so that its successor continues: programs are found again by their
process, and the listening sockets are passed on, so that no connection is lost.
"""

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipecd.plugins.process import logs
from pipecd.plugins.process.applications import Supervisor
from pipecd.plugins.process.control import MAX_DESCRIPTORS, serve_control
from pipecd.plugins.process.state_file import SupervisorDirectory
from pipecd.plugins.process.status_page import serve_status

logger = logging.getLogger("supervisor")

_LOCK_SECONDS = 10.0
_HAND_OVER_SECONDS = 60.0
_CLOSE_SECONDS = 5.0
_ANSWER_SIZE = 1024 * 1024
_USAGE = """usage: python3 -m pipecd.plugins.process.supervisor DIRECTORY --remove APPLICATION

Ends the programs of an application that nobody deploys any more.
"""


async def supervise(
    directory: SupervisorDirectory,
    control: socket.socket,
    lock: int,
    sockets: Mapping[str, socket.socket],
) -> None:
    """Runs until it is told to end or to hand over; `lock` is that of the directory."""
    supervisor = Supervisor(directory)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # Programs go on: a later supervisor finds them.
        loop.add_signal_handler(number, supervisor.ended.set)
    supervisor.start(sockets)
    async with serve_status(supervisor), serve_control(supervisor, control):
        logger.info("the supervisor is ready")
        await supervisor.ended.wait()
    await supervisor.close()
    os.close(lock)
    logger.info("the supervisor ends")
    seconds = _HAND_OVER_SECONDS if supervisor.has_handed_over else _CLOSE_SECONDS
    await supervisor.router.close(seconds)


def take_over(directory: SupervisorDirectory) -> dict[str, socket.socket]:
    """Asks the running supervisor to hand over, and returns its listening sockets."""
    answer, descriptors = _ask(directory, {"request": "hand-over"})
    if error := answer.get("error"):
        raise ValueError(error)
    names: list[str] = answer.get("listeners", [])
    return {n: socket.socket(fileno=d) for n, d in zip(names, descriptors, strict=False)}


def remove(directory: SupervisorDirectory, application: str) -> None:
    """Ends the programs of an application, and forgets it."""
    try:
        answer, _ = _ask(directory, {"request": "remove", "application": application})
    except (FileNotFoundError, ConnectionRefusedError) as e:
        raise ValueError(f"no supervisor runs in {directory.path}") from e
    if error := answer.get("error"):
        raise ValueError(error)


def _ask(
    directory: SupervisorDirectory, request: Mapping[str, str]
) -> tuple[dict[str, Any], list[int]]:
    """Returns the answer of the running supervisor and the descriptors that it passes."""
    with directory.connect() as connection:
        connection.settimeout(_LOCK_SECONDS)
        connection.sendall(json.dumps(request).encode() + b"\n")
        received, descriptors = b"", list[int]()
        while not received.endswith(b"\n"):
            part, passed, _, _ = socket.recv_fds(connection, _ANSWER_SIZE, MAX_DESCRIPTORS)
            descriptors += passed
            received += part
            if not part:
                break
    return json.loads(received or b"{}"), descriptors


def main() -> int:
    """Becomes a daemon: the first process ends when the supervisor is ready or cannot be."""
    match sys.argv[1:]:
        case [path] | [path, "--take-over"] | [path, "--remove", _] if not path.startswith("-"):
            options = sys.argv[2:]
        case _:
            sys.stderr.write(_USAGE)
            return 2
    os.umask(0o077)
    # Its own name is not resolved: where it is a link, the directory is refused.
    named = Path(path).absolute()
    directory = SupervisorDirectory(named.parent.resolve() / named.name)
    try:
        if options[:1] == ["--remove"]:
            remove(directory, options[1])
            return 0
        directory.create()
        sockets = take_over(directory) if options == ["--take-over"] else None
        lock, until = directory.try_lock(), time.monotonic() + _LOCK_SECONDS
        while lock is None and sockets is not None and time.monotonic() < until:
            time.sleep(0.02)
            lock = directory.try_lock()
        if lock is None:
            # Another one was faster.
            return 0
        directory.load()
        control = directory.listen()
    except (OSError, ValueError, TypeError) as e:
        sys.stderr.write(f"{e}\n")
        return 1
    if os.fork():
        return 0
    os.setsid()
    if os.fork():
        os._exit(0)
    os.pwrite(lock, f"{os.getpid():<10}".encode(), 0)
    _redirect_output(directory.log_file)
    logging.basicConfig(format="%(asctime)s %(process)d %(message)s", level=logging.INFO)
    asyncio.run(supervise(directory, control, lock, sockets or {}))
    return 0


def _redirect_output(log: Path) -> None:
    logs.rotate(log)
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


if __name__ == "__main__":
    sys.exit(main())
