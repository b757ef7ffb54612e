# SPDX-License-Identifier: Apache-2.0
"""The workspace of piped: locked for one process, and closed to other users."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path

import structlog

from pipecd.model.errors import UserMistake
from pipecd.program.dirlock import DirectoryInUse, lock_directory

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LOCK_RETRY_INTERVAL = 0.2
# The directories of the workspace that hold sources, decrypted secrets, logs and state.
_PRIVATE_DIRECTORIES = (
    "deployments",
    "git",
    "livestate",
    "plan-previews",
    "plugin-state",
    "trigger",
)


async def lock_workspace(workspace: Path, stack: AsyncExitStack, *, patience: float) -> None:
    """Locks the workspace, since two pipeds would delete each other's files.

    A piped that is about to end is waited for, up to `patience` seconds. The workspace is unlocked
    when `stack` closes.
    """
    loop, is_logged = asyncio.get_running_loop(), False
    deadline = loop.time() + patience
    remedy = "choose another directory with --workspace-dir"
    while True:
        try:
            stack.enter_context(lock_directory(workspace, program="piped", elsewhere=remedy))
        except DirectoryInUse as e:
            if loop.time() >= deadline:
                raise
            if not is_logged:
                log.warning("workspace is in use, waiting for the other piped", error=str(e))
            is_logged = True
        else:
            break
        await asyncio.sleep(_LOCK_RETRY_INTERVAL)
    await asyncio.to_thread(_create_private_directories, workspace)


def _create_private_directories(workspace: Path) -> None:
    """Keeps other users out, also of a workspace that existed before with wider permissions."""
    for name in _PRIVATE_DIRECTORIES:
        directory = workspace / name
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as e:
            raise UserMistake(
                f"cannot create {directory}: {e.strerror}",
                hint="free some space, or choose another directory with --workspace-dir",
            ) from e
        if directory.stat().st_uid == os.geteuid():
            directory.chmod(0o700)
