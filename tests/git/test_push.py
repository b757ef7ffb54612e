# SPDX-License-Identifier: Apache-2.0
"""Piped commits and pushes changes, also when others push at the same time."""

from typing import Any

import pytest

from pipecd.git.credentials import GitCredentials
from pipecd.git.push import CommitDraft, PushRequest, message_with_trailers, push
from pipecd.model.errors import Conflict, Denied, UserMistake
from servers.git_http import GitHttp
from servers.origin import OpenMirror, Origin


@pytest.fixture
def shared(origin: Origin) -> Any:
    """A repository that others can push to."""
    origin.git("config", "receive.denyCurrentBranch", "updateInstead")
    return origin


async def test_a_change_becomes_a_commit_of_the_configured_author(
    open_mirror: OpenMirror, shared: Any, change: Any
) -> None:
    shared.commit({"run.sh": "old", "keep": "kept"})
    shared.git("update-index", "--chmod=+x", "run.sh")
    before = shared.git("commit", "-q", "-m", "executable") or shared.git("rev-parse", "HEAD")
    shared.git("checkout", "-q", "-f", "HEAD")
    credentials = GitCredentials(username="bot", email="bot@example.com")
    async with open_mirror(shared.remote, credentials=credentials) as mirror:
        created = await push(
            mirror.clone,
            change({"run.sh": b"new", "a/b.yaml": b"x"}, trailers={"Z": "1", "A": "2"}),
        )
        assert (await mirror.update()).hash == created
    assert shared.git("rev-parse", "HEAD^") == before
    log = shared.git("log", "-1", "--format=%an <%ae> %cn <%ce>|%B")
    assert log == "bot <bot@example.com> bot <bot@example.com>|by piped\n\nA: 2\nZ: 1"
    assert shared.git("ls-tree", "HEAD", "run.sh").startswith("100755")
    assert (shared.path / "run.sh").read_text() == "new"
    assert (shared.path / "keep").read_text() == "kept"
    assert (shared.path / "a" / "b.yaml").read_text() == "x"


async def test_nothing_is_pushed_when_no_file_differs(
    open_mirror: OpenMirror, shared: Any, change: Any
) -> None:
    before = shared.git("rev-parse", "HEAD")
    async with open_mirror(shared.remote) as mirror:
        assert await push(mirror.clone, change({"README": b"hello\n"})) is None
    assert shared.git("rev-parse", "HEAD") == before


async def test_a_push_is_retried_on_top_of_concurrent_pushes(
    open_mirror: OpenMirror, shared: Any
) -> None:
    bases: list[str] = []
    known: list[tuple[str, str]] = []

    async def store(commit: str) -> None:
        known.append((commit, shared.git("rev-parse", "main")))

    async def edit(commit: str) -> list[CommitDraft]:
        bases.append(commit)
        if len(bases) < 3:
            shared.commit({f"others-{len(bases)}": "x"})
        return [CommitDraft({"count": str(len(bases)).encode()}, "by piped")]

    async with open_mirror(shared.remote) as mirror:
        request = PushRequest(edit, "main", "main", before_push=store)
        created = await push(mirror.clone, request)
    assert shared.git("rev-parse", "HEAD") == created
    # The commit of each attempt is known before it is in the branch.
    assert len(known) == 3
    assert known[-1] == (created, bases[-1])
    assert len(bases) == len(set(bases)) == 3
    assert (shared.path / "count").read_text() == "3"
    assert (shared.path / "others-2").exists()


async def test_a_push_gives_up_after_repeated_conflicts(
    open_mirror: OpenMirror, shared: Any
) -> None:
    async def edit(commit: str) -> list[CommitDraft]:
        shared.commit({"others": commit})
        return [CommitDraft({"count": b"1"}, "by piped")]

    async with open_mirror(shared.remote) as mirror:
        with pytest.raises(Conflict, match="others pushed to branch main"):
            await push(mirror.clone, PushRequest(edit, "main", "main"))


async def test_a_new_branch_starts_at_the_watched_one(
    open_mirror: OpenMirror, shared: Any, change: Any
) -> None:
    before = shared.git("rev-parse", "main")
    async with open_mirror(shared.remote) as mirror:
        first = await push(mirror.clone, change({"a": b"1"}, branch="updates/a"))
        second = await push(mirror.clone, change({"a": b"2"}, branch="updates/a"))
    assert shared.git("rev-parse", "main") == before
    assert shared.git("rev-parse", "updates/a", "updates/a^", "updates/a^^").split() == [
        second,
        first,
        before,
    ]


async def test_a_push_over_http_carries_the_password(
    open_mirror: OpenMirror, shared: Any, git_http: GitHttp, change: Any
) -> None:
    git_http.require("ann", "s3cret")
    credentials = GitCredentials(username="ann", password="s3cret")
    async with open_mirror(git_http.url("origin/.git"), credentials=credentials) as mirror:
        created = await push(mirror.clone, change({"a": b"1"}))
    assert shared.git("rev-parse", "main") == created


async def test_a_rejected_push_is_reported(
    open_mirror: OpenMirror, origin: Origin, change: Any
) -> None:
    hook = origin.path / ".git" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no pushes on Sunday >&2\nexit 1\n")
    hook.chmod(0o755)
    async with open_mirror(origin.remote) as mirror:
        with pytest.raises(Denied, match=r"was rejected \(pre-receive hook declined"):
            await push(mirror.clone, change({"a": b"1"}))


async def test_invalid_branches_and_paths_are_refused(
    open_mirror: OpenMirror, shared: Any, change: Any
) -> None:
    async with open_mirror(shared.remote) as mirror:
        with pytest.raises(UserMistake):
            await push(mirror.clone, change({"a": b"1"}, branch="--force"))
        with pytest.raises(UserMistake):
            await push(mirror.clone, change({"../a": b"1"}))


async def test_several_commits_are_pushed_together(open_mirror: OpenMirror, shared: Any) -> None:
    async def edit(_: str) -> list[CommitDraft]:
        return [
            CommitDraft({"a": b"1"}, "first"),
            CommitDraft({"a": b"1"}, "nothing new"),
            CommitDraft({"a": b"2", "b": b"1"}, "second"),
        ]

    before = shared.git("rev-parse", "main")
    async with open_mirror(shared.remote) as mirror:
        created = await push(mirror.clone, PushRequest(edit, "main", "main"))
    assert shared.git("rev-parse", "main", "main^^").split() == [created, before]
    assert shared.git("log", "-2", "--format=%s").split() == ["second", "first"]
    assert shared.git("show", "main:a", "main^:a") == "21"


async def test_files_may_be_many_and_contain_anything(
    open_mirror: OpenMirror, shared: Any, change: Any
) -> None:
    files = {f"many/{n}": bytes([n, 10, 0]) * n for n in range(256)}
    async with open_mirror(shared.remote) as mirror:
        created = await push(mirror.clone, change(files))
        assert created is not None
        assert {f.path for f in await mirror.objects.files(created, "many")} == files.keys()
    assert all((shared.path / name).read_bytes() == content for name, content in files.items())


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        pytest.param(CommitDraft({}, "one\n\ntwo\n"), "one\n\ntwo\n", id="without trailers"),
        pytest.param(
            CommitDraft({}, "one", {"B": "x\n\nC: y", "A": "z"}),
            "one\n\nA: z\nB: x C: y\n",
            id="a trailer of several lines becomes one line",
        ),
    ],
)
def test_a_message_ends_with_its_trailers(draft: CommitDraft, message: str) -> None:
    assert message_with_trailers(draft) == message
