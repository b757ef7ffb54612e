# SPDX-License-Identifier: Apache-2.0
"""What a Git remote tells: which repository it is, and where its pages are."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pipecd.model.errors import UserMistake

_TRANSPORTS = frozenset({"ssh", "git", "git+ssh", "http", "https", "rsync", "file"})
_SCP = re.compile(r"(?:[a-zA-Z0-9._-]+@)?([a-zA-Z0-9._-]+):(.*)", re.DOTALL)
_BITBUCKET = "bitbucket.org"
# Hosts that offer SSH on another name, for those who may only leave by the port of HTTPS.
_OTHER_NAMES = {
    "ssh.github.com": "github.com",
    "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": _BITBUCKET,
}
# Where Bitbucket Data Center has its repositories for HTTP, which it leaves out for SSH.
_SCM = re.compile(r"(?:.*/)?scm/([^/]+/[^/]+)")


@dataclass(frozen=True)
class _Repository:
    """Where the pages of a repository are."""

    scheme: str
    host: str
    path: str

    @property
    def page(self) -> str:
        return f"{self.scheme}://{self.host}/{self.path}"


@dataclass(frozen=True)
class RemoteIdentity:
    """Which repository a remote means, however it is reached."""

    host: str
    path: str

    def is_same(self, other: "RemoteIdentity") -> bool:
        """Whether both mean the same repository.

        A host without a dot is a nickname that only one network or one SSH configuration
        understands, so that only the path can be compared.
        """
        if not self.path or self.path != other.path:
            return False
        return self.host == other.host or "." not in self.host or "." not in other.host


def remote_identity(remote: str) -> RemoteIdentity:
    """The repository behind a remote; schemes, users, ports, capitals and `.git` do not matter."""
    try:
        parsed = _parse(remote)
    except UserMistake:
        parsed = _Repository("file", "", _trimmed(remote))
    host = re.sub(r":\d*$", "", parsed.host).lower().rstrip(".")
    path = parsed.path.casefold()
    if found := _SCM.fullmatch(path):
        path = found[1]
    return RemoteIdentity(_OTHER_NAMES.get(host, host), path)


def page_url(remote: str) -> str:
    """The page of a repository."""
    return _parse(remote).page


def commit_url(remote: str, commit: str) -> str:
    """The page of one commit."""
    repository = _parse(remote)
    word = "commits" if repository.host == _BITBUCKET else "commit"
    return f"{repository.page}/{word}/{commit}"


def commit_page(remote: str, commit: str) -> str:
    """The page of one commit, or nothing: a directory on this machine has none."""
    try:
        return commit_url(remote, commit)
    except UserMistake:
        return ""


def directory_url(remote: str, branch: str, directory: str) -> str:
    """The page of a directory at the head of a branch."""
    if not branch:
        raise UserMistake(
            f"no branch is known for the repository {remote!r}",
            hint="set repositories[].branch in the piped configuration",
        )
    repository = _parse(remote)
    word = "src" if repository.host == _BITBUCKET else "tree"
    return f"{repository.page}/{word}/{branch}/{directory.strip('/')}"


def _parse(remote: str) -> _Repository:
    scheme, separator, _ = remote.partition("://")
    if separator and scheme.lower() in _TRANSPORTS:
        return _parse_transport(remote)
    if found := _SCP.fullmatch(remote):
        return _Repository("https", found[1], _trimmed(found[2]))
    raise _unreadable(remote)


def _parse_transport(remote: str) -> _Repository:
    try:
        parts = urlsplit(remote)
        # Asking for the port makes a broken one known.
        _ = parts.port
    except ValueError as e:
        raise _unreadable(remote) from e
    # A user name or token in the remote must not end up in a link.
    host = parts.netloc.rpartition("@")[2]
    scheme = "https" if parts.scheme == "ssh" else parts.scheme
    return _Repository(scheme, host, _trimmed(unquote(parts.path)))


def _trimmed(path: str) -> str:
    return path.strip("/").removesuffix(".git")


def _unreadable(remote: str) -> UserMistake:
    return UserMistake(
        f"{remote!r} is not a Git remote",
        hint="write it like https://host/org/repo.git or git@host:org/repo.git",
    )
