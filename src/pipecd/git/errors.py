# SPDX-License-Identifier: Apache-2.0
"""Translates messages of the git program into errors that name the cause and the remedy."""

import re
from dataclasses import dataclass

from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake
from pipecd.model.giturl import redact


class DiskFull(Unavailable):
    """The disk of piped has no space left."""


class Unfinished(Unavailable):
    """Git was killed or stopped, which says nothing about what it was asked."""


@dataclass(frozen=True)
class _Rule:
    pattern: str
    error: type[PipecdError]
    problem: str
    hint: str


# The first match counts, so the precise ones come first.
_RULES = (
    _Rule(
        # Git does not say why a write failed; a full disk is the usual cause.
        r"no space left|disk quota exceeded|out of diskspace|unable to write file",
        DiskFull,
        "the disk of piped is full",
        "free space in its working directory",
    ),
    _Rule(
        r"cannot run \S*ssh|ssh: (?:command )?not found",
        UserMistake,
        "the program ssh is not installed",
        "install it on the machine, or in the image, of piped",
    ),
    _Rule(
        r"couldn't find remote ref",
        UserMistake,
        "the branch does not exist",
        "push a first commit to it, or correct repositories[].branch in the piped configuration",
    ),
    _Rule(
        r"host key verification failed|host identification has changed",
        Denied,
        "the host key is unknown or has changed",
        "verify the host key, then add it to ~/.ssh/known_hosts of the user of piped, and remove"
        " the old one from git/known_hosts in its workspace",
    ),
    _Rule(
        r"permission denied \(|could not read (username|password)|authentication failed"
        r"|invalid (username|credentials)|terminal prompts disabled|error: 40[13]\b"
        r"|access denied|http basic: ",
        Denied,
        "access was denied",
        "check git.username and git.password, or git.sshKeyFile, in the piped configuration",
    ),
    _Rule(
        r"dubious ownership",
        Denied,
        "the repository belongs to another user",
        "change the owner of the directory to the user that runs piped",
    ),
    _Rule(
        r"could not resolve host|name or service not known|temporary failure in name resolution",
        Unavailable,
        "the host name cannot be resolved",
        "check repositories[].remote and the DNS settings of this machine",
    ),
    _Rule(
        r"certificate|ssl_error|ssl routines",
        Unavailable,
        "the certificate of the host is not trusted",
        "add its authority to this machine, or set http.sslCAInfo in the configuration of git",
    ),
    _Rule(
        r"connection refused|couldn't connect to server|could not connect to server"
        r"|unable to connect to|network is unreachable|no route to host",
        Unavailable,
        "the host cannot be reached",
        "check the host and the port of repositories[].remote, and whether a firewall is between",
    ),
    _Rule(
        r"timed out|operation too slow|connection (?:reset|closed)",
        Unavailable,
        "the host does not answer",
        "check the host and the port of repositories[].remote, and whether a firewall is between",
    ),
    _Rule(
        r"does not appear to be a git repository|repository .*not found|no such (file|device)"
        r"|does not exist|error: 404",
        UserMistake,
        "the repository was not found, or piped has no access to it",
        "check repositories[].remote and the credentials in the piped configuration",
    ),
)

_CORRUPT = re.compile(
    r"is corrupt|bad object|object file .* is empty|unable to read|not a git repository: "
    r"|did not send all necessary objects|missing blob|missing tree|bad tree object|invalid sha1"
    r"|bad config |reading the configuration files|reference broken|packed-refs"
    r"|cannot read existing object|unable to unpack \w+ header",
    re.IGNORECASE,
)
_MISSING_TREE = ("reference is not a tree", "failed to unpack tree object")
_MISSING = ("did not match any file", *_MISSING_TREE)


def explain(stderr: str, *, repository: str, remote: str) -> PipecdError:
    """Returns the error for a git command that failed on a repository."""
    name = f"repository {repository!r} ({redact(remote)})"
    output = redact(stderr)
    for rule in _RULES:
        if match := re.search(rule.pattern, output, re.IGNORECASE):
            start = output.rfind("\n", 0, match.start()) + 1
            cause = _without_prefix(output[start:].partition("\n")[0])
            return rule.error(f"{name}: {rule.problem} ({cause})", hint=rule.hint)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # Advice that git prints below its errors says less than the error itself.
    errors = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))]
    cause = _without_prefix((errors or lines or ["no message"])[0])
    return Unavailable(f"{name}: git failed: {cause}")


def is_corrupt(stderr: str) -> bool:
    """Whether a message means that the local clone is corrupt and must be cloned again."""
    return _CORRUPT.search(stderr) is not None


def is_missing(stderr: str) -> bool:
    """Whether a message means that there is no such commit, or no such path in it."""
    return any(text in stderr for text in _MISSING)


def is_missing_tree(stderr: str) -> bool:
    """Whether a message means that there is no such commit, or that its files are lost."""
    return any(text in stderr for text in _MISSING_TREE)


def _without_prefix(line: str) -> str:
    return re.sub(r"^(?:(?:fatal|error|remote): )+", "", line.strip())
