# SPDX-License-Identifier: Apache-2.0
"""Changes that piped itself makes to a repository: files in, a commit, a push, no working copy."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipecd.git.bare import BareCopy
from pipecd.git.objects import inside
from pipecd.git.remote.address import check_branch_name
from pipecd.model.errors import Conflict, Denied, PipecdError, Unavailable
from pipecd.program.capture import Captured

_ATTEMPTS = 5
_NEW_FILE = 0o100644
_LOST_RACE = re.compile(
    r"\[rejected\]|fetch first|non-fast-forward|cannot lock ref|failed to update ref|stale info",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"\[remote rejected\] \(?([^)\n]*)")


@dataclass(frozen=True)
class Draft:
    """A commit to make: the files that are different after it, by path."""

    files: Mapping[str, bytes]
    message: str
    trailers: Mapping[str, str] = field(default_factory=dict[str, str])


# Given the commit to build on, the commits to put on top of it, in their order.
Edit = Callable[[str], Awaitable[Sequence[Draft]]]


@dataclass(frozen=True)
class Change:
    """Commits to make; `edit` is asked anew whenever somebody else was faster.

    `base` is the watched branch and `branch` where the commits go, which may be the same; one
    that does not exist yet begins at the base.
    """

    edit: Edit
    base: str
    branch: str


class Pushing(BareCopy):
    """A copy of a repository that can also be written to."""

    async def push(self, change: Change) -> str | None:
        """Commits and pushes; returns the last commit, or None when nothing was different."""
        check_branch_name(change.branch)
        refused: PipecdError | None = None
        for _ in range(_ATTEMPTS):
            base = commit = await self._base(change)
            for draft in await change.edit(base):
                commit = await self._commit(commit, draft)
            if commit == base:
                return None
            target = f"{commit}:refs/heads/{change.branch}"
            done = await self._remotely("push", "--porcelain", "origin", target)
            if done.code == 0:
                return commit
            refused = self._refusal(done, change.branch)
            if not isinstance(refused, Conflict):
                raise refused
        raise refused or Conflict(f"{self.name}: nothing was pushed")

    async def _base(self, change: Change) -> str:
        """The commit to build on, as the remote has it in this moment."""
        async with self._lock:
            await self._prepare()
            for branch in dict.fromkeys((change.branch, change.base)):
                ref = f"refs/heads/{branch}"
                done = await self._try_fetch(f"+{ref}:{ref}")
                if done.code == 0:
                    found = await self._told("rev-parse", "--verify", f"{ref}^{{commit}}")
                    return found.decode().strip()
                if b"couldn't find remote ref" not in done.stderr or branch == change.base:
                    raise self._failure(done)
        raise Unavailable(f"{self.name} has no branch {change.base}")

    async def _commit(self, base: str, draft: Draft) -> str:
        """The commit of a draft, or the one before it when nothing is different."""
        lines: list[bytes] = []
        blobs = await self._stored(draft.files.values())
        for path, blob in zip(draft.files, blobs, strict=True):
            entry = await self.entry(base, path)
            mode = entry.mode if entry is not None else _NEW_FILE
            name = inside(path).encode("utf-8", "surrogateescape")
            lines.append(f"{mode:o} {blob}\t".encode() + name + b"\0")
        with self._index(None) as index:
            where = {"GIT_INDEX_FILE": str(index)}
            await self._told("read-tree", base, variables=where)
            await self._told(
                "update-index", "-z", "--index-info", stdin=b"".join(lines), variables=where
            )
            tree = (await self._told("write-tree", variables=where)).decode().strip()
        before = await self._told("rev-parse", f"{base}^{{tree}}")
        if tree == before.decode().strip():
            return base
        made = await self._told(
            "commit-tree",
            tree,
            "-p",
            base,
            stdin=whole_message(draft).encode(),
            variables=self._identity(),
        )
        return made.decode().strip()

    async def _stored(self, contents: Iterable[bytes]) -> list[str]:
        """Puts contents into the object database, by one program; returns their ids."""
        orders = [
            b"blob\nmark :%d\ndata %d\n%b\nget-mark :%d\n" % (mark, len(content), content, mark)
            for mark, content in enumerate(contents, 1)
        ]
        arguments = ("fast-import", "--quiet", "--cat-blob-fd=1")
        return (await self._told(*arguments, stdin=b"".join(orders))).decode().split()

    def _identity(self) -> dict[str, str]:
        """Who makes the commits of piped."""
        name, email = self._environment.author
        return {
            f"GIT_{role}_{part}": value
            for role in ("AUTHOR", "COMMITTER")
            for part, value in (("NAME", name), ("EMAIL", email))
        }

    async def _told(
        self, *arguments: str, stdin: bytes = b"", variables: dict[str, str] | None = None
    ) -> bytes:
        done = await self._git(*arguments, stdin=stdin, variables=variables)
        if done.code:
            raise self._failure(done)
        return done.stdout

    def _refusal(self, done: Captured, branch: str) -> PipecdError:
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        if match := _REFUSED.search(said):
            if not _LOST_RACE.search(match[1]):
                return Denied(
                    f"{self.name}: the push to branch {branch} was refused ({match[1]})",
                    hint="allow the account of piped to push to the branch",
                )
        elif not _LOST_RACE.search(said):
            return self._failure(done)
        return Conflict(
            f"{self.name}: branch {branch} was moved by others while piped changed it",
            hint="it is busy; try again later",
        )


def whole_message(draft: Draft) -> str:
    """The message of a commit with its trailers, which are the last paragraph."""
    trailers = "\n".join(
        # A value of several lines would end the trailers.
        f"{key}: {' '.join(value.split())}"
        for key, value in sorted(draft.trailers.items())
    )
    return "\n\n".join(part for part in (draft.message.strip(), trailers) if part) + "\n"
