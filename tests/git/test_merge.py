# SPDX-License-Identifier: Apache-2.0
"""A trial merge creates the commit that `git merge` would create, and changes no branch."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.merge import MergeConflict, TrialMerge, merge_commits, resolve_commit
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from servers.origin import OpenMirror, Origin

OLD_GIT = """#!/bin/sh
case "$*" in *--write-tree*) echo "usage: git merge-tree" >&2; exit 129;; esac
exec {git} "$@"
"""


@pytest.fixture(params=["merges without files", "needs files to merge"])
def git_that(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> str:
    """A git of today, and one of before 2.38."""
    if request.param == "needs files to merge":
        git, programs = shutil.which("git"), tmp_path / "programs"
        programs.mkdir()
        (programs / "git").write_text(OLD_GIT.format(git=git))
        (programs / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return request.param


def branch(origin: Origin, files: dict[str, Any], name: str = "feature") -> str:
    """A branch with one commit; the main branch stays where it is."""
    origin.git("checkout", "-q", "-b", name)
    created = origin.commit(files)
    origin.git("checkout", "-q", "main")
    return created


@pytest.mark.usefixtures("git_that")
class TestMerge:
    async def test_a_merge_has_both_changes_and_moves_no_branch(
        self, open_mirror: OpenMirror, origin: Origin
    ) -> None:
        origin.commit({"a": "1\n2\n3\n4\n5\n", "moved": "some\nlines\nhere\n"})
        feature = branch(origin, {"a": "1\n2\n3\n4\nfive\n", "new": "n"})
        main = origin.commit({"a": "one\n2\n3\n4\n5\n", "moved": None, "to": "some\nlines\nhere\n"})
        async with open_mirror(origin.remote) as mirror:
            assert (await mirror.update()).hash == main
            head = await resolve_commit(mirror.clone, feature[:10], "feature")
            created = (await merge_commits(mirror.clone, main, head, "on trial")).commit
            assert await mirror.objects.read_file(created, "a") == b"one\n2\n3\n4\nfive\n"
            assert set(await mirror.objects.changed_files(main, created)) == {"a", "new"}
            assert (await mirror.objects.commit(created)).message == "on trial"
            assert (await mirror.update()).hash == main, "the followed branch has not moved"
            again = await merge_commits(mirror.clone, main, head, "on trial")
            assert again == TrialMerge(created)
            refs = [p for p in mirror.clone.directory.glob("refs/**/*") if p.is_file()]
            assert [ref.name for ref in refs] == ["main"]
            assert not list(mirror.clone.directory.glob("merge-*"))

    async def test_a_merge_follows_renames(self, open_mirror: OpenMirror, origin: Origin) -> None:
        origin.commit({"old": "".join(f"line {n}\n" for n in range(20))})
        feature = branch(origin, {"old": "".join(f"line {n}\n" for n in range(20)) + "more\n"})
        origin.git("mv", "old", "new")
        main = origin.commit()
        async with open_mirror(origin.remote) as mirror:
            await mirror.update()
            head = await resolve_commit(mirror.clone, feature, "feature")
            merge = await merge_commits(mirror.clone, main, head, "on trial")
            assert (await mirror.objects.read_file(merge.commit, "new")).endswith(b"more\n")

    async def test_conflicts_name_the_files(self, open_mirror: OpenMirror, origin: Origin) -> None:
        origin.commit({"a": "1\n", "b/c d": "1\n", "keep": "1\n"})
        feature = branch(origin, {"a": "2\n", "b/c d": "2\n", "keep": "2\n"})
        main = origin.commit({"a": "3\n", "b/c d": None})
        async with open_mirror(origin.remote) as mirror:
            await mirror.update()
            head = await resolve_commit(mirror.clone, feature, "feature")
            with pytest.raises(MergeConflict) as e:
                await merge_commits(mirror.clone, main, head, "on trial")
            assert e.value.files == ("a", "b/c d")
            assert not list(mirror.clone.directory.glob("merge-*"))

    async def test_merging_an_ancestor_returns_the_base(
        self, open_mirror: OpenMirror, origin: Origin
    ) -> None:
        first = origin.git("rev-parse", "HEAD")
        main = origin.commit({"a": "1"})
        async with open_mirror(origin.remote) as mirror:
            await mirror.update()
            merge = await merge_commits(mirror.clone, main, first, "on trial")
            assert merge == TrialMerge(main)

    async def test_unrelated_histories_are_not_merged(
        self, open_mirror: OpenMirror, origin: Origin
    ) -> None:
        main = origin.git("rev-parse", "HEAD")
        origin.git("checkout", "-q", "--orphan", "feature")
        feature = origin.commit({"other": "1"})
        async with open_mirror(origin.remote) as mirror:
            await mirror.update()
            head = await resolve_commit(mirror.clone, feature, "feature")
            with pytest.raises(PipecdError, match="unrelated histories"):
                await merge_commits(mirror.clone, main, head, "on trial")


@pytest.mark.parametrize(
    ("commit", "name", "expected"),
    [
        pytest.param("0" * 40, "main", "commit 0{40} is not in branch main", id="no such commit"),
        pytest.param("0" * 40, "gone", "has no branch gone", id="no such branch"),
        pytest.param("main", "main", "'main' is not the hash of a commit", id="a name"),
        pytest.param("", "main", "'' is not the hash of a commit", id="nothing"),
    ],
)
async def test_resolve_commit_refuses(
    open_mirror: OpenMirror, origin: Origin, commit: str, name: str, expected: str
) -> None:
    async with open_mirror(origin.remote) as mirror:
        with pytest.raises(NotFound, match=expected):
            await resolve_commit(mirror.clone, commit, name)


@pytest.mark.parametrize("name", ["--upload-pack=touch x", "a b", "a:b"])
async def test_an_invalid_branch_name_never_reaches_git(
    open_mirror: OpenMirror, origin: Origin, name: str
) -> None:
    async with open_mirror(origin.remote) as mirror:
        with pytest.raises(UserMistake):
            await resolve_commit(mirror.clone, "0" * 40, name)
