# SPDX-License-Identifier: Apache-2.0
"""Writes commits from a clone into directories, with their submodules and files of Git LFS.

Whole commits are written once and hard-linked: a file that two commits have in common, or that a
working copy took from a commit, is one file with several names. A working copy then costs its
directories, however large the repository is.
"""

import asyncio
import os
import shutil
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import structlog

from pipecd.git.clone import Clone, CorruptClone
from pipecd.git.errors import is_corrupt, is_missing, is_missing_tree
from pipecd.git.lfs import LfsFiles
from pipecd.git.small_checkout import read_small_files, write_small_files
from pipecd.git.submodules import find_submodules
from pipecd.git.tree_limits import TreeLimits, TreeSize, check_size
from pipecd.git.validate import validate_hash, validate_path
from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.program.limits import LimitExceeded
from pipecd.program.run import capture

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WRITE_TIMEOUT = 600.0
# Running deployments need these again; an older commit is created from its neighbour.
_CACHED_COMMITS = 4
# A submodule may contain submodules, and even itself at another commit.
_MAX_SUBMODULES = 1000


class SubmoduleBudget:
    """How much the submodules of one working copy have written, those within each other too."""

    def __init__(self, limits: TreeLimits) -> None:
        self._limits, self._count, self._written = limits, 0, TreeSize()

    def add(self, submodule: TreeSize, *, what: str) -> None:
        """Adds a submodule; raises LimitExceeded if that is too much."""
        self._count += 1
        self._written += submodule
        if self._count > _MAX_SUBMODULES:
            raise LimitExceeded(
                f"{what} has more than {_MAX_SUBMODULES:,} submodules", hint="remove some"
            )
        check_size(self._written, self._limits, what=f"{what} with its submodules")


class Checkout:
    """Writes files of commits from a clone; `submodule` returns the checkout of a remote."""

    def __init__(self, clone: Clone, submodule: "Callable[[str], Checkout]") -> None:
        self.clone, self._submodule = clone, submodule

    async def write(
        self,
        commit: str,
        into: Path,
        *,
        paths: Sequence[str] = (),
        budget: SubmoduleBudget | None = None,
    ) -> None:
        """Writes some paths of a commit, or all of it, into a directory, as `git clone` would.

        If the commit is that of a submodule, `budget` is that of the working copy.
        """
        await self.write_tree(commit, into, paths=paths)
        await self.add_submodules_and_lfs(commit, into, paths=paths, budget=budget)

    async def write_tree(
        self, commit: str, into: Path, *, paths: Sequence[str] = (), index: Path | None = None
    ) -> None:
        """Writes files as git stores them; with an earlier index, only those that differ.

        If the clone turns out to be corrupt, it is cloned again, once.
        """
        validate_hash(commit)
        generation = self.clone.generation
        try:
            await self._write_tree(commit, into, paths, index)
        except PipecdError as e:
            if not await self.clone.recover(generation, e):
                raise
            await self.clone.ensure_commit(commit)
            await self._write_tree(commit, into, paths, index)

    async def write_new(self, commit: str, into: Path, *, paths: Sequence[str]) -> bool:
        """Writes paths into an empty directory, a few small files without a git process.

        Returns whether that is all: such files have neither submodules nor files of Git LFS.
        """
        validate_hash(commit)
        try:
            files = await read_small_files(self.clone.objects, commit, paths)
        except PipecdError:
            # Git says what is wrong, and a corrupt clone is replaced.
            files = None
        if files is None:
            await self.write_tree(commit, into, paths=paths)
            return False
        try:
            await asyncio.to_thread(write_small_files, files, into)
        except OSError as e:
            raise Unavailable(f"a working copy could not be created: {e.strerror}") from e
        return True

    async def add_submodules_and_lfs(
        self,
        commit: str,
        into: Path,
        *,
        paths: Sequence[str] = (),
        budget: SubmoduleBudget | None = None,
    ) -> None:
        """Adds the submodules and the files of Git LFS to a written tree.

        In a whole commit the application may not need them, so there a failure is only a warning.
        """
        command, limits = self.clone.command, self.clone.objects.limits
        lfs = LfsFiles(command.display_name, command.directory, command.remote_variables(), limits)
        add_submodules = partial(self._add_submodules, budget=budget or SubmoduleBudget(limits))
        for add in (add_submodules, lfs.replace_pointers):
            try:
                await add(commit, into, paths=paths)
            except PipecdError as e:
                if paths or isinstance(e, LimitExceeded):
                    raise
                log.warning(
                    "submodules or files of Git LFS are missing in a working copy",
                    repository=command.repository_id,
                    commit=commit,
                    error=str(e),
                )

    def link_history(self, commit: str, into: Path) -> None:
        """Lets git commands in a working copy read its commit and the history before it.

        There is no index: files that are not in the working copy would look deleted.
        """
        validate_hash(commit)
        _write_git_directory(self.clone.directory, commit, into / ".git")

    async def _write_tree(
        self, commit: str, into: Path, paths: Sequence[str], index: Path | None
    ) -> None:
        try:
            await self.clone.objects.check_size(commit, paths)
        except LimitExceeded:
            raise
        except PipecdError:
            # Git says what is wrong.
            pass
        with temporary_index(self.clone.directory) as temporary:
            used = index or temporary
            variables = {"GIT_WORK_TREE": str(into), "GIT_INDEX_FILE": str(used)}
            arguments, stdin = ["read-tree", "--reset", "-u", commit], b""
            if paths:
                arguments = ["checkout", "-q", "-f", commit]
                arguments += ["--pathspec-from-file=-", "--pathspec-file-nul"]
                stdin = b"\0".join(os.fsencode(validate_path(path)) for path in paths)
                variables["GIT_LITERAL_PATHSPECS"] = "1"
            done = await self.clone.command.run(
                *arguments,
                cwd=into,
                stdin=stdin,
                variables=variables,
                timeout_seconds=_WRITE_TIMEOUT,
            )
        if done.code == 0:
            return
        stderr = done.stderr.decode("utf-8", "replace")
        cause = stderr.strip().partition("\n")[0].removeprefix("fatal: ").removeprefix("error: ")
        is_lost = is_missing_tree(stderr) and self.clone.objects.was_read(commit)
        if is_missing(stderr) and not is_lost:
            raise NotFound(f"commit {commit} or a path in it was not found ({cause})")
        if is_lost or is_corrupt(stderr) or not await self.clone.is_usable():
            name = self.clone.command.display_name
            raise CorruptClone(f"the local clone of {name} is corrupt ({cause})")
        raise self.clone.command.error(done)

    async def _add_submodules(
        self, commit: str, into: Path, *, paths: Sequence[str], budget: SubmoduleBudget
    ) -> None:
        for module in await find_submodules(
            self.clone.objects, commit, remote=self.clone.command.remote, paths=paths
        ):
            checkout = self._submodule(module.remote)
            await checkout.clone.ensure_commit(module.commit)
            size = await checkout.clone.objects.check_size(module.commit, module.paths)
            budget.add(size, what=f"commit {commit[:7]} of {self.clone.command.display_name}")
            directory = into / module.path
            await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
            await checkout.write(module.commit, directory, paths=module.paths, budget=budget)


class SharedCheckouts:
    """Caches the latest whole commits of every repository, as trees to hard-link from."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cached: dict[Path, OrderedDict[str, Path]] = {}
        self._locks: dict[Path, asyncio.Lock] = {}

    async def link(self, checkout: Checkout, commit: str, into: Path) -> None:
        """Fills an empty directory with every file of a commit, without copying any."""
        async with self._locks.setdefault(checkout.clone.directory, asyncio.Lock()):
            await _link(await self._tree(checkout, commit), into)

    async def _tree(self, checkout: Checkout, commit: str) -> Path:
        clone = checkout.clone.directory
        cached = self._cached.setdefault(clone, OrderedDict())
        if not await asyncio.to_thread(lambda: all(map(_is_complete, cached.values()))):
            log.warning("shared checkouts were removed, writing them again", directory=str(clone))
            cached.clear()
        latest = next(reversed(cached.values()), None)
        tree = cached.pop(commit, None)
        if tree is None:
            tree = self._directory / clone.name / validate_hash(commit)
            await asyncio.to_thread(_remove, tree)
            await asyncio.to_thread(tree.mkdir, mode=0o700, parents=True)
            if latest is not None:
                await _link(latest, tree)
                await asyncio.to_thread(shutil.copyfile, _index(latest), _index(tree))
        try:
            # A cached tree as well: a working copy may have written to a shared file.
            await checkout.write_tree(commit, tree, index=_index(tree))
        except BaseException:
            # The next one starts from scratch: the tree or the index may be damaged.
            for each in (tree, *cached.values()):
                await asyncio.to_thread(_remove, each)
            cached.clear()
            raise
        cached[commit] = tree
        while len(cached) > _CACHED_COMMITS:
            await asyncio.to_thread(_remove, cached.popitem(last=False)[1])
        return tree


@contextmanager
def temporary_index(repository: Path) -> Generator[Path]:
    """An index file for one command."""
    index = repository / f"index-{uuid.uuid4().hex}"
    try:
        yield index
    finally:
        index.unlink(missing_ok=True)
        index.with_name(f"{index.name}.lock").unlink(missing_ok=True)


async def _link(tree: Path, into: Path) -> None:
    # Hard links do not cross file systems.
    is_same = await asyncio.to_thread(lambda: tree.stat().st_dev == into.stat().st_dev)
    mode = "-al" if is_same else "-a"
    done = await capture(["cp", mode, f"{tree}/.", f"{into}/"], cwd=tree, at_most=_WRITE_TIMEOUT)
    if done.code:
        cause = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise Unavailable(f"a working copy could not be created: {cause}")


def _index(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.index")


def _is_complete(tree: Path) -> bool:
    return tree.is_dir() and _index(tree).is_file()


def _remove(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    _index(tree).unlink(missing_ok=True)


def _write_git_directory(repository: Path, commit: str, directory: Path) -> None:
    for name in ("objects/info", "refs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "HEAD").write_text(f"{commit}\n")
    (directory / "config").write_text("[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n")
    (directory / "objects" / "info" / "alternates").write_text(f"{repository / 'objects'}\n")
