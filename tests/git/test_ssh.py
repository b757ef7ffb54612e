# SPDX-License-Identifier: Apache-2.0
"""Repositories over SSH: polls share one connection, and host keys are verified."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.branch_poller import LS_REMOTE_POLL_INTERVAL
from pipecd.git.credentials import GitCredentials
from pipecd.git.push import push
from pipecd.model.errors import Denied, Unavailable
from servers.git_ssh import GitSsh, new_key
from servers.origin import OpenMirror, Origin


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory without SSH keys and known hosts."""
    created = tmp_path / "home"
    (created / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(created))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield created


def credentials(git_ssh: GitSsh) -> GitCredentials:
    return GitCredentials(ssh_key=git_ssh.private_key.encode())


async def test_polls_and_fetches_share_one_connection(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh
) -> None:
    before = git_ssh.connections()
    async with open_mirror(git_ssh.url(origin.path), credentials=credentials(git_ssh)) as mirror:
        await mirror.update()
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed
        await mirror.update()
        assert mirror.poll_interval == pytest.approx(LS_REMOTE_POLL_INTERVAL, rel=0.11)
    assert git_ssh.connections() - before == 1


async def test_a_change_is_pushed_over_ssh(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh, change: Any
) -> None:
    origin.git("config", "receive.denyCurrentBranch", "ignore")
    async with open_mirror(git_ssh.url(origin.path), credentials=credentials(git_ssh)) as mirror:
        commit = await push(mirror.clone, change({"a": b"by piped"}))
    assert origin.git("rev-parse", "main") == commit


async def test_the_first_host_key_is_trusted_and_a_changed_one_refused(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh, tmp_path: Path
) -> None:
    url = git_ssh.url(origin.path)
    async with open_mirror(url, credentials=credentials(git_ssh)) as mirror:
        head = await mirror.update()
    assert git_ssh.known_hosts.split()[2] in (tmp_path / "m" / "known_hosts").read_text()
    git_ssh.change_host_key()
    git_ssh.stop()
    git_ssh.start()
    async with open_mirror(url, credentials=credentials(git_ssh)) as mirror:
        with pytest.raises(Denied, match="the host key is unknown or has changed") as caught:
            await mirror.update()
        assert "known_hosts" in caught.value.hint
        # The operator checks the new key and lets the host in.
        (tmp_path / "m" / "known_hosts").write_text(git_ssh.known_hosts)
        assert (await mirror.update()).hash == head.hash


async def test_strict_host_key_checking_of_the_user_applies(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh, home: Path
) -> None:
    (home / ".ssh" / "config").write_text("StrictHostKeyChecking yes\n")
    url = git_ssh.url(origin.path)
    async with open_mirror(url, credentials=credentials(git_ssh)) as mirror:
        with pytest.raises(Denied, match="the host key is unknown"):
            await mirror.update()
        (home / ".ssh" / "known_hosts").write_text(git_ssh.known_hosts)
        assert (await mirror.update()).message == "first"


async def test_host_and_ssh_config_file_of_the_configuration_apply(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh, tmp_path: Path
) -> None:
    own = tmp_path / "ssh settings"
    own.write_text(f"Host git.example.com\n  Port {git_ssh.port}\n")
    user = git_ssh.url(origin.path).removeprefix("ssh://").partition("@")[0]
    settings = GitCredentials(
        ssh_key=git_ssh.private_key.encode(),
        ssh_host="git.example.com",
        ssh_host_name="127.0.0.1",
        ssh_config_file=str(own),
    )
    async with open_mirror(f"{user}@git.example.com:{origin.path}", credentials=settings) as mirror:
        assert (await mirror.update()).message == "first"


async def test_a_wrong_key_is_reported(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh, tmp_path: Path
) -> None:
    new_key(tmp_path / "other")
    other = GitCredentials(ssh_key=(tmp_path / "other").read_bytes())
    async with open_mirror(git_ssh.url(origin.path), credentials=other) as mirror:
        with pytest.raises(Denied, match="access was denied"):
            await mirror.update()


async def test_an_unavailable_host_is_reported_and_recovers(
    open_mirror: OpenMirror, origin: Origin, git_ssh: GitSsh
) -> None:
    async with open_mirror(git_ssh.url(origin.path), credentials=credentials(git_ssh)) as mirror:
        head = await mirror.update()
        git_ssh.stop()
        try:
            with pytest.raises(Unavailable):
                await mirror.update()
            assert await mirror.objects.read_file(head.hash, "README") == b"hello\n"
        finally:
            git_ssh.start()
        assert (await mirror.update()).hash == head.hash
