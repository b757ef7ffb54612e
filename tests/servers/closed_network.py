# SPDX-License-Identifier: Apache-2.0
"""A network namespace with loopback and nothing else, and the servers of a closed network in it.

`python -m servers.closed_network FILES REPOSITORIES CERT KEY`, with tests on the path, serves files
and Git repositories over HTTPS and prints both addresses.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from servers.git_http import GitHttp
from servers.installation import Completed, Program
from servers.web import Answer, Request, WebServer

# Sets the flag UP of the interface lo: SIOCSIFFLAGS of struct ifreq.
_HOLD = """\
import fcntl, signal, socket, struct
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
print("ready", flush=True)
signal.pause()
"""


@dataclass(frozen=True)
class ClosedNetwork:
    """Runs programs that reach each other on loopback, and nobody else."""

    holder: int
    variables: Mapping[str, str]
    directory: Path

    def _inside(self, *words: str) -> tuple[str, ...]:
        enter = ("nsenter", f"--target={self.holder}", "--user", "--net", "--preserve-credentials")
        return (*enter, "--", *words)

    async def run(self, script: str, *, within: float = 480) -> Completed:
        """Runs lines of a shell to their end; the first one that fails ends them."""
        process = await asyncio.create_subprocess_exec(
            *self._inside("sh", "-ec", script), cwd=self.directory, env=self.variables,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(within):
            out, err = await process.communicate()
        return Completed(process.returncode or 0, out.decode(), err.decode())

    @asynccontextmanager
    async def running(self, script: str, **variables: str) -> AsyncGenerator[Program, None]:
        """Runs the lines of a shell until the end of the block; their last program is stopped."""
        process = await asyncio.create_subprocess_exec(
            *self._inside("sh", "-ec", script), cwd=self.directory,
            env={**self.variables, **variables}, start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        program = Program(process)
        reading = asyncio.create_task(program.read())
        try:
            yield program
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            await process.wait()
            await reading


@contextmanager
def closed_network(variables: Mapping[str, str], directory: Path) -> Iterator[ClosedNetwork]:
    """Opens a closed network; skips the test where users may not create one."""
    words = ("unshare", "--map-root-user", "--net", sys.executable, "-c", _HOLD)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stderr is not None
        try:
            if holder.stdout.readline() != b"ready\n":
                pytest.skip(f"no network namespace: {holder.stderr.read().decode().strip()}")
            yield ClosedNetwork(holder.pid, variables, directory)
        finally:
            holder.kill()


class _Files(WebServer):
    """Serves the files of a directory and prints what was requested."""

    def __init__(self, root: Path, certificate: tuple[str, str]) -> None:
        self._root = root
        super().__init__(certificate)

    def answer(self, request: Request) -> Answer:
        file = self._root / request.path.lstrip("/")
        _report(f"{request.method} {request.path}")
        return Answer(body=file.read_bytes()) if file.is_file() else Answer(404)


def _report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    files, repositories, cert, key = sys.argv[1:]
    mirror, git = _Files(Path(files), (cert, key)), GitHttp(Path(repositories), (cert, key))
    _report(f"mirror {mirror.address} git {git.address}")
    signal.pause()


if __name__ == "__main__":
    main()
