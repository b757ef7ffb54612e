# SPDX-License-Identifier: Apache-2.0
"""Merges on trial make the commit that a person's merge would make, and leave no other trace."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.merge import MergeConflict
from pipecd.model.errors import NotFound, PipecdError, UserMistake

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


def branch(origin: Any, files: dict[str, Any], name: str = "feature") -> str:
    """A branch with one commit; the main branch stays where it is."""
    origin.git("checkout", "-q", "-b", name)
    made = origin.commit(files)
    origin.git("checkout", "-q", "main")
    return made


@pytest.mark.usefixtures("git_that")
class TestMerge:
    async def test_both_changes_are_in_the_merge_and_on_no_branch(
        self, mirrored: Any, origin: Any
    ) -> None:
        origin.commit({"a": "1\n2\n3\n4\n5\n", "moved": "some\nlines\nhere\n"})
        feature = branch(origin, {"a": "1\n2\n3\n4\nfive\n", "new": "n"})
        main = origin.commit({"a": "one\n2\n3\n4\n5\n", "moved": None, "to": "some\nlines\nhere\n"})
        async with mirrored(origin.remote) as mirror:
            assert (await mirror.update()).hash == main
            found = await mirror.find(feature[:10], "feature")
            made = await mirror.merge(main, found, "on trial")
            assert await mirror.read_file(made, "a") == b"one\n2\n3\n4\nfive\n"
            assert set(await mirror.changed_files(main, made)) == {"a", "new"}
            assert (await mirror.commit(made)).message == "on trial"
            assert (await mirror.update()).hash == main, "the followed branch has not moved"
            assert await mirror.merge(main, found, "on trial") == made
            refs = [p for p in mirror.directory.glob("refs/**/*") if p.is_file()]
            assert [ref.name for ref in refs] == ["main"]
            assert not list(mirror.directory.glob("merge-*"))

    async def test_a_file_that_was_moved_takes_its_changes_along(
        self, mirrored: Any, origin: Any
    ) -> None:
        origin.commit({"old": "".join(f"line {n}\n" for n in range(20))})
        feature = branch(origin, {"old": "".join(f"line {n}\n" for n in range(20)) + "more\n"})
        origin.git("mv", "old", "new")
        main = origin.commit()
        async with mirrored(origin.remote) as mirror:
            await mirror.update()
            made = await mirror.merge(main, await mirror.find(feature, "feature"), "on trial")
            assert (await mirror.read_file(made, "new")).endswith(b"more\n")

    async def test_conflicts_name_the_files(self, mirrored: Any, origin: Any) -> None:
        origin.commit({"a": "1\n", "b/c d": "1\n", "keep": "1\n"})
        feature = branch(origin, {"a": "2\n", "b/c d": "2\n", "keep": "2\n"})
        main = origin.commit({"a": "3\n", "b/c d": None})
        async with mirrored(origin.remote) as mirror:
            await mirror.update()
            found = await mirror.find(feature, "feature")
            with pytest.raises(MergeConflict) as e:
                await mirror.merge(main, found, "on trial")
            assert e.value.files == ("a", "b/c d")
            assert not list(mirror.directory.glob("merge-*"))

    async def test_what_is_merged_already_stays_as_it_is(self, mirrored: Any, origin: Any) -> None:
        first = origin.git("rev-parse", "HEAD")
        main = origin.commit({"a": "1"})
        async with mirrored(origin.remote) as mirror:
            await mirror.update()
            assert await mirror.merge(main, first, "on trial") == main

    async def test_histories_without_a_common_commit_are_not_merged(
        self, mirrored: Any, origin: Any
    ) -> None:
        main = origin.git("rev-parse", "HEAD")
        origin.git("checkout", "-q", "--orphan", "feature")
        feature = origin.commit({"other": "1"})
        async with mirrored(origin.remote) as mirror:
            await mirror.update()
            found = await mirror.find(feature, "feature")
            with pytest.raises(PipecdError, match="unrelated histories"):
                await mirror.merge(main, found, "on trial")


@pytest.mark.parametrize(
    ("commit", "name", "told"),
    [
        pytest.param("0" * 40, "main", "commit 0{40} is not in branch main", id="no such commit"),
        pytest.param("0" * 40, "gone", "has no branch gone", id="no such branch"),
        pytest.param("main", "main", "'main' is not the hash of a commit", id="a name"),
        pytest.param("", "main", "'' is not the hash of a commit", id="nothing"),
    ],
)
async def test_what_cannot_be_found(
    mirrored: Any, origin: Any, commit: str, name: str, told: str
) -> None:
    async with mirrored(origin.remote) as mirror:
        with pytest.raises(NotFound, match=told):
            await mirror.find(commit, name)


@pytest.mark.parametrize("name", ["--upload-pack=touch x", "a b", "a:b"])
async def test_a_branch_name_that_is_none_reaches_no_program(
    mirrored: Any, origin: Any, name: str
) -> None:
    async with mirrored(origin.remote) as mirror:
        with pytest.raises(UserMistake):
            await mirror.find("0" * 40, name)
