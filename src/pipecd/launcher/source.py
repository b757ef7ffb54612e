# SPDX-License-Identifier: Apache-2.0
"""Loads the configuration of piped from the source that the flags name, at every check."""

import asyncio
import base64
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from pipecd.commandline import configsource
from pipecd.commandline.configsource import Read
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.errors import UserMistake

LoadConfig = Callable[[], Awaitable[bytes]]

_GIT = "config-from-git-repo"
# By precedence; the second flag names the secret or the parameter.
_CLOUDS: Mapping[str, tuple[str, Callable[[str], Read]]] = {
    "config-from-gcp-secret": ("gcp-secret-id", configsource.from_gcp_secret),
    "config-from-aws-secret": ("aws-secret-id", configsource.from_aws_secret),
    "config-from-aws-ssm-parameter-store": (
        "aws-ssm-parameter",
        configsource.from_aws_ssm_parameter,
    ),
}


def open_source(
    flags: Mapping[str, str | bool], *, home: Path
) -> AbstractAsyncContextManager[LoadConfig]:
    """Opens the first source that the flags name, in the order of upstream."""
    if path := _text(flags, "config-file"):
        return _read_each_time(configsource.from_file(path))
    if data := _text(flags, "config-data"):
        return _read_each_time(configsource.from_data(data))
    for switch, (name, source) in _CLOUDS.items():
        if flags[_key(switch)]:
            return _read_each_time(source(_required(flags, name, switch)))
    if flags[_key(_GIT)]:
        return _open_git(flags, home)
    names = ", ".join(["config-file", "config-data", *_CLOUDS, _GIT])
    raise UserMistake(f"either [{names}] must be set")


@asynccontextmanager
async def _read_each_time(read: Read) -> AsyncGenerator[LoadConfig]:
    async def load() -> bytes:
        return await asyncio.to_thread(read)

    yield load


@asynccontextmanager
async def _open_git(flags: Mapping[str, str | bool], home: Path) -> AsyncGenerator[LoadConfig]:
    """Loads a file from the head of a branch."""
    remote, branch = _required(flags, "git-repo-url", _GIT), _required(flags, "git-branch", _GIT)
    path = _required(flags, "git-piped-config-file", _GIT)
    repository = Repository("configuration", remote, branch)
    credentials = GitCredentials(ssh_key=await asyncio.to_thread(_ssh_key, flags))
    async with open_mirrors(
        [repository], directory=home / "git", credentials=credentials
    ) as mirrors:
        mirror = mirrors.of(repository.id)

        async def load() -> bytes:
            return await mirror.objects.read_file((await mirror.update()).hash, path)

        yield load


def _ssh_key(flags: Mapping[str, str | bool]) -> bytes:
    file, data = _text(flags, "git-ssh-key-file"), _text(flags, "git-ssh-key-data")
    if file and data:
        raise UserMistake("only one of git-ssh-key-file or git-ssh-key-data can be set")
    try:
        return Path(file).read_bytes() if file else base64.b64decode(data, validate=True)
    except OSError as e:
        raise UserMistake(f"--git-ssh-key-file: cannot read {file}: {e.strerror}") from e
    except ValueError as e:
        raise UserMistake("--git-ssh-key-data is not base64") from e


def _required(flags: Mapping[str, str | bool], name: str, switch: str) -> str:
    if value := _text(flags, name):
        return value
    raise UserMistake(f"{name} must be set to load the configuration with --{switch}")


def _text(flags: Mapping[str, str | bool], name: str) -> str:
    return str(flags[_key(name)])


def _key(name: str) -> str:
    return name.replace("-", "_")
