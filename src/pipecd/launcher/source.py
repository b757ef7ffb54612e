# SPDX-License-Identifier: Apache-2.0
"""Where the configuration of the piped comes from; it is loaded anew at every check."""

import asyncio
import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from pipecd.commandline import configsource
from pipecd.commandline.configsource import Read
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.errors import UserMistake

Load = Callable[[], Awaitable[bytes]]

_GIT = "config-from-git-repo"
# In the order in which they count; the second flag has the name of what is to be read.
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
) -> AbstractAsyncContextManager[Load]:
    """The first source that the flags name, by the order of upstream."""
    if path := _text(flags, "config-file"):
        return _reading(configsource.from_file(path))
    if data := _text(flags, "config-data"):
        return _reading(configsource.from_data(data))
    for switch, (name, source) in _CLOUDS.items():
        if flags[_key(switch)]:
            return _reading(source(_needed(flags, name, switch)))
    if flags[_key(_GIT)]:
        return _following(flags, home)
    known = ", ".join(["config-file", "config-data", *_CLOUDS, _GIT])
    raise UserMistake(f"either [{known}] must be set")


@asynccontextmanager
async def _reading(read: Read) -> AsyncGenerator[Load]:
    async def load() -> bytes:
        return await asyncio.to_thread(read)

    yield load


@asynccontextmanager
async def _following(flags: Mapping[str, str | bool], home: Path) -> AsyncGenerator[Load]:
    """A file at the head of a branch."""
    remote, branch = _needed(flags, "git-repo-url", _GIT), _needed(flags, "git-branch", _GIT)
    path = _needed(flags, "git-piped-config-file", _GIT)
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
    except binascii.Error as e:
        raise UserMistake("--git-ssh-key-data is not base64") from e


def _needed(flags: Mapping[str, str | bool], name: str, switch: str) -> str:
    if value := _text(flags, name):
        return value
    raise UserMistake(f"{name} must be set to load the configuration with --{switch}")


def _text(flags: Mapping[str, str | bool], name: str) -> str:
    return str(flags[_key(name)])


def _key(name: str) -> str:
    return name.replace("-", "_")
