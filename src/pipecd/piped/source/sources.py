# SPDX-License-Identifier: Apache-2.0
"""A commit of an application as a ready directory: checked out, decrypted, attached."""

import asyncio
import hashlib
import posixpath
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pipecd.config.application.filename import filename_of
from pipecd.config.catalog import Catalog
from pipecd.config.read import ApplicationConfig, read_application
from pipecd.config.shared import SHARED_CONFIG
from pipecd.git.mirror import Mirror, Mirrors
from pipecd.git.objects import Blob
from pipecd.model.errors import NotFound, UserMistake
from pipecd.piped.source.needs import Needs, literal_prefix
from pipecd.piped.source.render import Decrypt, inside, render_files
from pipecd.proto.model.common_pb2 import ApplicationGitPath
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.secrets.forms import is_too_short

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_ROOT = "."
# A push may touch hundreds of applications; more programs than this do not make it faster.
_AT_ONCE = 8


@dataclass(frozen=True)
class Source:
    """A private working copy of one commit; whoever asked for it removes it.

    `secrets` are the decrypted values in it, which no log may show.
    """

    directory: Path
    application_directory: Path
    commit: str
    config_filename: str
    config_text: bytes = field(repr=False)
    config: ApplicationConfig = field(repr=False)
    shared_config_directory: Path
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def to_proto(self) -> DeploymentSource:
        """The same as plugins are told."""
        return DeploymentSource(
            application_directory=str(self.application_directory),
            commit_hash=self.commit,
            application_config=self.config_text,
            application_config_filename=self.config_filename,
            shared_config_directory=str(self.shared_config_directory),
        )


@dataclass(frozen=True)
class Need:
    """What an application needs of its repository; the same digest means the same content."""

    digest: str
    is_whole: bool


def config_path(git_path: ApplicationGitPath, config_filename: str = "") -> str:
    """Where the configuration of an application is, from the root of its repository."""
    name = config_filename or filename_of(git_path.config_filename)
    return posixpath.normpath(posixpath.join(git_path.path, name))


class Sources:
    """Makes working copies from the mirrors of this piped."""

    def __init__(
        self, mirrors: Mirrors, catalog: Catalog, *, decrypt: Decrypt | None = None
    ) -> None:
        self._mirrors, self._catalog, self._decrypt = mirrors, catalog, decrypt
        self._needs = Needs()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._warned_of: set[tuple[str, ...]] = set()

    async def at(
        self,
        git_path: ApplicationGitPath,
        commit: str,
        *,
        config_filename: str = "",
        into: Path,
    ) -> Source:
        """A working copy in the directory `into`, of which an older content is removed.

        It has what the application needs of the repository, each file where it belongs. What is
        in the directory of the application may be written to.
        """
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path, config_filename)
        await mirror.clone.ensure_commit(commit)
        text = await _read_config(mirror, path, commit)
        config = await asyncio.to_thread(read_application, text, file=path, catalog=self._catalog)
        await asyncio.to_thread(_make_empty, into)
        try:
            await self._write(mirror, commit, posixpath.normpath(git_path.path), config, into)
            await mirror.checkout.link_history(commit, into)
            return await asyncio.to_thread(
                self._prepare, _Read(commit, path, text, config), into / git_path.path, into
            )
        except BaseException:
            # Half of a working copy is of no use, and may be what filled the disk.
            await asyncio.to_thread(shutil.rmtree, into, ignore_errors=True)
            raise

    async def _write(
        self, mirror: Mirror, commit: str, directory: str, config: ApplicationConfig, into: Path
    ) -> None:
        needed = await self._needs.of(mirror.objects, commit, directory, named=_named(config))
        if needed is None and directory != _ROOT:
            async with self._turns:
                await self._mirrors.shared_checkouts.link(mirror.checkout, commit, into)
            await mirror.checkout.add_submodules_and_lfs(commit, into)
            # What follows is written once more, so that the application owns these files alone.
            needed = (directory,)
        paths = needed or (_ROOT,)
        async with self._turns:
            await mirror.checkout.write_tree(commit, into, paths=paths)
        await mirror.checkout.add_submodules_and_lfs(commit, into, paths=paths)

    async def need(
        self, git_path: ApplicationGitPath, commit: str, config: ApplicationConfig
    ) -> "Need":
        """Which content of a commit an application needs, found out without a working copy."""
        mirror = self._mirrors.of(git_path.repo.id)
        directory = posixpath.normpath(git_path.path)
        paths = await self._needs.of(mirror.objects, commit, directory, named=_named(config))
        found = hashlib.sha256()
        if paths is None:
            for entry in await mirror.objects.entries(f"{commit}:"):
                found.update(f"{entry.mode:o} {entry.id} {entry.name!r}\n".encode())
            return Need(found.hexdigest(), is_whole=True)
        for path in sorted({*paths, config_path(git_path)}):
            if (at := await mirror.objects.entry(commit, path)) is not None:
                found.update(f"{at.mode:o} {at.id} {path!r}\n".encode())
        return Need(found.hexdigest(), is_whole=False)

    async def config(self, git_path: ApplicationGitPath, commit: str) -> ApplicationConfig:
        """The configuration of an application at a commit, without a working copy."""
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path)
        await mirror.clone.ensure_commit(commit)
        text = await mirror.objects.read_file(commit, path)
        return await asyncio.to_thread(read_application, text, file=path, catalog=self._catalog)

    async def changed_files(
        self, git_path: ApplicationGitPath, old: str, new: str
    ) -> tuple[str, ...]:
        """The paths that differ between two commits of an application's repository."""
        mirror = self._mirrors.of(git_path.repo.id)
        await mirror.clone.ensure_commit(old)
        await mirror.clone.ensure_commit(new)
        return await mirror.objects.changed_files(old, new)

    def _prepare(self, read: "_Read", application: Path, root: Path) -> Source:
        application, spec = inside(root, application), read.config.spec
        if spec.encryption is not None and self._decrypt is None:
            self._warn_once("secrets are not decrypted, as piped has no secretManagement", read)
        secrets = render_files(
            root,
            application,
            encryption=spec.encryption,
            attachment=spec.attachment,
            decrypt=self._decrypt,
        )
        for name, value in secrets.items():
            if is_too_short(value):
                self._warn_once("a secret is too short to be hidden", read, secret=name)
        return Source(
            directory=root,
            application_directory=application,
            commit=read.commit,
            config_filename=posixpath.basename(read.path),
            config_text=read.text,
            config=read.config,
            shared_config_directory=root / SHARED_CONFIG,
            secrets=tuple(secrets.values()),
        )

    def _warn_once(self, message: str, read: "_Read", **fields: str) -> None:
        """Says it once about an application, of which working copies are made all the time."""
        told = (message, read.path, *fields.values())
        if told not in self._warned_of:
            self._warned_of.add(told)
            log.warning(message, application=read.path, **fields)


@dataclass(frozen=True)
class _Read:
    """The configuration of an application as it is in Git."""

    commit: str
    path: str
    text: bytes
    config: ApplicationConfig


def _named(config: ApplicationConfig) -> list[str]:
    """The paths that the configuration of an application mentions."""
    patterns = config.spec.trigger.on_commit.paths
    return [prefix for each in patterns if (prefix := literal_prefix(each))]


def _make_empty(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700, parents=True)


async def _read_config(mirror: Mirror, path: str, commit: str) -> bytes:
    place = (await mirror.objects.locate(commit, [path]))[path]
    if isinstance(place, Blob):
        return (await mirror.objects.read([place]))[place.id]
    if place.is_absent:
        raise NotFound(
            f"application config file {path} was not found",
            hint=f"add it to the repository; it is not at commit {commit[:7]}",
        )
    raise UserMistake(f"application config file {path} {place.reason}")
