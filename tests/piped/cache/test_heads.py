# SPDX-License-Identifier: Apache-2.0
"""Repository heads: how often remotes are polled, and what a failing one logs."""

import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.piped.cache.heads import PollInterval, RepositoryHead, RepositoryHeads
from servers.git_http import GitHttp
from servers.origin import NewOrigin
from servers.polling import eventually


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        pytest.param(PollInterval(every=1), 1, id="usually as often as the remote allows"),
        pytest.param(
            PollInterval(every=1, is_announced=True),
            30,
            id="a safety net where pushes are announced",
        ),
        pytest.param(
            PollInterval(every=45, is_announced=True), 45, id="never more often than allowed"
        ),
        pytest.param(
            PollInterval(every=0.25, failures=1), 1, id="a second after the first failure"
        ),
        pytest.param(
            PollInterval(every=3, failures=1), 3, id="a failure never makes polls more frequent"
        ),
        pytest.param(PollInterval(every=1, failures=4), 8, id="longer after each failure"),
        pytest.param(PollInterval(every=1, failures=99), 30, id="and half a minute at most"),
        pytest.param(
            PollInterval(every=1, failures=2, is_announced=True),
            2,
            id="a failing remote is polled again although its pushes are announced",
        ),
    ],
)
def test_the_time_until_the_next_poll(interval: PollInterval, seconds: float) -> None:
    assert interval.seconds == seconds


@asynccontextmanager
async def heads_of(tmp_path: Path, **remotes: str) -> AsyncGenerator[RepositoryHeads]:
    repositories = [Repository(id_, remote, "main") for id_, remote in remotes.items()]
    async with open_mirrors(
        repositories, directory=tmp_path / "m", credentials=GitCredentials()
    ) as mirrors:
        yield RepositoryHeads(mirrors)


def hash_of(head: RepositoryHead) -> str:
    return head.commit.hash if head.commit else ""


async def test_a_head_survives_a_remote_that_fails_and_recovers(
    new_origin: NewOrigin, running: Any, tmp_path: Path
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
            heads.push_announced("one")
            heads.push_announced("unknown")
            await eventually(lambda: heads.of("one").error is None)


async def test_a_push_of_this_piped_is_fetched_at_once(
    new_origin: NewOrigin, tmp_path: Path, running: Any
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


async def test_a_failing_remote_is_logged_once_and_so_is_its_recovery(
    new_origin: NewOrigin, tmp_path: Path
) -> None:
    origin = new_origin("one")
    first = origin.commit({"a": "1"})
    moved = tmp_path / "moved"
    async with heads_of(tmp_path, one=origin.remote) as heads:
        await heads.poll("one")
        with capture_logs() as logs:
            origin.path.rename(moved)
            for _ in range(3):
                head = await heads.poll("one")
                assert hash_of(head) == first
                assert "the repository was not found" in str(head.error)
            moved.rename(origin.path)
            await heads.poll("one")
            await heads.poll("one")
    assert [entry["event"] for entry in logs] == [
        "repository cannot be fetched",
        "repository can be fetched again",
    ]


@pytest.mark.slow
async def test_a_remote_that_does_not_answer_is_logged_before_it_times_out(
    running: Any, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, capture_logs() as logs:
        remote = f"http://ann:t0ken@127.0.0.1:{silent.getsockname()[1]}/one.git"
        async with heads_of(tmp_path, one=remote) as heads, running(heads):
            await eventually(lambda: logs)
    (warning,) = logs
    assert warning["event"] == "still waiting for a repository"
    assert (warning["log_level"], warning["repository"]) == ("warning", "one")
    assert warning["remote"] == remote.replace("ann:t0ken@", "")


@pytest.mark.slow
async def test_a_remote_is_polled_less_often_where_wakeups_announce_pushes(
    new_origin: NewOrigin, git_http: GitHttp, running: Any, tmp_path: Path
) -> None:
    origin = new_origin("one")
    origin.commit({"a": "1"})
    async with heads_of(tmp_path, one=git_http.url("one/.git")) as heads, running(heads):
        await eventually(lambda: heads.of("one").commit)
        heads.set_streaming(True)
        pushed = origin.commit({"a": "2"})
        heads.push_announced("one")
        await eventually(lambda: hash_of(heads.of("one")) == pushed)
        assert heads.poll_interval("one") == 30
        # A push that no wake-up announced.
        missed = origin.commit({"a": "3"})
        await heads.poll("one")
        assert hash_of(heads.of("one")) == missed
        assert heads.poll_interval("one") < 2
        # A push that was announced before it is visible.
        heads.push_announced("one")
        await heads.poll("one")
        assert heads.poll_interval("one") < 2
        heads.push_announced("one")
        assert heads.poll_interval("one") == 30
        # A push of this piped, which a wake-up announces too.
        heads.pushed("one")
        assert heads.poll_interval("one") == 30
        heads.set_streaming(False)
        assert heads.poll_interval("one") < 2
