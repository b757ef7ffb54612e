# SPDX-License-Identifier: Apache-2.0
"""A bad version of the web service, which `pipecd quickstart --break` commits."""

import asyncio
import re
import time
from pathlib import Path

from pipecd.model.errors import UserMistake
from pipecd.quickstart.datadir import DataDir
from pipecd.quickstart.sample_repository import BRANCH, SERVICE, git

_SERVER = f"{SERVICE}/server.py"
# The typo is in the call of the function, since people change what the function returns.
_CALL, _BROKEN_CALL = re.compile(r"(?<!def )\bgreeting\(\)"), "greting()"
_POLL_SECONDS = 0.2


async def break_service(data: DataDir, *, at_most: float) -> str:
    """Commits a version of the web service that answers with errors; returns the commit.

    Waits at most that many seconds for the first deployment: that one is a quick sync, in which no
    canary would notice a bad version.
    """
    path = data.repository
    await _check_repository(path)
    await _wait_for_first_deployment(data, at_most)
    server = path / _SERVER
    server.write_text(_CALL.sub(_BROKEN_CALL, server.read_text()))
    await git(path, "commit", "--quiet", "--message", "Break the web service", "--", _SERVER)
    return await git(path, "rev-parse", "--short", "HEAD")


async def _check_repository(path: Path) -> None:
    """Refuses a repository in which nothing can be broken, or not repaired by a revert."""
    server = path / _SERVER
    if not server.exists():
        raise UserMistake(
            f"{server} does not exist",
            hint="start a quickstart first; one of an earlier version has no web service, so give "
            "both another --data-dir",
        )
    branch = await git(path, "rev-parse", "--abbrev-ref", "HEAD")
    if branch != BRANCH:
        raise UserMistake(
            f"the branch {branch} is checked out in {path}, but {BRANCH} is deployed",
            hint=f"git -C {path} switch {BRANCH}",
        )
    if await git(path, "status", "--porcelain", "--", _SERVER):
        raise UserMistake(
            f"{_SERVER} has changes that are not committed",
            hint=f"commit or discard them: git -C {path} status",
        )
    text = server.read_text()
    if _BROKEN_CALL in text:
        found = await git(path, "log", "-1", "--format=%h", f"-S{_BROKEN_CALL}", "--", _SERVER)
        raise UserMistake(
            "the web service is broken already",
            hint=f"repair it: git -C {path} revert --no-edit {found}",
        )
    if not _CALL.search(text):
        raise UserMistake(
            f"{_SERVER} does not call greeting() any more",
            hint="break it yourself: let it answer with the status 500, and commit",
        )


async def _wait_for_first_deployment(data: DataDir, at_most: float) -> None:
    until = time.monotonic() + at_most
    while not data.load_identity().is_service_deployed:
        if time.monotonic() > until:
            raise UserMistake(
                "the web service is not deployed yet",
                hint="start the quickstart, and wait until it prints that web was deployed",
            )
        await asyncio.sleep(_POLL_SECONDS)
