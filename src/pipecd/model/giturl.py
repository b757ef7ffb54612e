# SPDX-License-Identifier: Apache-2.0
"""The identity and the web pages of a repository, derived from the URL of a Git remote."""

import re
import string
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pipecd.model.errors import UserMistake

_TRANSPORTS = frozenset({"ssh", "git", "git+ssh", "http", "https", "rsync", "file"})
_NETWORK_SCHEMES = ("http://", "https://", "ssh://", "git+ssh://", "git://")
# Two colons separate a transport that starts a program from its address, as in `ext::sh -c …`.
_SCP_LIKE = re.compile(r"(?:[^/@\s]+@)?[^/:\s]+:(?!//|:)")
# A password may contain an at sign: the user ends at the last one before the path.
_URL_USERINFO = re.compile(r"(?<=://)[^/\s]+@")
_SCP = re.compile(r"(?:[a-zA-Z0-9._-]+@)?([a-zA-Z0-9._-]+):(.*)", re.DOTALL)
_DIRECTORIES = ("/", "./", "../", "~/")
_BITBUCKET = "bitbucket.org"
# Alternative hosts for SSH over the port of HTTPS.
_OTHER_NAMES = {
    "ssh.github.com": "github.com",
    "altssh.gitlab.com": "gitlab.com",
    "altssh.bitbucket.org": _BITBUCKET,
}
# The path of repositories of Bitbucket Data Center by HTTP, perhaps below a context path; by SSH it
# has no `scm`. On other hosts such a path is a repository in a group of that name.
_SCM = re.compile(r"(?:[^/]+/)?scm/([^/]+/[^/]+)")
_WITHOUT_SCM = frozenset({"github.com", "gitlab.com", _BITBUCKET})
# Other letters have lower forms that are ASCII or look like it, such as the Kelvin sign.
_TO_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True)
class _Repository:
    """The location of the web pages of a repository."""

    scheme: str
    host: str
    path: str

    @property
    def page(self) -> str:
        return f"{self.scheme}://{self.host}/{self.path}"


@dataclass(frozen=True)
class RemoteIdentity:
    """The repository of a remote, regardless of the protocol."""

    host: str
    path: str

    def is_same(self, other: "RemoteIdentity") -> bool:
        """Whether both are the same repository.

        A host without a dot is an alias of a local network or SSH configuration, so that only the
        path can be compared. A local directory is no repository of a host.
        """
        if not self.path or self.path != other.path:
            return False
        if not self.host or not other.host:
            return self.host == other.host
        return self.host == other.host or "." not in self.host or "." not in other.host


def remote_identity(remote: str) -> RemoteIdentity:
    """Returns the repository of a remote; ignores scheme, user, port, case and `.git`."""
    try:
        parsed = _parse(remote)
    except UserMistake:
        parsed = _Repository("file", "", _trimmed(remote))
    host = re.sub(r":\d*$", "", parsed.host).translate(_TO_LOWER).removesuffix(".")
    path = parsed.path.translate(_TO_LOWER)
    if host not in _WITHOUT_SCM and (match := _SCM.fullmatch(path)):
        path = match[1]
    return RemoteIdentity(_OTHER_NAMES.get(host, host), path)


def is_network_remote(remote: str) -> bool:
    """Whether a remote is on another machine, by a transport that starts no program of ours.

    The content of a repository may name such a remote only. A host that begins with a dash would
    be an option of ssh.
    """
    if not (remote.startswith(_NETWORK_SCHEMES) or _SCP_LIKE.match(remote)):
        return False
    is_option = remote.rpartition("://")[2].rpartition("@")[2].startswith("-")
    return not (is_option or remote.startswith("-"))


def redact(text: str) -> str:
    """Removes user and password from every URL in a text."""
    return _URL_USERINFO.sub("", text)


def page_url(remote: str) -> str:
    """Returns the page of a repository."""
    return _parse(remote).page


def commit_url(remote: str, commit: str) -> str:
    """Returns the page of a commit."""
    repository = _parse(remote)
    word = "commits" if repository.host == _BITBUCKET else "commit"
    return f"{repository.page}/{word}/{commit}"


def commit_page(remote: str, commit: str) -> str:
    """Returns the page of a commit, or nothing for a local directory, which has none."""
    try:
        return commit_url(remote, commit)
    except UserMistake:
        return ""


def directory_url(remote: str, branch: str, directory: str) -> str:
    """Returns the page of a directory at the head of a branch.

    A repository that is a directory of the machine of piped has no pages.
    """
    if not branch:
        raise UserMistake(
            f"no branch is known for the repository {remote!r}",
            hint="set repositories[].branch in the piped configuration",
        )
    if remote.startswith(_DIRECTORIES):
        return ""
    repository = _parse(remote)
    word = "src" if repository.host == _BITBUCKET else "tree"
    return f"{repository.page}/{word}/{branch}/{directory.strip('/')}"


def _parse(remote: str) -> _Repository:
    scheme, separator, _ = remote.partition("://")
    if separator and scheme.lower() in _TRANSPORTS:
        try:
            parts = urlsplit(remote)
            # Reading an invalid port raises ValueError.
            _ = parts.port
        except ValueError as e:
            raise _invalid(remote) from e
        # A user name or token in the remote must not end up in a link.
        host = parts.netloc.rpartition("@")[2]
        scheme = "https" if parts.scheme == "ssh" else parts.scheme
        path = unquote(parts.path)
        if path.count("/") != parts.path.count("/"):
            # An encoded slash is part of a name and separates nothing.
            path = parts.path
        path = _trimmed(path)
        return _Repository(scheme, host, f"{path}?{parts.query}" if parts.query else path)
    if match := _SCP.fullmatch(remote):
        return _Repository("https", match[1], _trimmed(match[2]))
    raise _invalid(remote)


def _trimmed(path: str) -> str:
    return path.strip("/").removesuffix(".git")


def _invalid(remote: str) -> UserMistake:
    return UserMistake(
        f"{remote!r} is not a Git remote",
        hint="write it like https://host/org/repo.git or git@host:org/repo.git",
    )
