# SPDX-License-Identifier: Apache-2.0
"""Real repositories to be mirrored, and mirrors of them."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Mirror, Repository, open_mirrors
from pipecd.git.push import CommitDraft, PushRequest
from servers.origin import OpenMirror, Origin


@pytest.fixture
def new_origin(tmp_path: Path) -> Callable[[str], Origin]:
    then = "1700000000 +0000"
    dates = {"GIT_AUTHOR_DATE": then, "GIT_COMMITTER_DATE": then}
    return lambda name: Origin.begin(tmp_path / name, **dates)


@pytest.fixture
def origin(new_origin: Callable[[str], Origin]) -> Origin:
    created = new_origin("origin")
    created.commit({"README": "hello\n"}, "first")
    return created


@pytest.fixture
def open_mirror(tmp_path: Path) -> OpenMirror:
    """Opens the mirror of a remote; a second one reuses the directory of the first."""

    @asynccontextmanager
    async def opened(
        remote: str, *, branch: str = "main", credentials: GitCredentials | None = None
    ) -> AsyncGenerator[Mirror]:
        repository = Repository("web", remote, branch)
        async with open_mirrors(
            [repository], directory=tmp_path / "m", credentials=credentials or GitCredentials()
        ) as mirrors:
            yield mirrors.of("web")

    return opened


@pytest.fixture
def change() -> Callable[..., PushRequest]:
    """A change of some files of the main branch."""

    def created(
        files: Mapping[str, bytes], *, branch: str = "main", trailers: dict[str, str] | None = None
    ) -> PushRequest:
        async def edit(_: str) -> list[CommitDraft]:
            return [CommitDraft(files, "by piped", trailers or {})]

        return PushRequest(edit, "main", branch)

    return created
