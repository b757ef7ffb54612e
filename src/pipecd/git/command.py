# SPDX-License-Identifier: Apache-2.0
"""Runs the git program on one bare repository."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from pipecd.git.credentials import GitEnvironment
from pipecd.git.errors import Unfinished, explain
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.model.giturl import redact
from pipecd.program.run import Captured, capture

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LOCAL_TIMEOUT = 60.0
# The first fetch of a large repository takes long.
REMOTE_TIMEOUT = 1800.0
# Not the repository itself, which may have been removed: then git says so.
_ROOT = Path("/")


class GitCommand:
    """Runs git commands in the bare repository `directory`, a clone of `remote`."""

    def __init__(
        self, repository_id: str, remote: str, *, directory: Path, environment: GitEnvironment
    ) -> None:
        self.repository_id, self.remote = repository_id, remote
        self.directory, self.environment = directory, environment

    @property
    def display_name(self) -> str:
        """The repository as log messages and errors name it, without credentials."""
        return f"repository {self.repository_id!r} ({redact(self.remote)})"

    def variables(self) -> dict[str, str]:
        """Returns the environment of a command that reads and writes only the local clone."""
        return self.environment.variables() | {"GIT_DIR": str(self.directory)}

    def remote_variables(self) -> dict[str, str]:
        """Returns the environment of a command that connects to the remote, with credentials."""
        return self.environment.variables(self.remote) | {"GIT_DIR": str(self.directory)}

    async def run(
        self,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float = _LOCAL_TIMEOUT,
    ) -> Captured:
        """Runs a command on the local clone and returns its exit code and output.

        Raises Unfinished if it is killed, or does not end in time.
        """
        return await self._run(
            arguments,
            cwd=cwd or _ROOT,
            variables=self.variables() | dict(variables or {}),
            stdin=stdin,
            at_most=timeout_seconds,
        )

    async def run_remote(self, *arguments: str) -> Captured:
        """Runs a command that connects to the remote; raises Unfinished as `run` does."""
        return await self._run(
            arguments,
            cwd=_ROOT,
            variables=self.remote_variables(),
            stdin=b"",
            at_most=REMOTE_TIMEOUT,
        )

    async def _run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        variables: Mapping[str, str],
        stdin: bytes,
        at_most: float,
    ) -> Captured:
        try:
            done = await capture(
                ["git", *arguments], cwd=cwd, env=variables, stdin=stdin, at_most=at_most
            )
        except Unavailable as e:
            raise Unfinished(f"{self.display_name}: {e.message}") from e
        if done.code < 0:
            raise Unfinished(f"{self.display_name}: git was killed by signal {-done.code}")
        return done

    async def output(
        self, *arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None
    ) -> bytes:
        """Runs a command on the local clone; returns what it printed, raises if it failed."""
        done = await self.run(*arguments, stdin=stdin, variables=variables)
        if done.code:
            raise self.error(done)
        return done.stdout

    async def restore_files(self) -> bool:
        """Writes the private files of git again if they are damaged; returns whether they were."""
        try:
            is_restored = await asyncio.to_thread(self.environment.restore_files)
        except OSError as e:
            raise Unavailable(f"the private files of git cannot be written: {e.strerror}") from e
        if is_restored:
            log.warning("private files of git were damaged, written again")
        return is_restored

    def error(self, done: Captured) -> PipecdError:
        """Returns the error for a command that failed."""
        stderr = done.stderr.decode("utf-8", "replace")
        return explain(stderr, repository=self.repository_id, remote=self.remote)

    def author_variables(self) -> dict[str, str]:
        """Returns the environment that makes piped author and committer of a new commit."""
        name, email = self.environment.author
        return {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (("NAME", name), ("EMAIL", email))
        }
