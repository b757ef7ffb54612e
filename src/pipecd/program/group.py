# SPDX-License-Identifier: Apache-2.0
"""A program and everything it started, as one process group that can be ended."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pipecd.model.errors import UserMistake

_CHECK = 0.02
# A pipe held open by a stranger outside of the group must not hold us.
_REAP = 5.0


async def start(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None,
    stdin: int,
    stdout: int,
    stderr: int,
) -> asyncio.subprocess.Process:
    """Starts a program as the leader of a session of its own."""
    try:
        return await asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    except FileNotFoundError as e:
        missing = not_found(argv[0]) if await asyncio.to_thread(cwd.is_dir) else no_directory(cwd)
        raise missing from e
    except PermissionError as e:
        raise not_allowed(argv[0]) from e
    except OSError as e:
        raise UserMistake(f"the program {argv[0]!r} could not be started: {e.strerror}") from e


def no_directory(cwd: Path) -> UserMistake:
    """There is no place to start the program in."""
    return UserMistake(f"the directory {cwd} does not exist")


def not_found(program: str) -> UserMistake:
    """There is no such program."""
    return UserMistake(f"the program {program!r} was not found", hint="install it, or correct PATH")


def not_allowed(program: str) -> UserMistake:
    """The file is there and is no program."""
    return UserMistake(f"the program {program!r} may not be run", hint="make it executable")


async def end(
    process: asyncio.subprocess.Process,
    *,
    grace: float,
    on_exit: Callable[[], None] = lambda: None,
) -> None:
    """Asks the whole group to stop, waits, and kills what is left.

    `on_exit` is called when the program has ended, before the rest of its group is waited for.
    """
    try:
        _signal(process.pid, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await process.wait()
                on_exit()
                # The kernel tells nobody when the last member of a group ends.
                while _is_alive(process.pid):  # noqa: ASYNC110
                    await asyncio.sleep(_CHECK)
    finally:
        # A second cancellation must not leave anything running either.
        _signal(process.pid, signal.SIGKILL)
    with suppress(TimeoutError):
        async with asyncio.timeout(_REAP):
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
