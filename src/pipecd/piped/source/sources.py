# SPDX-License-Identifier: Apache-2.0
"""Working copies of an application's commit: checked out, secrets decrypted, files attached."""

import asyncio
import copy
import hashlib
import posixpath
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pipecd.config.application import config_path
from pipecd.config.read import ApplicationConfig
from pipecd.config.shared_config import SHARED_CONFIG
from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.errors import Denied, NotFound, Unavailable, UserMistake
from pipecd.piped.source.configs import ApplicationConfigs, ConfigFile
from pipecd.piped.source.render import TemplateRenderer, render_files
from pipecd.piped.source.required_paths import RequiredPaths, literal_prefix
from pipecd.program.contained_file import contained_path
from pipecd.proto.model.common_pb2 import ApplicationGitPath
from pipecd.proto.plugin.source_pb2 import DeploymentSource
from pipecd.secrets.binding import Binding
from pipecd.secrets.forms import is_too_short

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_ROOT = "."
# A push may touch hundreds of applications; more git processes at once are not faster.
_CONCURRENT_CHECKOUTS = 8
# Cached directories are read without waiting: other tasks run after this many paths.
_PATHS_PER_TURN = 100

Decrypt = Callable[[str, Binding], str]
"""Decrypts a secret in the file that the binding names."""


@dataclass(frozen=True)
class Source:
    """A private working copy of one commit; the caller removes it.

    `secrets` are the decrypted values in it, which must be masked in every log.
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
        """Returns the source as plugins receive it."""
        return DeploymentSource(
            application_directory=str(self.application_directory),
            commit_hash=self.commit,
            application_config=self.config_text,
            application_config_filename=self.config_filename,
            shared_config_directory=str(self.shared_config_directory),
        )


@dataclass(frozen=True)
class SourceDigest:
    """Identifies the content that an application requires of its repository."""

    digest: str
    is_whole_repository: bool


class Sources:
    """Creates working copies from the Git mirrors of this piped."""

    def __init__(
        self,
        mirrors: Mirrors,
        configs: ApplicationConfigs,
        *,
        project: str,
        renderer: TemplateRenderer,
        decrypt: Decrypt | None = None,
    ) -> None:
        self._mirrors, self._configs, self._project = mirrors, configs, project
        self._renderer, self._decrypt = renderer, decrypt
        self._required_paths = RequiredPaths()
        self._checkouts = asyncio.Semaphore(_CONCURRENT_CHECKOUTS)
        self._warned: set[tuple[str, ...]] = set()

    def decrypting_with(self, decrypt: Decrypt | None) -> "Sources":
        """Returns the same sources with another way to decrypt their secrets."""
        other = copy.copy(self)
        other._decrypt = decrypt
        return other

    async def at(
        self,
        git_path: ApplicationGitPath,
        commit: str,
        *,
        config_filename: str = "",
        into: Path,
    ) -> Source:
        """Creates a working copy in the directory `into`, whose previous content is removed.

        It contains the part of the repository that the application requires, at the same paths.
        The directory of the application is writable.
        """
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path, config_filename)
        try:
            await mirror.clone.ensure_commit(commit)
        except (UserMistake, Denied) as e:
            # The commit came from this repository, which may be there again later.
            raise Unavailable(e.message, hint=e.hint) from e
        try:
            file = await self._configs.file(mirror.objects, commit, path)
        except NotFound as e:
            hint = f"add it to the repository; it is not at commit {commit[:7]}"
            raise NotFound(e.message, hint=hint) from e
        directory, config = posixpath.normpath(git_path.path), file.config
        await asyncio.to_thread(_make_empty, into)
        try:
            await self._checkout(mirror, commit, directory, config, into)

            def link_history() -> Path:
                mirror.checkout.link_history(commit, into)
                return contained_path(into, into / git_path.path)

            application = await asyncio.to_thread(link_history)
            binding = Binding(self._project, git_path.repo.id, path)
            return await self._render(file, commit, binding, application, into)
        except BaseException:
            # An incomplete working copy is useless, and may be what filled the disk.
            await asyncio.to_thread(shutil.rmtree, into, ignore_errors=True)
            raise

    async def _checkout(
        self, mirror: Mirror, commit: str, directory: str, config: ApplicationConfig, into: Path
    ) -> None:
        required = await self._required_paths.of(
            mirror.objects, commit, directory, named=_trigger_paths(config)
        )
        if required is None and directory != _ROOT:
            async with self._checkouts:
                await self._mirrors.shared_checkouts.link(mirror.checkout, commit, into)
            await mirror.checkout.add_submodules_and_lfs(commit, into)
            # The application's own files are written once more, so that no other copy shares them.
            paths: Sequence[str] = (directory,)
            async with self._checkouts:
                await mirror.checkout.write_tree(commit, into, paths=paths)
            is_complete = False
        else:
            paths = required or (_ROOT,)
            async with self._checkouts:
                is_complete = await mirror.checkout.write_new(commit, into, paths=paths)
        if not is_complete:
            await mirror.checkout.add_submodules_and_lfs(commit, into, paths=paths)

    async def digest(
        self, git_path: ApplicationGitPath, commit: str, config: ApplicationConfig
    ) -> SourceDigest:
        """Returns the digest of what an application requires, without a working copy."""
        mirror = self._mirrors.of(git_path.repo.id)
        directory = posixpath.normpath(git_path.path)
        paths = await self._required_paths.of(
            mirror.objects, commit, directory, named=_trigger_paths(config)
        )
        digest = hashlib.sha256()
        if paths is None:
            for entry in await mirror.objects.entries(f"{commit}:"):
                digest.update(f"{entry.mode:o} {entry.id} {entry.name!r}\n".encode())
            return SourceDigest(digest.hexdigest(), is_whole_repository=True)
        for count, path in enumerate(sorted({*paths, config_path(git_path)})):
            if count % _PATHS_PER_TURN == 0:
                await asyncio.sleep(0)
            if (at := await mirror.objects.entry(commit, path)) is not None:
                digest.update(f"{at.mode:o} {at.id} {path!r}\n".encode())
        return SourceDigest(digest.hexdigest(), is_whole_repository=False)

    async def config(self, git_path: ApplicationGitPath, commit: str) -> ApplicationConfig:
        """Returns the configuration of an application at a commit, without a working copy."""
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path)
        await mirror.clone.ensure_commit(commit)
        return (await self._configs.file(mirror.objects, commit, path)).config

    async def changed_files(
        self, git_path: ApplicationGitPath, old: str, new: str
    ) -> tuple[str, ...]:
        """Returns the paths that differ between two commits of an application's repository."""
        mirror = self._mirrors.of(git_path.repo.id)
        await mirror.clone.ensure_commit(old)
        await mirror.clone.ensure_commit(new)
        return await mirror.objects.changed_files(old, new)

    async def _render(
        self, file: ConfigFile, commit: str, binding: Binding, application: Path, root: Path
    ) -> Source:
        """Renders secrets and attachments into the checked-out files."""
        config, path, decrypt = file.config, binding.path, self._decrypt
        if config.spec.encryption is not None and decrypt is None:
            self._warn_once("secrets are not decrypted: piped has no secretManagement", file, path)
        secrets = await render_files(
            root,
            application,
            self._renderer,
            encryption=config.spec.encryption,
            attachment=config.spec.attachment,
            decrypt=None if decrypt is None else lambda text: decrypt(text, binding),
        )
        for name, value in secrets.items():
            if is_too_short(value):
                self._warn_once("secret is too short to be masked", file, path, secret=name)
        return Source(
            directory=root,
            application_directory=application,
            commit=commit,
            config_filename=posixpath.basename(path),
            config_text=file.text,
            config=config,
            shared_config_directory=root / SHARED_CONFIG,
            secrets=tuple(secrets.values()),
        )

    def _warn_once(self, message: str, file: ConfigFile, path: str, **fields: str) -> None:
        """Logs a warning once per application, as working copies are created all the time."""
        key = (message, path, *fields.values())
        if key not in self._warned:
            self._warned.add(key)
            name = file.config.spec.name
            log.warning(message, application_name=name, config_file=path, **fields)


def _make_empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True)


def _trigger_paths(config: ApplicationConfig) -> list[str]:
    """Returns the paths that `trigger.onCommit.paths` names."""
    patterns = config.spec.trigger.on_commit.paths
    return [prefix for each in patterns if (prefix := literal_prefix(each))]
