# SPDX-License-Identifier: Apache-2.0
"""The Git servers of the tests do what a client of Git expects of them."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from servers.git_http import GitHttp
from servers.git_ssh import GitSsh

Git = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def git(tmp_path: Path) -> Git:
    """Runs git with no configuration but its own; LFS as `git lfs install` sets it up."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(
        "[user]\n\tname = Ann\n\temail = ann@example.com\n"
        '[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n'
        "\tprocess = git-lfs filter-process\n\trequired = true\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"HOME": str(home), "GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_NOSYSTEM": "1"}

    def run(
        *arguments: str | Path, ssh: str = "", cwd: Path = tmp_path
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments],
            cwd=cwd,
            env={**env, **({"GIT_SSH_COMMAND": ssh} if ssh else {})},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture
def repository(tmp_path: Path, git: Git) -> Path:
    """A bare repository with one commit."""
    git("init", "--quiet", "--initial-branch=main", "first")
    (tmp_path / "first" / "README").write_text("hello\n")
    git("add", "README", cwd=tmp_path / "first")
    git("commit", "--quiet", "--message=first", cwd=tmp_path / "first")
    assert git("clone", "--quiet", "--bare", "first", "site.git").returncode == 0
    return tmp_path / "site.git"


def change(git: Git, clone: Path, ssh: str = "") -> None:
    (clone / "new").write_text("new\n")
    git("add", "new", cwd=clone)
    git("commit", "--quiet", "--message=second", cwd=clone)
    pushed = git("push", "--quiet", "origin", "main", ssh=ssh, cwd=clone)
    assert pushed.returncode == 0, pushed.stderr


def test_over_ssh_the_owner_of_the_key_clones_and_pushes(
    git_ssh: GitSsh, git: Git, repository: Path, tmp_path: Path
) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(git_ssh.known_hosts)
    ssh = f"ssh -i {git_ssh.key} -o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes"
    before = git_ssh.connections()
    cloned = git("clone", "--quiet", git_ssh.url(repository), "clone", ssh=ssh)
    assert cloned.returncode == 0, cloned.stderr
    change(git, tmp_path / "clone", ssh)
    assert git("log", "--format=%s", cwd=repository).stdout == "second\nfirst\n"
    assert git_ssh.connections() == before + 2


def test_over_ssh_a_host_key_can_change(git: Git, repository: Path, tmp_path: Path) -> None:
    server = GitSsh()
    try:
        known = tmp_path / "known_hosts"
        known.write_text(server.known_hosts)
        ssh = f"ssh -i {server.key} -o UserKnownHostsFile={known} -o StrictHostKeyChecking=yes"
        server.stop()
        server.change_host_key()
        server.start()
        refused = git("ls-remote", server.url(repository), ssh=ssh)
    finally:
        server.close()
    assert refused.returncode != 0
    assert "Host key verification failed" in refused.stderr


def test_over_http_the_owner_of_the_password_clones_and_pushes(
    git_http: GitHttp, git: Git, repository: Path, tmp_path: Path
) -> None:
    git_http.require("ann", "pw")
    assert "could not read Username" in git("ls-remote", git_http.url("site.git")).stderr
    remote = git_http.url("site.git").replace("//", "//ann:pw@")
    cloned = git("clone", "--quiet", remote, "clone")
    assert cloned.returncode == 0, cloned.stderr
    change(git, tmp_path / "clone")
    assert git("log", "--format=%s", cwd=repository).stdout == "second\nfirst\n"
    assert any("git-receive-pack" in path for path in git_http.requests)


def test_over_https_with_its_certificate(
    git_https: GitHttp, certificate: tuple[str, str], git: Git, repository: Path
) -> None:
    url = git_https.url("site.git")
    assert "certificate" in git("ls-remote", url).stderr
    trusted = git("-c", f"http.sslCAInfo={certificate[0]}", "ls-remote", url)
    assert "refs/heads/main" in trusted.stdout


@pytest.mark.slow
def test_large_files_are_kept_beside_the_repository(
    git_http: GitHttp, git: Git, repository: Path, tmp_path: Path
) -> None:
    clone, content = tmp_path / "clone", b"large" * 1000
    git_http.require("ann", "pw")
    remote = git_http.url("site.git").replace("//", "//ann:pw@")
    git("clone", "--quiet", remote, "clone")
    (clone / ".gitattributes").write_text("*.bin filter=lfs diff=lfs merge=lfs -text\n")
    (clone / "a.bin").write_bytes(content)
    git("add", "--all", cwd=clone)
    change(git, clone)
    pushed = git("lfs", "push", "--all", "origin", "main", cwd=clone)
    assert pushed.returncode == 0, pushed.stderr
    assert list(git_http.large_files.values()) == [content]
    cloned = git("clone", "--quiet", remote, "again")
    assert cloned.returncode == 0, cloned.stderr
    assert (tmp_path / "again" / "a.bin").read_bytes() == content


def test_an_outage_is_an_answer_too(git_http: GitHttp, git: Git, repository: Path) -> None:
    git_http.answers_with = 503
    assert "503" in git("ls-remote", git_http.url("site.git")).stderr
