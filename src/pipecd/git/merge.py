# SPDX-License-Identifier: Apache-2.0
"""Trial merges: the commit that merging a branch would create, in the local clone only."""

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.git.clone import Clone
from pipecd.git.command import GitCommand
from pipecd.git.oversized import leave_out_oversized
from pipecd.git.validate import validate_branch, validate_hash
from pipecd.model.clock import to_unix
from pipecd.model.errors import NotFound, UserMistake
from pipecd.program.limits import LimitExceeded

_MERGE_TIMEOUT = 600.0
_CONFLICTS_EXIT_CODE = 1
# The exit code of git for an option that it does not have.
_UNKNOWN_OPTION_EXIT_CODE = 129


class MergeConflict(UserMistake):
    """Two commits change the same lines; `files` are the paths with conflicts."""

    def __init__(self, files: tuple[str, ...]) -> None:
        super().__init__(f"there are conflicts in {', '.join(files)}")
        self.files = files


@dataclass(frozen=True)
class TrialMerge:
    """The commit of a merge, and the directories that it leaves as they are in the base."""

    commit: str
    left_out: Mapping[str, LimitExceeded] = field(default_factory=dict[str, LimitExceeded])


async def resolve_commit(clone: Clone, commit: str, branch: str) -> str:
    """Returns the full hash of a commit; fetches its branch if the commit is not cloned yet."""
    validate_hash(commit)
    if not await clone.is_available(commit):
        ref = validate_branch(branch)
        async with clone.locked():
            try:
                await clone.fetch(ref)
            except UserMistake as e:
                if "remote ref" not in e.message:
                    raise
                raise NotFound(
                    f"{clone.command.display_name} has no branch {branch}",
                    hint="push it to the repository that piped watches",
                ) from e
    if not await clone.objects.has_commit(commit):
        raise NotFound(
            f"commit {commit} is not in branch {branch} of {clone.command.display_name}",
            hint="push it, or correct the commit or the branch",
        )
    return (await clone.objects.commit(commit)).hash


async def merge_commits(
    clone: Clone, base: str, head: str, message: str, *, directories: Iterable[str] = ()
) -> TrialMerge:
    """Returns the commit that merges `head` into `base`; the same merge has the same hash.

    Git reads every directory that differs. Those of `directories` that exceed a limit in `head` are
    left as in `base`; anything else that exceeds one raises LimitExceeded.
    """
    git = clone.command
    validate_hash(base)
    validate_hash(head)
    if (await git.run("merge-base", "--is-ancestor", head, base)).code == 0:
        return TrialMerge(base)
    merge_bases = (await git.run("merge-base", "--all", base, head)).stdout.decode().split()
    for commit in (base, *merge_bases):
        await clone.objects.check_size(commit, with_size=False)
    merging, left_out = head, dict[str, LimitExceeded]()
    try:
        await clone.objects.check_size(head, with_size=False)
    except LimitExceeded:
        reduced = await leave_out_oversized(clone, head, instead=base, directories=directories)
        merging = await _commit(clone, reduced.tree, message, parents=(head,))
        left_out.update(reduced.left_out)
    tree = await _merged_tree(git, base, merging)
    return TrialMerge(await _commit(clone, tree, message, parents=(base, head)), left_out)


async def _commit(clone: Clone, tree: str, message: str, *, parents: tuple[str, ...]) -> str:
    """Commits a tree at the time of the last parent."""
    git = clone.command
    seconds = max(0, to_unix((await clone.objects.commit(parents[-1])).created_at))
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), f"@{seconds} +0000")
    created = await git.output(
        *("commit-tree", tree, *(word for parent in parents for word in ("-p", parent))),
        stdin=message.encode(),
        variables=git.author_variables() | dates,
    )
    return created.decode().strip()


async def _merged_tree(git: GitCommand, base: str, head: str) -> str:
    done = await git.run(
        *("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", base, head),
        timeout_seconds=_MERGE_TIMEOUT,
    )
    if done.code == _UNKNOWN_OPTION_EXIT_CODE:
        return await _merged_tree_by_worktree(git, base, head)
    tree, *files = _split_names(done.stdout) or [""]
    if done.code == _CONFLICTS_EXIT_CODE:
        raise MergeConflict(tuple(files))
    if done.code:
        raise git.error(done)
    return tree


async def _merged_tree_by_worktree(git: GitCommand, base: str, head: str) -> str:
    """Returns the merged tree with git before 2.38, which needs a working tree to merge."""
    with tempfile.TemporaryDirectory(prefix="merge-", dir=git.directory) as directory:
        # A repository that borrows the objects of the clone has branches of its own.
        variables = {
            **git.author_variables(),
            "GIT_DIR": f"{directory}/.git",
            "GIT_WORK_TREE": directory,
            "GIT_OBJECT_DIRECTORY": str(git.directory / "objects"),
        }
        for command in (
            ("init", "--quiet", "--template="),
            ("read-tree", "--reset", "-u", base),
            ("update-ref", "--no-deref", "HEAD", base),
        ):
            await git.output(*command, variables=variables)
        done = await git.run(
            *("merge", "--quiet", "--no-ff", "--no-commit", head),
            cwd=Path(directory),
            variables=variables,
            timeout_seconds=_MERGE_TIMEOUT,
        )
        unmerged = await git.output(
            *("diff", "--name-only", "--diff-filter=U", "-z"), variables=variables
        )
        if files := _split_names(unmerged):
            raise MergeConflict(tuple(files))
        if done.code:
            raise git.error(done)
        return (await git.output("write-tree", variables=variables)).decode().strip()


def _split_names(output: bytes) -> list[str]:
    return [each.decode("utf-8", "replace") for each in output.split(b"\0") if each]
