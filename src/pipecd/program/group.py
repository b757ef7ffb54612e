# SPDX-License-Identifier: Apache-2.0
"""Starts a program in a process group of its own and terminates the whole group."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipecd.model.errors import UserMistake

_POLL_SECONDS = 0.02
# A process outside of the group may hold a pipe open, so waiting has a limit.
_REAP_SECONDS = 5.0


async def start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None,
    stdin: int,
    stdout: int,
    stderr: int,
    descriptors: Sequence[int] = (),
) -> asyncio.subprocess.Process:
    """Starts a program as the leader of a session of its own; it inherits the `descriptors`."""
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=descriptors,
        )
    except FileNotFoundError as e:
        missing = not_found(argv[0]) if await asyncio.to_thread(cwd.is_dir) else no_directory(cwd)
        raise missing from e
    except PermissionError as e:
        raise not_allowed(argv[0]) from e
    except ValueError as e:
        raise UserMistake(f"an argument of {argv[0]!r} contains a NUL character") from e
    except OSError as e:
        raise UserMistake(f"the program {argv[0]!r} could not be started: {e.strerror}") from e


def no_directory(cwd: Path) -> UserMistake:
    """Returns the error for a missing working directory."""
    return UserMistake(f"the directory {cwd} does not exist")


def not_found(program: str) -> UserMistake:
    """Returns the error for a missing program."""
    return UserMistake(f"the program {program!r} was not found", hint="install it, or correct PATH")


def not_allowed(program: str) -> UserMistake:
    """Returns the error for a file that is not executable."""
    return UserMistake(f"the program {program!r} may not be run", hint="make it executable")


async def end(
    process: asyncio.subprocess.Process,
    *,
    grace: float,
    stop: signal.Signals = signal.SIGTERM,
    on_exit: Callable[[], None] = lambda: None,
) -> None:
    """Sends `stop` to the group, waits up to `grace` seconds, then sends SIGKILL.

    `on_exit` is called when the program has exited, before waiting for the rest of its group.
    """
    try:
        _signal(process.pid, stop)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
                on_exit()
                # No event reports that the last member of a group has exited.
                while _is_alive(process.pid):  # noqa: ASYNC110
                    await asyncio.sleep(_POLL_SECONDS)
    finally:
        # Runs also if this coroutine is cancelled again.
        _signal(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP_SECONDS):
            await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
