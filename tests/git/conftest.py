# SPDX-License-Identifier: Apache-2.0
"""Real repositories to be mirrored, and mirrors of them."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from pipecd.git.access import GitAccess
from pipecd.git.mirror import Mirror, Repository
from pipecd.git.mirrors import open_mirrors
from pipecd.git.push import Change, Draft
from servers.origin import Origin


@pytest.fixture
def new_origin(tmp_path: Path) -> Callable[[str], Origin]:
    then = "1700000000 +0000"
    dates = {"GIT_AUTHOR_DATE": then, "GIT_COMMITTER_DATE": then}
    return lambda name: Origin.begin(tmp_path / name, **dates)


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
