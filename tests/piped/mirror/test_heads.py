# SPDX-License-Identifier: Apache-2.0
"""Following the heads of repositories: how often, how patiently, and what is told of trouble."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.piped.mirror.heads import Head, RepositoryHeads, Rhythm


@pytest.mark.parametrize(
    ("rhythm", "pause"),
    [
        pytest.param(Rhythm(every=1), 1, id="usually as often as the remote allows"),
        pytest.param(Rhythm(every=1, is_told=True), 30, id="a safety net where pushes are told of"),
        pytest.param(Rhythm(every=45, is_told=True), 45, id="never more often than allowed"),
        pytest.param(Rhythm(every=0.25, failures=1), 1, id="a second after the first failure"),
        pytest.param(
            Rhythm(every=3, failures=1), 3, id="a failure never makes looks more frequent"
        ),
        pytest.param(Rhythm(every=1, failures=4), 8, id="longer after each failure"),
        pytest.param(Rhythm(every=1, failures=99), 30, id="and half a minute at most"),
        pytest.param(Rhythm(every=1, failures=2, is_told=True), 2, id="trouble is not left alone"),
    ],
)
def test_the_pause_until_the_next_look(rhythm: Rhythm, pause: float) -> None:
    assert rhythm.pause == pause


@asynccontextmanager
async def heads_of(tmp_path: Path, **remotes: str) -> AsyncGenerator[RepositoryHeads]:
    repositories = [Repository(id_, remote, "main") for id_, remote in remotes.items()]
    async with open_mirrors(
        repositories, directory=tmp_path / "m", credentials=GitCredentials()
    ) as mirrors:
        yield RepositoryHeads(mirrors)


def hash_of(head: Head) -> str:
    return head.commit.hash if head.commit else ""


async def test_heads_survive_a_remote_that_goes_and_comes_back(
    new_origin: Any, running: Any, eventually: Any, tmp_path: Path
) -> None:
    origin = new_origin("one")
    first = origin.commit({"a": "1"})
    nowhere = f"file://{tmp_path}/nowhere"
    async with heads_of(tmp_path, one=origin.remote, two=nowhere) as heads:
        watch = heads.changes_of("one").watch()
        async with running(heads):
            await eventually(lambda: heads.of("one").commit)
            await eventually(lambda: heads.of("two").error)
            assert hash_of(heads.of("one")) == first
            assert await watch.wait(0)
            pushed = origin.commit({"a": "2"})
            await eventually(lambda: hash_of(heads.of("one")) == pushed)
            origin.git("branch", "-m", "main", "other")
            await eventually(lambda: heads.of("one").error)
            assert hash_of(heads.of("one")) == pushed
            origin.git("branch", "-m", "other", "main")
            heads.look_soon("one")
            heads.look_soon("unknown")
            await eventually(lambda: heads.of("one").error is None)


async def test_a_push_of_this_piped_is_seen_at_once(
    new_origin: Any, tmp_path: Path, running: Any, eventually: Any
) -> None:
    origin = new_origin("one")
    origin.commit({"a": "1"})
    repository = Repository("one", origin.remote, "main")
    async with open_mirrors(
        [repository], directory=tmp_path / "m", credentials=GitCredentials()
    ) as mirrors:
        heads = RepositoryHeads(mirrors)
        for mirror in mirrors:
            mirror._poller.interval = 600.0
        async with running(heads):
            await eventually(lambda: heads.of("one").commit)
            pushed = origin.commit({"a": "2"})
            heads.pushed("one")
            await eventually(lambda: hash_of(heads.of("one")) == pushed)


async def test_trouble_is_told_once_and_so_is_its_end(new_origin: Any, tmp_path: Path) -> None:
    origin = new_origin("one")
    first = origin.commit({"a": "1"})
    moved = tmp_path / "moved"
    async with heads_of(tmp_path, one=origin.remote) as heads:
        await heads.look("one")
        with capture_logs() as logs:
            origin.path.rename(moved)
            for _ in range(3):
                head = await heads.look("one")
                assert hash_of(head) == first
                assert "the repository was not found" in str(head.error)
            moved.rename(origin.path)
            await heads.look("one")
            await heads.look("one")
    assert [entry["event"] for entry in logs] == [
        "repository cannot be followed",
        "repository is followed again",
    ]


@pytest.mark.slow
async def test_a_server_is_asked_less_often_where_wakeups_tell_of_pushes(
    new_origin: Any, git_http: Any, running: Any, eventually: Any, tmp_path: Path
) -> None:
    origin = new_origin("one")
    origin.commit({"a": "1"})
    async with heads_of(tmp_path, one=git_http.url("one/.git")) as heads, running(heads):
        await eventually(lambda: heads.of("one").commit)
        heads.streaming(True)
        pushed = origin.commit({"a": "2"})
        heads.look_soon("one")
        await eventually(lambda: hash_of(heads.of("one")) == pushed)
        assert heads.pause_of("one") == 30
        # A push that nobody told of.
        missed = origin.commit({"a": "3"})
        await heads.look("one")
        assert hash_of(heads.of("one")) == missed
        assert heads.pause_of("one") < 2
        # A push that was told of before it can be seen.
        heads.look_soon("one")
        await heads.look("one")
        assert heads.pause_of("one") < 2
        heads.look_soon("one")
        assert heads.pause_of("one") == 30
        # A push of this piped, which it is told of too.
        heads.pushed("one")
        assert heads.pause_of("one") == 30
        heads.streaming(False)
        assert heads.pause_of("one") < 2
