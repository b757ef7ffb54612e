# SPDX-License-Identifier: Apache-2.0
"""What the messages of the git program mean, and what a person can do about them."""

import re
from dataclasses import dataclass

from pipecd.git.remote.address import without_secrets
from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake


@dataclass(frozen=True)
class _Meaning:
    sign: re.Pattern[str]
    kind: type[PipecdError]
    problem: str
    hint: str


def _meaning(sign: str, kind: type[PipecdError], problem: str, hint: str) -> _Meaning:
    return _Meaning(re.compile(sign, re.IGNORECASE), kind, problem, hint)


# The first that fits is taken, so the precise ones come first.
_MEANINGS = (
    _meaning(
        # Git does not say why a write failed; a disk without room is the usual reason.
        r"no space left|disk quota exceeded|out of diskspace|unable to write file",
        Unavailable,
        "the disk of piped is full",
        "make room in its working directory",
    ),
    _meaning(
        r"cannot run \S*ssh|ssh: (?:command )?not found",
        UserMistake,
        "the program ssh is not installed",
        "install it on the machine, or in the image, of piped",
    ),
    _meaning(
        r"couldn't find remote ref",
        UserMistake,
        "the branch does not exist",
        "push a first commit to it, or correct repositories[].branch in the piped configuration",
    ),
    _meaning(
        r"host key verification failed|host identification has changed",
        Denied,
        "the host is unknown, or shows another key than before",
        "check the key of the host, then put it into ~/.ssh/known_hosts of the user of piped, and"
        " take the old one out of git/known_hosts in its workspace",
    ),
    _meaning(
        r"permission denied \(|could not read (username|password)|authentication failed"
        r"|invalid (username|credentials)|terminal prompts disabled|error: 40[13]\b"
        r"|access denied|http basic: ",
        Denied,
        "access was refused",
        "check git.username and git.password, or git.sshKeyFile, in the piped configuration",
    ),
    _meaning(
        r"dubious ownership",
        Denied,
        "the repository belongs to another user",
        "give the directory to the user that runs piped",
    ),
    _meaning(
        r"could not resolve host|name or service not known|temporary failure in name resolution",
        Unavailable,
        "the name of the host is unknown",
        "check the address and the name service of this machine",
    ),
    _meaning(
        r"certificate|ssl_error|ssl routines",
        Unavailable,
        "the certificate of the host is not trusted",
        "add its authority to this machine, or set http.sslCAInfo in the configuration of git",
    ),
    _meaning(
        r"does not appear to be a git repository|repository .*not found|no such (file|device)"
        r"|does not exist|error: 404",
        UserMistake,
        "there is no repository, or it is hidden from piped",
        "check repositories[].remote and the credentials in the piped configuration",
    ),
)

_DAMAGE = re.compile(
    r"is corrupt|bad object|object file .* is empty|unable to read|not a git repository: "
    r"|did not send all necessary objects|missing blob|missing tree|bad tree object|invalid sha1",
    re.IGNORECASE,
)


_ABSENCE = ("did not match any file", "reference is not a tree", "failed to unpack tree object")


def explain(stderr: str, *, repository: str, remote: str) -> PipecdError:
    """The error a person gets for a git command that failed on a repository."""
    where = f"repository {repository!r} ({without_secrets(remote)})"
    shown = without_secrets(stderr)
    for meaning in _MEANINGS:
        if match := meaning.sign.search(shown):
            said = _stripped(_line_at(shown, match.start()))
            return meaning.kind(f"{where}: {meaning.problem} ({said})", hint=meaning.hint)
    return Unavailable(f"{where}: git failed: {_telling_line(shown)}")


def is_damaged(stderr: str) -> bool:
    """Whether a message means that the local copy is broken and has to be made anew."""
    return _DAMAGE.search(stderr) is not None


def is_missing(stderr: str) -> bool:
    """Whether a message means that there is no such commit, or no such path in it."""
    return any(sign in stderr for sign in _ABSENCE)


def _line_at(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    return text[start:].partition("\n")[0]


def _telling_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Advice that git prints below its errors says less than the error itself.
    told = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ssh:"))]
    return _stripped((told or lines or ["no message"])[0])


def _stripped(line: str) -> str:
    return re.sub(r"^(?:(?:fatal|error|remote): )+", "", line.strip())
