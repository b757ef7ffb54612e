# SPDX-License-Identifier: Apache-2.0
"""The addresses of repositories: what they name, and what may be shown of them."""

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from pipecd.model.errors import UserMistake

_URL_SECRET = re.compile(r"(?<=://)[^/@\s]+@")
_SCP_LIKE = re.compile(r"(?:[^/@\s]+@)?[^/:\s]+:(?!//|:)")
_SERVED = ("http://", "https://", "ssh://", "git+ssh://", "git://")


@dataclass(frozen=True)
class Address:
    """An address without its password, and what was in front of its host."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)


def without_secrets(text: str) -> str:
    """Takes user and password out of every address in a text."""
    return _URL_SECRET.sub("", text)


def local_path(remote: str) -> Path | None:
    """The directory that a remote names, or None when it is on another machine."""
    if remote.startswith("file://"):
        return Path(unquote(urlsplit(remote).path))
    if remote.startswith(("/", "./", "../", "~/")):
        return Path(remote).expanduser()
    return None


def is_http(remote: str) -> bool:
    return remote.startswith(("http://", "https://"))


def http_host(remote: str) -> str:
    """Scheme, host and port of an address over HTTP, or nothing of any other."""
    if not is_http(remote):
        return ""
    url = urlsplit(remote)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def read_address(remote: str) -> Address:
    """An address as git understands it from any working directory.

    Git shows the address of a server over HTTP in its arguments, so a password has to leave it.
    """
    if remote.startswith(("./", "../", "~/")):
        return Address(str(Path(remote).expanduser().absolute()))
    if not is_http(remote):
        return Address(remote)
    url = urlsplit(remote)
    before, _, host = url.netloc.rpartition("@")
    username, _, password = before.partition(":")
    clean = urlunsplit((url.scheme, host, url.path, url.query, url.fragment))
    return Address(clean, unquote(username), unquote(password))


def nested_address(parent: str, url: str) -> str:
    """The address of a submodule, which may be told relative to that of its parent.

    What a repository contains is not trusted: it must not make piped read this machine, or run a
    program, that whoever configured piped did not name.
    """
    if url.startswith(("./", "../")):
        return _relative(read_address(parent).url, url)
    is_local = local_path(url) is not None
    if is_local and local_path(parent) is not None:
        return url
    if is_local or url.startswith("-") or not (url.startswith(_SERVED) or _SCP_LIKE.match(url)):
        raise UserMistake(
            f"the address {without_secrets(url)!r} of a submodule is not allowed",
            hint="use https, ssh, or a path relative to the repository in .gitmodules",
        )
    return url


def _relative(parent: str, url: str) -> str:
    head, path = _split(parent.rstrip("/"))
    joined = posixpath.normpath(posixpath.join(path, url))
    if joined.startswith("..") or (path.startswith("/") and joined == "/"):
        raise UserMistake(
            f"the address {url!r} of a submodule leads above that of its repository",
            hint="correct the url in .gitmodules",
        )
    return head + joined


def _split(remote: str) -> tuple[str, str]:
    """An address up to its path, and the path."""
    if "://" in remote:
        url = urlsplit(remote)
        return f"{url.scheme}://{url.netloc}", url.path
    if match := _SCP_LIKE.match(remote):
        return match[0], remote[match.end() :]
    return "", remote


def git_directories(path: Path) -> tuple[Path, ...]:
    """What git calls a repository at a path: itself and where its data is."""
    return tuple(dict.fromkeys((path, path / ".git", git_directory(path))))


def git_directory(path: Path) -> Path:
    """Where the data of a repository on this machine is."""
    dot_git = path / ".git"
    if dot_git.is_file():
        # A linked working tree names its data in a file, and the shared part from there.
        data = path / dot_git.read_text().strip().removeprefix("gitdir: ")
        common = data / "commondir"
        return data / common.read_text().strip() if common.is_file() else data
    if dot_git.is_dir():
        return dot_git
    if not path.is_dir() and path.with_name(f"{path.name}.git").is_dir():
        return path.with_name(f"{path.name}.git")
    return path


def check_branch_name(branch: str) -> None:
    """Refuses what git would take for an option or a pattern."""
    if not branch or branch.startswith(("-", "/")) or any(c in branch for c in " *?[:^~\\\n\0"):
        raise UserMistake(
            f"{branch!r} is not the name of a branch",
            hint="write it as `git branch` shows it",
        )
