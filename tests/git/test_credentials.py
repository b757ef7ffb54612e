# SPDX-License-Identifier: Apache-2.0
"""Credentials reach only git and ssh."""

import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from pipecd.git.credentials import GitCredentials, git_environment

KEY = b"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----"


def settings(variables: dict[str, str]) -> dict[str, str]:
    count = int(variables["GIT_CONFIG_COUNT"])
    return {
        variables[f"GIT_CONFIG_KEY_{i}"]: variables[f"GIT_CONFIG_VALUE_{i}"] for i in range(count)
    }


@pytest.mark.parametrize(
    ("credentials", "author"),
    [
        pytest.param(GitCredentials(), ("piped", "pipecd.dev@gmail.com"), id="default"),
        pytest.param(
            GitCredentials(username="ann", email="a@b.c"), ("ann", "a@b.c"), id="configured"
        ),
    ],
)
def test_author_of_the_commits_of_piped(
    credentials: GitCredentials, author: tuple[str, str]
) -> None:
    assert credentials.author == author


def test_a_password_is_bound_to_the_origin_of_the_remote(tmp_path: Path) -> None:
    credentials = GitCredentials(username="ann", password="pw")
    remotes = ["https://x@git.example.com:8443/a/b.git"]
    with git_environment(credentials, directory=tmp_path / "p", remotes=remotes) as environment:
        expected = settings(environment.variables("https://x@git.example.com:8443/a/b.git"))
        over_ssh = settings(environment.variables("git@git.example.com:a/b.git"))
        local = settings(environment.variables())
    header = "http.https://git.example.com:8443/.extraHeader"
    assert expected[header] == "Authorization: Basic YW5uOnB3"
    assert expected["remote.origin.url"] == "https://git.example.com:8443/a/b.git"
    assert not any("extraHeader" in key for key in (*over_ssh, *local))
    assert "pw" not in repr(credentials)


def test_variables_of_a_surrounding_git_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/elsewhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/elsewhere")
    with git_environment(GitCredentials(), directory=tmp_path / "p") as environment:
        variables = environment.variables()
    assert not variables.keys() & {"GIT_DIR", "GIT_INDEX_FILE"}
    assert variables["GIT_TERMINAL_PROMPT"] == "0"


def test_the_git_settings_of_the_user_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own config"
    own.write_text("[http]\n\tproxy = http://proxy.example.com\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(own))
    with git_environment(
        GitCredentials(), directory=tmp_path / "p", safe_directories=[tmp_path / "a b"]
    ) as environment:
        listed = subprocess.run(
            ["git", "config", "--list"],
            env=environment.variables(),
            capture_output=True,
            check=True,
        ).stdout.decode()
    assert "http.proxy=http://proxy.example.com" in listed
    assert f"safe.directory={tmp_path}/a b" in listed


def test_the_ssh_key_file_is_private_and_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host other.example.com\n  Port 2222\n")
    monkeypatch.setenv("HOME", str(home))
    credentials = GitCredentials(ssh_key=KEY, ssh_host="git", ssh_host_name="git.example.com")
    directory = tmp_path / "with space"
    with git_environment(credentials, directory=directory) as environment:
        command = environment.variables()["GIT_SSH_COMMAND"]
        expected = resolved(command, "git")
        other = resolved(command, "other.example.com")
        key = Path(expected["identityfile"])
        assert key.read_bytes() == KEY + b"\n"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert expected["hostname"] == "git.example.com"
    assert expected["user"] == "git"
    assert expected["batchmode"] == "yes"
    assert expected["stricthostkeychecking"] == "accept-new"
    known = expected["userknownhostsfile"]
    assert known.startswith(f"{directory}/known_hosts {home}/.ssh/known_hosts")
    assert other["port"] == "2222"
    assert not key.parent.exists()
    assert (home / ".ssh" / "config").read_text() == "Host other.example.com\n  Port 2222\n"


def test_private_files_of_a_killed_piped_are_removed(tmp_path: Path) -> None:
    old = tmp_path / "p" / "private" / "ssh-key"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"old")
    with git_environment(GitCredentials(), directory=tmp_path / "p"):
        assert not old.exists()


def resolved(command: str, host: str) -> dict[str, str]:
    """The settings that ssh resolves for a host."""
    done = subprocess.run(
        ["sh", "-c", f"{command} -G {host}"], capture_output=True, check=True, text=True
    )
    pairs = (line.partition(" ") for line in done.stdout.splitlines())
    return {key: value for key, _, value in pairs}


def test_removed_and_changed_private_files_are_written_again(tmp_path: Path) -> None:
    directory = tmp_path / "p"
    with git_environment(GitCredentials(ssh_key=KEY), directory=directory) as environment:
        before = {path: path.is_file() and path.read_bytes() for path in directory.rglob("*")}
        assert not environment.restore_files()
        (directory / "private" / "gitconfig").write_text("[[[")
        assert environment.restore_files()
        shutil.rmtree(directory)
        assert environment.restore_files()
        assert not environment.restore_files()
        assert {p: p.is_file() and p.read_bytes() for p in directory.rglob("*")} == before
        assert stat.S_IMODE((directory / "private" / "ssh-key").stat().st_mode) == 0o600
    assert not (directory / "private").exists()
