# SPDX-License-Identifier: Apache-2.0
"""Commits and pushes changes of piped itself, without a working copy."""

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipecd.git.checkout import temporary_index
from pipecd.git.clone import Clone
from pipecd.git.command import GitCommand
from pipecd.git.validate import validate_branch, validate_path
from pipecd.model.errors import Conflict, Denied, PipecdError, Unavailable
from pipecd.program.run import Captured

_ATTEMPTS = 5
_REGULAR_FILE = 0o100644
_NON_FAST_FORWARD = re.compile(
    r"\[rejected\]|fetch first|non-fast-forward|cannot lock ref|failed to update ref|stale info",
    re.IGNORECASE,
)
_REJECTED_BY_REMOTE = re.compile(r"\[remote rejected\] \(?([^)\n]*)")


@dataclass(frozen=True)
class CommitDraft:
    """A commit to create: the new content of files by path, the message and its trailers."""

    files: Mapping[str, bytes]
    message: str
    trailers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class PushRequest:
    """Commits to create and push.

    `draft` returns the commits to put on top of a given commit, in their order; it is called again
    whenever somebody else has pushed in the meantime. `base` is the watched branch and `branch`
    the one to push to; they may be the same, and a new branch starts at the base. `before_push` is
    called with the last commit before each attempt.
    """

    draft: Callable[[str], Awaitable[Sequence[CommitDraft]]]
    base: str
    branch: str
    before_push: Callable[[str], Awaitable[None]] | None = None


async def push(clone: Clone, request: PushRequest) -> str | None:
    """Commits and pushes; returns the last commit, or None when no file differs."""
    git = clone.command
    ref = validate_branch(request.branch)
    rejected: PipecdError = Conflict(f"{git.display_name}: nothing was pushed")
    for _ in range(_ATTEMPTS):
        base = commit = await _fetch_base(clone, request)
        for draft in await request.draft(base):
            commit = await _create_commit(clone, commit, draft)
        if commit == base:
            return None
        if request.before_push is not None:
            await request.before_push(commit)
        done = await git.run_remote("push", "--porcelain", "origin", f"{commit}:{ref}")
        if done.code == 0:
            return commit
        rejected = _push_error(git, done, request.branch)
        if not isinstance(rejected, Conflict):
            raise rejected
    raise rejected


async def _fetch_base(clone: Clone, request: PushRequest) -> str:
    """Returns the commit to build on, as the remote has it now."""
    git = clone.command
    async with clone.locked():
        for branch in dict.fromkeys((request.branch, request.base)):
            ref = validate_branch(branch)
            done = await clone.try_fetch(f"+{ref}:{ref}")
            if done.code == 0:
                return (
                    (await git.output("rev-parse", "--verify", f"{ref}^{{commit}}"))
                    .decode()
                    .strip()
                )
            if b"couldn't find remote ref" not in done.stderr or branch == request.base:
                raise git.error(done)
    raise Unavailable(f"{git.display_name} has no branch {request.base}")


async def _create_commit(clone: Clone, base: str, draft: CommitDraft) -> str:
    """Creates the commit of a draft; returns the base when no file differs."""
    git = clone.command
    # One process writes all files to the object database and prints their ids.
    commands = [
        b"blob\nmark :%d\ndata %d\n%b\nget-mark :%d\n" % (mark, len(content), content, mark)
        for mark, content in enumerate(draft.files.values(), 1)
    ]
    arguments = ("fast-import", "--quiet", "--cat-blob-fd=1")
    blobs = (await git.output(*arguments, stdin=b"".join(commands))).decode().split()
    lines: list[bytes] = []
    for path, blob in zip(draft.files, blobs, strict=True):
        entry = await clone.objects.entry(base, path)
        mode = entry.mode if entry is not None else _REGULAR_FILE
        lines.append(f"{mode:o} {blob}\t".encode() + os.fsencode(validate_path(path)) + b"\0")
    with temporary_index(git.directory) as index:
        variables = {"GIT_INDEX_FILE": str(index)}
        await git.output("read-tree", base, variables=variables)
        await git.output(
            "update-index", "-z", "--index-info", stdin=b"".join(lines), variables=variables
        )
        tree = (await git.output("write-tree", variables=variables)).decode().strip()
    base_tree = await git.output("rev-parse", f"{base}^{{tree}}")
    if tree == base_tree.decode().strip():
        return base
    created = await git.output(
        *("commit-tree", tree, "-p", base),
        stdin=message_with_trailers(draft).encode(),
        variables=git.author_variables(),
    )
    return created.decode().strip()


def _push_error(git: GitCommand, done: Captured, branch: str) -> PipecdError:
    output = (done.stdout + done.stderr).decode("utf-8", "replace")
    if match := _REJECTED_BY_REMOTE.search(output):
        if not _NON_FAST_FORWARD.search(match[1]):
            return Denied(
                f"{git.display_name}: the push to branch {branch} was rejected ({match[1]})",
                hint="allow the account of piped to push to the branch",
            )
    elif not _NON_FAST_FORWARD.search(output):
        return git.error(done)
    return Conflict(
        f"{git.display_name}: others pushed to branch {branch} while piped changed it",
        hint="the branch is busy; try again later",
    )


def message_with_trailers(draft: CommitDraft) -> str:
    """Returns the message of a commit with its trailers, which are the last paragraph."""
    trailers = "\n".join(
        # A value of several lines would end the trailers.
        f"{key}: {' '.join(value.split())}"
        for key, value in sorted(draft.trailers.items())
    )
    return "\n\n".join(part for part in (draft.message.strip(), trailers) if part) + "\n"
