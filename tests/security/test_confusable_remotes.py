# SPDX-License-Identifier: Apache-2.0
"""A remote that looks like another one gets neither its credentials nor its deployments."""

import base64
from pathlib import Path

import pytest

from pipecd.git.credentials import GitCredentials, git_environment
from pipecd.git.remote import parse_remote
from pipecd.model.giturl import page_url, redact, remote_identity

# The repository that a piped watches, and another that pushed: it must wake nothing.
ATTACKS: dict[str, tuple[str, str]] = {
    "a long s, which folds to s": ("https://github.com/acme/site", "https://github.com/acme/\N{LATIN SMALL LETTER LONG S}ite"),
    "a Kelvin sign, which folds to k": (
        "https://github.com/acme/kiosk",
        "https://github.com/acme/\N{KELVIN SIGN}iosk",
    ),
    "a sharp s, which folds to ss": (
        "https://github.com/acme/class",
        "https://github.com/acme/claß",
    ),
    "a ligature, which folds to two letters": (
        "https://github.com/acme/files",
        "https://github.com/acme/\N{LATIN SMALL LIGATURE FI}les",
    ),
    "a Kelvin sign in the host": (
        "https://git.kiosk.example/acme/site",
        "https://git.\N{KELVIN SIGN}iosk.example/acme/site",
    ),
    "a Cyrillic letter": ("https://github.com/acme/site", "https://github.com/\N{CYRILLIC SMALL LETTER A}cme/site"),
    "a letter without width": (
        "https://github.com/acme/site",
        "https://github.com/acme/si\N{ZERO WIDTH SPACE}te",
    ),
    "an encoded slash": ("https://git.example.com/acme/site", "https://git.example.com/acme%2Fsite"),
    "a group named scm on a public host": (
        "git@gitlab.com:acme/site.git",
        "https://gitlab.com/evil/scm/acme/site.git",
    ),
    "a group named scm below others": (
        "git@git.corp.example:acme/site.git",
        "https://git.corp.example/evil/sub/scm/acme/site.git",
    ),
    "a repository of a host with the path of a local directory": (
        "file:///srv/git/site.git",
        "https://github.com/srv/git/site",
    ),
    "a local directory with the path of a repository": (
        "https://github.com/srv/git/site",
        "/srv/git/site.git",
    ),
    "another repository by its query": (
        "https://git.example.com/view?repository=site",
        "https://git.example.com/view?repository=evil",
    ),
    "a suffix twice": ("https://github.com/acme/site", "https://github.com/acme/site.git.git"),
    "the host as user of another host": (
        "https://github.com/acme/site",
        "https://github.com@evil.example/acme/site",
    ),
    "the host as user, behind a backslash": (
        "https://github.com/acme/site",
        "https://github.com\\@evil.example/acme/site",
    ),
    "the host as part of another": (
        "https://github.com/acme/site",
        "https://github.com.evil.example/acme/site",
    ),
    "steps upwards": ("https://github.com/acme/site", "https://github.com/acme/x/../site"),
    "two dots behind the host": (
        "https://github.com/acme/site",
        "https://github.com../acme/site",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_another_repository_is_not_the_watched_one(attack: tuple[str, str]) -> None:
    watched, pushed = map(remote_identity, attack)
    assert not watched.is_same(pushed)
    assert not pushed.is_same(watched)


@pytest.mark.parametrize(
    "pushed",
    [
        "git@github.com:acme/site.git",
        "https://GitHub.com/Acme/Site/",
        "https://ann:token@github.com./acme/site.git",
        "ssh://git@ssh.github.com:443/acme/site",
        "https://github.com/acme/%73ite",
    ],
)
def test_the_same_repository_in_another_spelling_is_the_watched_one(pushed: str) -> None:
    assert remote_identity("https://github.com/acme/site").is_same(remote_identity(pushed))


CREDENTIALS = GitCredentials(username="ann", password="pw-of-piped")
CONFIGURED = "https://git.example.com:8443/acme/site.git"
HEADER = "http.https://git.example.com:8443/.extraHeader"

# The URLs of submodules, which whoever may push chooses.
ATTACKS_ON_CREDENTIALS: dict[str, str] = {
    "another host": "https://evil.example/x.git",
    "another port": "https://git.example.com/x.git",
    "another port of the host": "https://git.example.com:9443/x.git",
    "without TLS": "http://git.example.com:8443/x.git",
    "the origin as user": "https://git.example.com:8443@evil.example/x.git",
    "the origin as user, behind a backslash": "https://git.example.com:8443\\@evil.example/x.git",
    "the origin as a fragment": "https://evil.example#@git.example.com:8443/x.git",
    "the origin as a query": "https://evil.example?@git.example.com:8443/x.git",
    "the origin as a path": "https://evil.example/@git.example.com:8443/x.git",
    "the origin as a part": "https://git.example.com:8443.evil.example/x.git",
    "a dot behind the host": "https://git.example.com.:8443/x.git",
    "a capital scheme of another host": "HTTPS://evil.example/x.git",
    "a letter that looks alike": "https://g\N{LATIN SMALL LETTER DOTLESS I}t.example.com:8443/x.git",
    "an encoded dot": "https://git%2eexample.com:8443/x.git",
}


@pytest.mark.parametrize("attack", ATTACKS_ON_CREDENTIALS.values(), ids=ATTACKS_ON_CREDENTIALS)
def test_the_password_of_a_host_goes_to_no_other(attack: str, tmp_path: Path) -> None:
    with git_environment(CREDENTIALS, directory=tmp_path / "p", remotes=[CONFIGURED]) as git:
        variables = git.variables(attack)
    assert base64.b64encode(b"ann:pw-of-piped").decode() not in str(variables)
    assert HEADER not in variables.values()


def test_the_password_goes_to_every_repository_of_its_host(tmp_path: Path) -> None:
    with git_environment(CREDENTIALS, directory=tmp_path / "p", remotes=[CONFIGURED]) as git:
        for remote in (CONFIGURED, "https://git.example.com:8443/acme/other.git"):
            variables = git.variables(remote)
            assert HEADER in variables.values()
            assert base64.b64encode(b"ann:pw-of-piped").decode() in str(variables)


# Remotes with a password that must not be shown to other users, nor in logs and links.
ATTACKS_ON_PASSWORDS: dict[str, str] = {
    "a capital scheme": "HTTPS://ann:s3cret@git.example.com/acme/site.git",
    "mixed capitals": "Https://ann:s3cret@git.example.com/acme/site.git",
    "an at sign in the password": "https://ann:x@s3cret@git.example.com/acme/site.git",
    "no user": "https://:s3cret@git.example.com/acme/site.git",
}


@pytest.mark.parametrize("attack", ATTACKS_ON_PASSWORDS.values(), ids=ATTACKS_ON_PASSWORDS)
def test_the_password_of_a_remote_is_not_shown(attack: str) -> None:
    assert "s3cret" not in parse_remote(attack).url, "other users see the arguments of git"
    assert "s3cret" in parse_remote(attack).password
    assert "s3cret" not in redact(f"fatal: cannot access {attack}: refused")
    assert "s3cret" not in page_url(attack)
