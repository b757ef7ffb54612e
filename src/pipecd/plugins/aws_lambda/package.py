# SPDX-License-Identifier: Apache-2.0
"""Packs code from a Git repository: the same commit gives the same bytes."""

import asyncio
import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pipecd.plugins.aws_lambda.config import CodeSource
from pipecd.sdk import UserMistake
from pipecd.sdk.files import contained_path, read_contained, validate_tree
from pipecd.sdk.git import is_network_remote, redact
from pipecd.sdk.program import Captured, capture

_TIMEOUT = 300.0
# AWS accepts larger packages from S3 only.
_MAX_BYTES = 50 * 1024**2
# All files of a package together.
_MAX_UNPACKED_BYTES = 250 * 1024**2
_TOO_LARGE = "AWS accepts functions of at most 250 MiB; larger ones need an image"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_GIT_DIRECTORY = ".git"
_EXECUTABLE, _PLAIN = 0o100755, 0o100644


async def pack(source: CodeSource, git: Callable[[str], Mapping[str, str]]) -> bytes:
    """Returns a zip file of a directory at a ref; `git` is `Host.git_variables`."""
    if not is_network_remote(source.git):
        raise UserMistake(
            f"the source {redact(source.git)} cannot be read: it is no https or ssh URL",
            hint="correct source.git of the function",
        )
    with tempfile.TemporaryDirectory(prefix="pipecd-lambda-") as temporary:
        clone = Path(temporary) / "clone"
        await _clone(source, clone, git(source.git))
        return await asyncio.to_thread(zip_directory, clone, source.path)


async def _clone(source: CodeSource, clone: Path, environment: Mapping[str, str]) -> None:
    async def run(*arguments: str) -> Captured:
        return await capture(
            ["git", *arguments], cwd=clone.parent, env=environment, at_most=_TIMEOUT
        )

    cloned = await run("clone", "--quiet", "--no-checkout", "--", source.git, str(clone))
    if cloned.code != 0:
        cause = cloned.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise UserMistake(
            f"the source {redact(source.git)} cannot be read: {redact(cause)}",
            hint="correct source.git of the function, or the key of piped for it",
        )
    for revision in (source.ref, f"origin/{source.ref}"):
        verify = ("rev-parse", "--verify", "--quiet", "--end-of-options")
        found = await run("-C", str(clone), *verify, f"{revision}^{{commit}}")
        if found.code == 0:
            commit = found.stdout.decode().strip()
            checked_out = await run("-C", str(clone), "checkout", "--quiet", commit, "--")
            if checked_out.code != 0:
                cause = checked_out.stderr.decode(errors="replace").strip()[-300:]
                raise UserMistake(f"{source.ref} cannot be checked out: {redact(cause)}")
            return
    raise UserMistake(
        f"the source {redact(source.git)} has no branch, tag or commit {source.ref}",
        hint="correct source.ref of the function",
    )


def zip_directory(clone: Path, path: str) -> bytes:
    """Returns a zip file of a directory of a clone.

    As with upstream, names begin with that of the directory; the handler is below it. The root of a
    repository has no name.
    """
    try:
        directory = contained_path(clone, path or ".")
        validate_tree(clone, directory)
    except (UserMistake, OSError) as e:
        raise UserMistake(f"source.path {path} cannot be packed: {e}") from e
    if not directory.is_dir():
        raise UserMistake(f"source.path {path} is no directory of the repository")
    root = clone.resolve()
    prefix = Path(directory.name) if directory != root else Path()
    buffer, rest = io.BytesIO(), _MAX_UNPACKED_BYTES
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for file in sorted(_files(directory)):
            name = prefix / file.relative_to(directory)
            entry = zipfile.ZipInfo(name.as_posix(), _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # The same on every machine that packs.
            entry.create_system = 3
            is_executable = os.access(file, os.X_OK)
            entry.external_attr = (_EXECUTABLE if is_executable else _PLAIN) << 16
            try:
                packed = read_contained(root, file, limit=rest)
            except UserMistake as e:
                raise UserMistake(f"{name} cannot be packed: {e.message}", hint=_TOO_LARGE) from e
            archive.writestr(entry, packed)
            rest -= len(packed)
    content = buffer.getvalue()
    if len(content) > _MAX_BYTES:
        raise UserMistake(
            f"the package of source.path {path} has {len(content) // 1024**2} MiB, and AWS accepts "
            f"at most {_MAX_BYTES // 1024**2} MiB",
            hint="put it into S3, and name it with s3Bucket and s3Key",
        )
    return content


def _files(directory: Path) -> list[Path]:
    found: list[Path] = []
    for parent, directories, files in os.walk(directory):
        if _GIT_DIRECTORY in directories:
            directories.remove(_GIT_DIRECTORY)
        found += (Path(parent, name) for name in files if name != _GIT_DIRECTORY)
    return found
