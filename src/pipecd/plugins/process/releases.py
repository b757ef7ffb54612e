# SPDX-License-Identifier: Apache-2.0
"""Copies the files of a commit into a release, which nothing else changes.

A release is complete when its manifest exists. It contains no link that leads out of it, and not
the configuration of the application: what of it makes another program is part of the program.
"""

import grp
import os
import pwd
import re
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pipecd.plugins.process.release_files import (
    Manifest,
    ReleaseFile,
    ReleaseLimits,
    changed_files,
    content_digest,
    file_digest,
    manifest_path,
    read_manifest,
    write_manifest,
)
from pipecd.plugins.process.state_file import create_passable
from pipecd.sdk import UserMistake
from pipecd.sdk.files import contained_path

_GIT_DIRECTORY = ".git"
# Another application in the same directory has a file of this kind, too.
_CONFIG_SUFFIX = ".pipecd.yaml"


@dataclass(frozen=True)
class SourceFile:
    """Where a file of a release comes from."""

    path: Path
    file: ReleaseFile


@dataclass(frozen=True)
class SourceTree:
    """The files of an application at a commit."""

    files: Mapping[str, SourceFile]
    digest: str

    @property
    def contents(self) -> dict[str, ReleaseFile]:
        """The files without where they come from."""
        return {name: each.file for name, each in self.files.items()}


_DEFAULT_LIMITS = ReleaseLimits()


def read_tree(
    application: Path, working_copy: Path, *, config: str, limits: ReleaseLimits = _DEFAULT_LIMITS
) -> SourceTree:
    """Lists the files of an application; refuses what cannot be part of a release.

    `config` is the name of the configuration file of the application.
    """
    files, size = dict[str, SourceFile](), 0
    for name, each in _walk(application.resolve(), working_copy):
        if _is_config(name, config):
            continue
        files[name] = each
        # A link out of the application is replaced by its file, so it may repeat a large one.
        size += 0 if each.file.link else each.path.stat().st_size
        _check_limits(len(files), size, limits)
    return SourceTree(files, content_digest({name: each.file for name, each in files.items()}))


def _check_limits(files: int, size: int, limits: ReleaseLimits) -> None:
    if files > limits.files:
        raise UserMistake(
            f"the application has more than {limits.files} files",
            hint="remove some, or raise releaseFiles of the deploy target",
        )
    if size > limits.size:
        raise UserMistake(
            f"the application is larger than {limits.size} bytes",
            hint="remove files, or raise releaseSize of the deploy target",
        )


def _walk(root: Path, working_copy: Path) -> Iterator[tuple[str, SourceFile]]:
    queue = [root]
    while queue:
        for path in sorted(queue.pop().iterdir()):
            if path.name == _GIT_DIRECTORY:
                continue
            name = str(path.relative_to(root))
            if path.is_symlink():
                yield name, _link(root, working_copy, path, name)
            elif path.is_dir():
                queue.append(path)
            elif path.is_file():
                yield name, _regular(path)
            else:
                raise UserMistake(
                    f"{name} is neither a file nor a directory",
                    hint="remove it from the repository",
                )


def _is_config(name: str, config: str) -> bool:
    return name == config or ("/" not in name and name.endswith(_CONFIG_SUFFIX))


def _regular(path: Path) -> SourceFile:
    is_executable = bool(path.stat().st_mode & stat.S_IXUSR)
    return SourceFile(path, ReleaseFile(file_digest(path), is_executable))


def _link(root: Path, working_copy: Path, path: Path, name: str) -> SourceFile:
    """A link inside of the application stays one; a file elsewhere in the repository is copied."""
    try:
        target = contained_path(working_copy, path)
    except UserMistake as e:
        raise UserMistake(f"the link {name} cannot be released: {e.message}") from e
    if target.is_relative_to(root):
        relative = os.path.relpath(target, path.parent.resolve())
        return SourceFile(path, ReleaseFile(link=relative))
    if target.is_file():
        return _regular(target)
    raise UserMistake(
        f"the link {name} leads out of the directory of the application",
        hint="put what it leads to into that directory, or link to single files",
    )


@dataclass(frozen=True)
class Release:
    """A complete release on disk."""

    path: Path
    revision: int


def copy_release(tree: SourceTree, commit: str, parent: Path, *, user: str = "") -> Release:
    """Returns the release of a tree, copied unless an unchanged copy exists."""
    revision = _revision(parent, tree.digest)
    suffix = f"-{revision}" if revision else ""
    release = parent / f"{commit[:12]}-{tree.digest}{suffix}"
    if read_manifest(release) is not None:
        return Release(release, revision)
    create_passable(parent)
    group = _group_of(parent, user) if user else None
    # What an interrupted copy left has no manifest.
    shutil.rmtree(release, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(prefix=".copy-", dir=parent))
    try:
        files = {name: _copy(each, scratch / name) for name, each in tree.files.items()}
        if group is not None:
            _open_to(scratch, group)
        scratch.rename(release)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    write_manifest(release, Manifest(tree.digest, files))
    return Release(release, revision)


def _revision(parent: Path, digest: str) -> int:
    """Returns the revision of a copy of these files, of whatever commit.

    A changed copy makes the next one another program, which replaces the one that runs; an
    unchanged copy of another commit is the same program, which continues.
    """
    name = re.compile(rf".*-{re.escape(digest)}(?:-(\d+))?")
    copies = [(path, name.fullmatch(path.name)) for path in parent.glob(f"*-{digest}*")]
    return max(
        (
            int(found[1] or 0) + bool(changed_files(path))
            for path, found in copies
            if found and read_manifest(path) is not None
        ),
        default=0,
    )


def _copy(source: SourceFile, target: Path) -> ReleaseFile:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if source.file.link:
        target.symlink_to(source.file.link)
        return source.file
    shutil.copyfile(source.path, target, follow_symlinks=True)
    target.chmod(0o700 if source.file.is_executable else 0o600)
    status = target.stat()
    return replace(source.file, size=status.st_size, modified=status.st_mtime_ns)


def _group_of(parent: Path, user: str) -> int:
    """Returns the group of a user who can enter the directory of releases."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise UserMistake(
            f"the user {user!r} does not exist", hint="create it, or correct limits.user"
        ) from None
    if os.geteuid() != 0:
        if os.geteuid() == account.pw_uid:
            return account.pw_gid
        raise UserMistake(
            f"only root may start programs as {user!r}",
            hint="run piped as root, or leave out limits.user",
        )
    for directory in (parent, *parent.parents):
        status = directory.stat()
        if status.st_uid != account.pw_uid and not status.st_mode & stat.S_IXOTH:
            raise UserMistake(
                f"the user {user!r} may not enter {directory}, where the release would be",
                hint="set `directory` of the deploy target to one that every user may enter, such "
                "as /var/lib/pipecd-process",
            )
    return account.pw_gid


def others_of_group(
    account: pwd.struct_passwd, accounts: Iterable[pwd.struct_passwd], members: Iterable[str]
) -> list[str]:
    """Returns who else is in the primary group of an account, and can read its releases.

    `accounts` are all of this machine, `members` those that the group names.
    """
    alike = {each.pw_name for each in accounts if each.pw_gid == account.pw_gid}
    return sorted(alike.union(members) - {account.pw_name})


def readers_of_releases(user: str) -> list[str]:
    """Returns who besides a user can read its releases, as far as this machine lists accounts."""
    account = pwd.getpwnam(user)
    try:
        members = grp.getgrgid(account.pw_gid).gr_mem
    except KeyError:
        members = list[str]()
    return others_of_group(account, pwd.getpwall(), members)


def _open_to(release: Path, group: int) -> None:
    """Lets a group read a release, but not change it."""
    for path in (release, *release.rglob("*")):
        if not path.is_symlink():
            os.chown(path, -1, group)
            path.chmod(stat.S_IMODE(path.stat().st_mode) | (path.stat().st_mode & 0o500) >> 3)


def remove_releases(parent: Path, kept: Collection[Path], *, previous: int) -> None:
    """Removes the releases of an application, except for some and the newest others."""
    with suppress(FileNotFoundError):
        others = [path for path in parent.iterdir() if path.is_dir() and path not in kept]
        by_age = sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_age[previous:]:
            manifest_path(path).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
