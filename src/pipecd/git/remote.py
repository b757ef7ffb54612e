# SPDX-License-Identifier: Apache-2.0
"""Remote URLs of repositories: what they name, and what may be shown of them."""

import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from pipecd.model.errors import UserMistake
from pipecd.model.giturl import is_network_remote, redact

_SCP_ORIGIN = re.compile(r"(?:[^/@\s]+@)?[^/:\s]+:(?!//|:)")


@dataclass(frozen=True)
class RemoteUrl:
    """A remote URL without its password, and the credentials that it contained."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)


def local_path(remote: str) -> Path | None:
    """Returns the directory that a remote names, or None when it is on another machine."""
    if remote.startswith("file://"):
        return Path(unquote(urlsplit(remote).path))
    if remote.startswith(("/", "./", "../", "~/")):
        return Path(remote).expanduser()
    return None


def is_http(remote: str) -> bool:
    return remote.lower().startswith(("http://", "https://"))


def http_origin(remote: str) -> str:
    """Scheme, host and port of an HTTP remote, or an empty string for any other."""
    if not is_http(remote):
        return ""
    url = urlsplit(remote)
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def parse_remote(remote: str) -> RemoteUrl:
    """Returns a remote as git understands it from any working directory.

    Git shows the URL of an HTTP remote in arguments of its helpers, so it must not contain the
    password.
    """
    if remote.startswith(("./", "../", "~/")):
        return RemoteUrl(str(Path(remote).expanduser().absolute()))
    if not is_http(remote):
        return RemoteUrl(remote)
    url = urlsplit(remote)
    userinfo, _, host = url.netloc.rpartition("@")
    username, _, password = userinfo.partition(":")
    clean = urlunsplit((url.scheme, host, url.path, url.query, url.fragment))
    return RemoteUrl(clean, unquote(username), unquote(password))


def submodule_remote(parent: str, url: str) -> str:
    """Returns the remote of a submodule, whose URL may be relative to the remote of its parent.

    The content of a repository is not trusted: it must not make piped read local directories or
    run programs that the piped configuration does not name.
    """
    if url.startswith(("./", "../")):
        return _beside(parent, _resolve_relative(parse_remote(parent).url, url))
    if local_path(url) is not None and local_path(parent) is not None:
        return _beside(parent, url)
    if local_path(url) is not None or not is_network_remote(url):
        raise UserMistake(
            f"the URL {redact(url)!r} of a submodule is not allowed",
            hint="use https, ssh, or a path relative to the repository in .gitmodules",
        )
    return url


def _beside(parent: str, remote: str) -> str:
    """Returns a remote; a local one must be a neighbour of its local parent or lie below it."""
    directory, parent_directory = local_path(remote), local_path(parent)
    if directory is None or parent_directory is None:
        return remote
    # The directory of a repository with a working tree is above its `.git`.
    repository = Path(str(parent_directory.resolve()).removesuffix("/.git"))
    if not directory.resolve().is_relative_to(repository.parent):
        raise UserMistake(
            f"the directory {remote!r} of a submodule is not beside that of its repository",
            hint="move it there, or use https or ssh in .gitmodules",
        )
    return remote


def _resolve_relative(parent: str, url: str) -> str:
    parent = parent.rstrip("/")
    origin, path = "", parent
    if "://" in parent:
        split = urlsplit(parent)
        origin, path = f"{split.scheme}://{split.netloc}", split.path
    elif match := _SCP_ORIGIN.match(parent):
        origin, path = match[0], parent[match.end() :]
    joined = posixpath.normpath(posixpath.join(path, url))
    if joined.startswith("..") or (path.startswith("/") and joined == "/"):
        raise UserMistake(
            f"the URL {url!r} of a submodule leads above that of its repository",
            hint="correct the url in .gitmodules",
        )
    return origin + joined


def git_directories(path: Path) -> tuple[Path, ...]:
    """Returns the directories that git may name as the repository at a local path."""
    return tuple(dict.fromkeys((path, path / ".git", git_directory(path))))


def git_directory(path: Path) -> Path:
    """Returns the Git directory of a local repository: a bare one, a work tree, a linked one."""
    dot_git = path / ".git"
    if dot_git.is_file():
        # A linked work tree names its Git directory in a file, which names the shared one.
        linked = path / dot_git.read_text().strip().removeprefix("gitdir: ")
        common = linked / "commondir"
        return linked / common.read_text().strip() if common.is_file() else linked
    if dot_git.is_dir():
        return dot_git
    if not path.is_dir() and path.with_name(f"{path.name}.git").is_dir():
        return path.with_name(f"{path.name}.git")
    return path
