# SPDX-License-Identifier: Apache-2.0
"""Errors of git become errors with a cause and a remedy."""

import pytest

from pipecd.git.errors import DiskFull, explain, is_corrupt
from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake
from pipecd.model.giturl import redact


@pytest.mark.parametrize(
    ("said", "kind", "expected"),
    [
        pytest.param(
            "fatal: couldn't find remote ref refs/heads/live",
            UserMistake,
            "the branch does not exist",
            id="missing branch",
        ),
        pytest.param(
            "git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            Denied,
            "access was denied",
            id="unknown ssh key",
        ),
        pytest.param(
            "error: cannot run ssh: No such file or directory\nfatal: unable to fork",
            UserMistake,
            "the program ssh is not installed",
            id="ssh not installed",
        ),
        pytest.param(
            "Host key verification failed.\nfatal: Could not read from remote repository.",
            Denied,
            "the host key is unknown or has changed",
            id="changed host key",
        ),
        pytest.param(
            "fatal: unable to access 'https://h/': Could not resolve host: h",
            Unavailable,
            "the host name cannot be resolved",
            id="unresolvable host",
        ),
        pytest.param(
            "fatal: unable to access 'https://h/': SSL certificate problem: self-signed",
            Unavailable,
            "certificate of the host is not trusted",
            id="untrusted certificate",
        ),
        pytest.param(
            "remote: Repository not found.\nfatal: repository 'https://h/x/' not found",
            UserMistake,
            "the repository was not found",
            id="missing repository",
        ),
        pytest.param(
            "fatal: write error: No space left on device",
            DiskFull,
            "the disk of piped is full",
            id="a full disk",
        ),
        pytest.param(
            "fatal: unable to access 'https://h:1/': Failed to connect to h port 1 after 0 ms: "
            "Couldn't connect to server",
            Unavailable,
            "the host cannot be reached",
            id="nothing listens",
        ),
        pytest.param(
            "ssh: connect to host h port 1: Connection refused\n"
            "fatal: Could not read from remote repository.",
            Unavailable,
            "the host cannot be reached",
            id="no ssh server",
        ),
        pytest.param(
            "Connection timed out during banner exchange\nConnection to h port 22 timed out",
            Unavailable,
            "the host does not answer",
            id="a host that does not answer",
        ),
        pytest.param("", Unavailable, "git failed: no message", id="no message"),
    ],
)
def test_explain(said: str, kind: type[PipecdError], expected: str) -> None:
    error = explain(said, repository="web", remote="https://ann:t0ken@h/x")
    assert type(error) is kind
    assert expected in error.message
    assert error.message.startswith("repository 'web' (https://h/x): ")


def test_redact_removes_credentials_from_urls() -> None:
    text = "cannot read https://ann:pw@h/x nor ssh://git@h/y"
    assert redact(text) == "cannot read https://h/x nor ssh://h/y"


def test_corruption_is_distinguished_from_a_missing_remote() -> None:
    assert is_corrupt("error: object file ./objects/ab/cd is empty")
    assert not is_corrupt("fatal: 'x' does not appear to be a git repository")
