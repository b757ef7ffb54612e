# SPDX-License-Identifier: Apache-2.0
"""Merges on trial: the commit that a merge would make, in the copy only, on no branch."""

import tempfile
from pathlib import Path

from pipecd.git.bare import check_hash
from pipecd.git.push import Pushing
from pipecd.git.remote.address import check_branch_name
from pipecd.model.clock import to_unix
from pipecd.model.errors import NotFound, UserMistake

_MERGE_AT_MOST = 600.0
_CONFLICTS = 1
# What the option parser of git says about an option that it does not have.
_UNKNOWN_OPTION = 129


class MergeConflict(UserMistake):
    """Two commits change the same lines; `files` are the paths that a person has to settle."""

    def __init__(self, files: tuple[str, ...]) -> None:
        super().__init__(f"there are conflicts in {', '.join(files)}")
        self.files = files


class Merging(Pushing):
    """A copy of a repository in which commits can be merged without a trace on any branch."""

    async def find(self, commit: str, branch: str) -> str:
        """The full hash of a commit, which is fetched with its branch if it is not here yet."""
        check_hash(commit)
        if not await self._is_here(commit):
            await self._fetch_branch(branch)
        if not await self.has(commit):
            raise NotFound(
                f"commit {commit} is not in branch {branch} of {self.name}",
                hint="push it, or correct the commit or the branch",
            )
        return (await self.commit(commit)).hash

    async def merge(self, base: str, head: str, message: str) -> str:
        """The commit that merging `head` into `base` makes; the same merge is the same commit."""
        if (await self._git("merge-base", "--is-ancestor", head, base)).code == 0:
            return base
        tree = await self._merged_tree(base, head)
        seconds = max(0, to_unix((await self.commit(head)).created_at))
        dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"@{seconds} +0000")
        made = await self._told(
            *("commit-tree", tree, "-p", base, "-p", head),
            stdin=message.encode(),
            variables=self._identity() | dates,
        )
        return made.decode().strip()

    async def _fetch_branch(self, branch: str) -> None:
        check_branch_name(branch)
        async with self._lock:
            await self._prepare()
            try:
                await self._fetch(f"refs/heads/{branch}")
            except UserMistake as e:
                if "remote ref" not in e.message:
                    raise
                raise NotFound(
                    f"{self.name} has no branch {branch}",
                    hint="push it to the repository that piped watches",
                ) from e

    async def _merged_tree(self, base: str, head: str) -> str:
        done = await self._git(
            *("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", base, head),
            at_most=_MERGE_AT_MOST,
        )
        if done.code == _UNKNOWN_OPTION:
            return await self._merged_in_worktree(base, head)
        tree, *files = _texts(done.stdout) or [""]
        if done.code == _CONFLICTS:
            raise MergeConflict(tuple(files))
        if done.code:
            raise self._failure(done)
        return tree

    async def _merged_in_worktree(self, base: str, head: str) -> str:
        """The same with a git before 2.38, which needs files to merge."""
        with tempfile.TemporaryDirectory(prefix="merge-", dir=self.directory) as directory:
            # A repository that borrows the objects of this one has branches of its own.
            variables = {
                **self._identity(),
                "GIT_DIR": f"{directory}/.git",
                "GIT_WORK_TREE": directory,
                "GIT_OBJECT_DIRECTORY": str(self.directory / "objects"),
            }
            await self._told("init", "--quiet", "--template=", variables=variables)
            for command in (
                ("read-tree", "--reset", "-u", base),
                ("update-ref", "--no-deref", "HEAD", base),
            ):
                await self._told(*command, variables=variables)
            done = await self._git(
                *("merge", "--quiet", "--no-ff", "--no-commit", head),
                cwd=Path(directory),
                variables=variables,
                at_most=_MERGE_AT_MOST,
            )
            unmerged = await self._told(
                *("diff", "--name-only", "--diff-filter=U", "-z"), variables=variables
            )
            if files := _texts(unmerged):
                raise MergeConflict(tuple(files))
            if done.code:
                raise self._failure(done)
            return (await self._told("write-tree", variables=variables)).decode().strip()


def _texts(output: bytes) -> list[str]:
    return [each.decode("utf-8", "replace") for each in output.split(b"\0") if each]
