# SPDX-License-Identifier: Apache-2.0
"""A commit of an application as a ready directory: checked out, decrypted, attached."""

import asyncio
import posixpath
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pipecd.config.catalog import Catalog
from pipecd.config.read import ApplicationConfig, read_application
from pipecd.git.mirrors import Mirrors
from pipecd.model.errors import NotFound, UserMistake
from pipecd.piped.source.render import Decrypt, inside, render_files
from pipecd.proto.model.common_pb2 import ApplicationGitPath
from pipecd.proto.plugin.source_pb2 import DeploymentSource

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# What an application without a file name has meant since before it could have one.
LEGACY_CONFIG = ".pipe.yaml"
SHARED_CONFIG = ".pipe"


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


def config_path(git_path: ApplicationGitPath, config_filename: str = "") -> str:
    """Where the configuration of an application is, from the root of its repository."""
    name = config_filename or git_path.config_filename or LEGACY_CONFIG
    return posixpath.normpath(posixpath.join(git_path.path, name))


class Sources:
    """Makes working copies from the mirrors of this piped."""

    def __init__(
        self, mirrors: Mirrors, catalog: Catalog, *, decrypt: Decrypt | None = None
    ) -> None:
        self._mirrors, self._catalog, self._decrypt = mirrors, catalog, decrypt

    async def at(
        self,
        git_path: ApplicationGitPath,
        commit: str,
        *,
        config_filename: str = "",
        into: Path,
    ) -> Source:
        """A working copy in the directory `into`, of which an older content is removed."""
        mirror = self._mirrors.of(git_path.repo.id)
        await mirror.ensure(commit)
        await asyncio.to_thread(_make_empty, into)
        await mirror.materialise(commit, into)
        return await asyncio.to_thread(self._prepare, git_path, commit, config_filename, into)

    async def config(self, git_path: ApplicationGitPath, commit: str) -> ApplicationConfig:
        """The configuration of an application at a commit, without a working copy."""
        mirror, path = self._mirrors.of(git_path.repo.id), config_path(git_path)
        await mirror.ensure(commit)
        text = await mirror.read_file(commit, path)
        return await asyncio.to_thread(read_application, text, file=path, catalog=self._catalog)

    async def changed_files(
        self, git_path: ApplicationGitPath, old: str, new: str
    ) -> tuple[str, ...]:
        """The paths that differ between two commits of an application's repository."""
        mirror = self._mirrors.of(git_path.repo.id)
        await mirror.ensure(old)
        await mirror.ensure(new)
        return await mirror.changed_files(old, new)

    def _prepare(
        self, git_path: ApplicationGitPath, commit: str, config_filename: str, root: Path
    ) -> Source:
        path = config_path(git_path, config_filename)
        text = _read_config(root, path, commit)
        config = read_application(text, file=path, catalog=self._catalog)
        application = inside(root, root / git_path.path)
        if config.spec.encryption is not None and self._decrypt is None:
            log.warning(
                "secrets are not decrypted, as piped has no secretManagement", application=path
            )
        secrets = render_files(
            root,
            application,
            encryption=config.spec.encryption,
            attachment=config.spec.attachment,
            decrypt=self._decrypt,
        )
        return Source(
            directory=root,
            application_directory=application,
            commit=commit,
            config_filename=posixpath.basename(path),
            config_text=text,
            config=config,
            shared_config_directory=root / SHARED_CONFIG,
            secrets=secrets,
        )


def _make_empty(directory: Path) -> None:
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(mode=0o700, parents=True)


def _read_config(root: Path, path: str, commit: str) -> bytes:
    try:
        return inside(root, root / path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as e:
        raise NotFound(
            f"application config file {path} was not found",
            hint=f"add it to the repository; it is not at commit {commit[:7]}",
        ) from e
    except UserMistake as e:
        raise UserMistake(
            f"application config file {path} leads outside of the repository",
            hint="replace the symbolic link by a file",
        ) from e
    except (OSError, ValueError) as e:
        raise UserMistake(f"application config file {path} cannot be read: {e}") from e
