# SPDX-License-Identifier: Apache-2.0
"""A mirror follows its remote, fetches only branches that moved, and reports errors."""

import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import open_mirrors
from pipecd.model.errors import Denied, NotFound, Unavailable, UserMistake
from servers.git_http import GitHttp
from servers.origin import OpenMirror, Origin


async def test_the_head_commit_has_author_date_body_and_trailers(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    origin.commit(
        {"a": "1"},
        "deploy: a thing\n\nWhy it is done.\n\nPipecd-Dev-Trace-Trigger-Commit-Hash: abc123\nX: y",
    )
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
    assert head.message == "deploy: a thing"
    assert head.author == "Ann"
    assert head.body.startswith("Why it is done.")
    assert head.created_at == datetime.fromtimestamp(1700000000, UTC)
    assert head.trailers["Pipecd-Dev-Trace-Trigger-Commit-Hash"] == "abc123"


@pytest.mark.parametrize("form", ["file://{}", "{}"], ids=["a file address", "a plain path"])
async def test_a_push_to_a_local_remote_is_noticed(
    open_mirror: OpenMirror, origin: Origin, form: str
) -> None:
    async with open_mirror(form.format(origin.path)) as mirror:
        first = await mirror.update()
        assert (await mirror.update()) is first
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed


async def test_a_push_is_noticed_after_the_refs_were_packed(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        pushed = origin.commit({"a": "1"})
        origin.git("pack-refs", "--all")
        assert (await mirror.update()).hash == pushed


async def test_a_push_is_noticed_at_once(open_mirror: OpenMirror, origin: Origin) -> None:
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        origin.commit({"a": "1"})
        start = time.perf_counter()
        await mirror.update()
        assert mirror.poll_interval + time.perf_counter() - start < 1


async def test_a_force_push_is_followed_and_the_old_commit_stays(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    async with open_mirror(origin.remote) as mirror:
        old = origin.commit({"a": "1"})
        await mirror.update()
        origin.git("reset", "-q", "--hard", "HEAD~1")
        new = origin.commit({"b": "1"})
        assert (await mirror.update()).hash == new
        assert await mirror.objects.changed_files(old, new) == ("a", "b")


async def test_a_commit_of_another_branch_is_fetched_on_demand(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    origin.git("config", "uploadpack.allowAnySHA1InWant", "true")
    origin.git("checkout", "-q", "-b", "side")
    side = origin.commit({"side": "1"})
    origin.git("checkout", "-q", "main")
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        assert not await mirror.objects.has_commit(side)
        await mirror.clone.ensure_commit(side)
        assert await mirror.objects.read_file(side, "side") == b"1"


async def test_a_commit_that_does_not_exist_is_reported(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    async with open_mirror(origin.remote) as mirror:
        with pytest.raises(NotFound, match=r"commit 1{40} is not in repository 'web'.*force push"):
            await mirror.clone.ensure_commit("1" * 40)


@pytest.mark.parametrize("commit", ["", "HEAD", "--all", "main:x"])
async def test_only_hashes_can_be_fetched_as_commits(
    open_mirror: OpenMirror, origin: Origin, commit: str
) -> None:
    async with open_mirror(origin.remote) as mirror:
        with pytest.raises(NotFound, match="is not the hash of a commit"):
            await mirror.clone.ensure_commit(commit)


async def test_a_deleted_branch_is_reported_and_recovers(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    async with open_mirror(origin.remote, branch="live") as mirror:
        with pytest.raises(UserMistake, match="the branch does not exist") as caught:
            await mirror.update()
        assert "repositories[].branch" in caught.value.hint
        origin.git("branch", "live")
        assert (await mirror.update()).message == "first"
        origin.git("branch", "-D", "live")
        with pytest.raises(UserMistake, match="the branch does not exist"):
            await mirror.update()


async def test_a_missing_repository_is_reported(open_mirror: OpenMirror, tmp_path: Path) -> None:
    async with open_mirror(f"file://{tmp_path}/nowhere") as mirror:
        with pytest.raises(
            UserMistake,
            match=r"repository 'web' \(file://.*nowhere\): the repository was not found",
        ):
            await mirror.update()


async def test_an_unreachable_host_is_reported_as_retryable(open_mirror: OpenMirror) -> None:
    async with open_mirror("http://127.0.0.1:9/x.git") as mirror:
        with pytest.raises(Unavailable, match="repository 'web'"):
            await mirror.update()


async def test_a_mirror_is_reused_after_a_restart(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp
) -> None:
    url = git_http.url("origin/.git")
    async with open_mirror(url) as mirror:
        await mirror.update()
        (mirror.clone.directory / "refs/heads/main.lock").touch()
    git_http.requests.clear()
    async with open_mirror(url) as mirror:
        await mirror.update()
    # One request for the branches, no fetch.
    assert len(git_http.requests) == 2
    origin.commit({"a": "1"})
    async with open_mirror(url) as mirror:
        assert (await mirror.update()).hash == origin.git("rev-parse", "HEAD")


async def test_a_corrupt_mirror_is_cloned_again(open_mirror: OpenMirror, origin: Origin) -> None:
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
        shutil.rmtree(mirror.clone.directory / "objects")
        (mirror.clone.directory / "objects").mkdir()
    origin.commit({"a": "1"})
    async with open_mirror(origin.remote) as mirror:
        head = await mirror.update()
        assert await mirror.objects.read_file(head.hash, "README") == b"hello\n"


async def test_the_password_is_sent_on_every_operation(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp
) -> None:
    git_http.require("ann", "s3cret")
    url = git_http.url("origin/.git")
    credentials = GitCredentials(username="ann", password="s3cret")
    async with open_mirror(url, credentials=credentials) as mirror:
        await mirror.update()
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed
        origin.git("checkout", "-q", "-b", "side")
        side = origin.commit({"b": "1"})
        origin.git("config", "uploadpack.allowAnySHA1InWant", "true")
        await mirror.clone.ensure_commit(side)


@pytest.mark.parametrize(
    "credentials",
    [
        pytest.param(GitCredentials(), id="no password"),
        pytest.param(GitCredentials(username="ann", password="wr0ng"), id="a wrong password"),
    ],
)
async def test_denied_access_is_reported_without_the_password(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp, credentials: GitCredentials
) -> None:
    git_http.require("ann", "s3cret")
    async with open_mirror(git_http.url("origin/.git"), credentials=credentials) as mirror:
        with pytest.raises(Denied, match="access was denied") as caught:
            await mirror.update()
    assert "git.password" in caught.value.hint
    assert "wr0ng" not in str(caught.value)


async def test_a_token_in_the_url_is_not_shown(
    open_mirror: OpenMirror, origin: Origin, git_http: GitHttp
) -> None:
    git_http.require("ann", "s3cret")
    url = git_http.url("origin/.git").replace("http://", "http://ann:t0ken@")
    async with open_mirror(url) as mirror:
        with pytest.raises(Denied) as caught:
            await mirror.update()
    assert "t0ken" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_repository_of_another_user_is_read(
    open_mirror: OpenMirror, origin: Origin
) -> None:
    for path in (origin.path, *origin.path.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    async with open_mirror(origin.remote) as mirror:
        assert (await mirror.update()).message == "first"


async def test_mirrors_of_removed_repositories_are_deleted(
    open_mirror: OpenMirror, origin: Origin, tmp_path: Path
) -> None:
    async with open_mirror(origin.remote) as mirror:
        await mirror.update()
    (tmp_path / "m" / "something-else").mkdir()
    async with open_mirrors([], directory=tmp_path / "m", credentials=GitCredentials()):
        pass
    assert [p.name for p in (tmp_path / "m").iterdir()] == ["something-else"]


async def test_an_unknown_repository_is_a_user_mistake(tmp_path: Path) -> None:
    async with open_mirrors(
        [], directory=tmp_path / "git", credentials=GitCredentials()
    ) as mirrors:
        with pytest.raises(UserMistake, match="repository 'x' is not in the configuration"):
            mirrors.of("x")


@pytest.mark.parametrize("branch", ["", "--upload-pack=evil", "a b", "a*", "a:b"])
async def test_invalid_branch_names_are_refused(open_mirror: OpenMirror, branch: str) -> None:
    with pytest.raises(UserMistake, match="is not the name of a branch"):
        async with open_mirror("/nowhere", branch=branch):
            pass
