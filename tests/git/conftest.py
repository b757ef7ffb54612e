# SPDX-License-Identifier: Apache-2.0
"""Real repositories to be mirrored, and mirrors of them."""

import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipecd.git.access import GitAccess
from pipecd.git.mirror import Mirror, Repository
from pipecd.git.mirrors import open_mirrors
from pipecd.git.push import Change, Draft


@dataclass
class Origin:
    """A repository with a working tree, as a person would have it."""

    path: Path

    @property
    def remote(self) -> str:
        return f"file://{self.path}"

    def git(self, *arguments: str | bytes) -> str:
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_DATE": "1700000000 +0000",
            "GIT_COMMITTER_DATE": "1700000000 +0000",
        }
        done = subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", *arguments],
            cwd=self.path,
            env=env,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(
        self, files: dict[str, str | bytes | None] | None = None, message: str = "change"
    ) -> str:
        """Writes or deletes files and commits; returns the hash."""
        for name, content in (files or {}).items():
            file = self.path / name
            if content is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def new_origin(tmp_path: Path) -> Callable[[str], Origin]:
    def new(name: str) -> Origin:
        path = tmp_path / name
        path.mkdir(parents=True)
        origin = Origin(path)
        origin.git("init", "-q", "-b", "main")
        return origin

    return new


@pytest.fixture
def origin(new_origin: Callable[[str], Origin]) -> Origin:
    made = new_origin("origin")
    made.commit({"README": "hello\n"}, "first")
    return made


Mirrored = Callable[..., AbstractAsyncContextManager[Mirror]]


@pytest.fixture
def mirrored(tmp_path: Path) -> Mirrored:
    """Opens the mirror of a remote; a second one takes over what the first one left."""

    @asynccontextmanager
    async def opened(
        remote: str, *, branch: str = "main", access: GitAccess | None = None
    ) -> AsyncGenerator[Mirror]:
        repository = Repository("web", remote, branch)
        async with open_mirrors(
            [repository], directory=tmp_path / "m", access=access or GitAccess()
        ) as mirrors:
            yield mirrors.of("web")

    return opened


@pytest.fixture
def change() -> Callable[..., Change]:
    """A change of some files of the main branch."""

    def made(
        files: Mapping[str, bytes], *, branch: str = "main", trailers: dict[str, str] | None = None
    ) -> Change:
        async def edit(_: str) -> list[Draft]:
            return [Draft(files, "by piped", trailers or {})]

        return Change(edit, "main", branch)

    return made
