# SPDX-License-Identifier: Apache-2.0
"""What git says becomes what a person can act on."""

import pytest

from pipecd.git.failure import explain, is_damaged
from pipecd.git.remote.address import without_secrets
from pipecd.model.errors import Denied, PipecdError, Unavailable, UserMistake


@pytest.mark.parametrize(
    ("said", "kind", "told"),
    [
        pytest.param(
            "fatal: couldn't find remote ref refs/heads/live",
            UserMistake,
            "the branch does not exist",
            id="a branch that is not there",
        ),
        pytest.param(
            "git@host: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            Denied,
            "access was refused",
            id="an ssh key that the host does not know",
        ),
        pytest.param(
            "error: cannot run ssh: No such file or directory\nfatal: unable to fork",
            UserMistake,
            "the program ssh is not installed",
            id="a machine without ssh",
        ),
        pytest.param(
            "Host key verification failed.\nfatal: Could not read from remote repository.",
            Denied,
            "shows another key than before",
            id="a host with another key",
        ),
        pytest.param(
            "fatal: unable to access 'https://h/': Could not resolve host: h",
            Unavailable,
            "the name of the host is unknown",
            id="a host without an address",
        ),
        pytest.param(
            "fatal: unable to access 'https://h/': SSL certificate problem: self-signed",
            Unavailable,
            "certificate of the host is not trusted",
            id="a certificate nobody vouches for",
        ),
        pytest.param(
            "remote: Repository not found.\nfatal: repository 'https://h/x/' not found",
            UserMistake,
            "there is no repository",
            id="a repository that is hidden",
        ),
        pytest.param(
            "fatal: write error: No space left on device",
            Unavailable,
            "the disk of piped is full",
            id="a full disk",
        ),
        pytest.param("", Unavailable, "git failed: no message", id="a silent failure"),
    ],
)
def test_meaning(said: str, kind: type[PipecdError], told: str) -> None:
    error = explain(said, repository="web", remote="https://ann:t0ken@h/x")
    assert type(error) is kind
    assert told in error.message
    assert error.message.startswith("repository 'web' (https://h/x): ")


def test_addresses_lose_their_credentials() -> None:
    text = "cannot read https://ann:pw@h/x nor ssh://git@h/y"
    assert without_secrets(text) == "cannot read https://h/x nor ssh://h/y"


def test_damage_is_told_apart_from_a_missing_remote() -> None:
    assert is_damaged("error: object file ./objects/ab/cd is empty")
    assert not is_damaged("fatal: 'x' does not appear to be a git repository")
