# SPDX-License-Identifier: Apache-2.0
"""Repositories over ssh: one connection for many looks, and hosts that are who they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipecd.git.access import GitAccess
from pipecd.git.remote.branch import OTHER_EVERY
from pipecd.model.errors import Denied, Unavailable
from servers.git_ssh import new_key


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without the keys and the hosts of whoever runs the tests."""
    made = tmp_path / "home"
    (made / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(made))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    yield made


def access(git_ssh: Any) -> GitAccess:
    return GitAccess(ssh_key=git_ssh.private_key.encode())


async def test_many_looks_and_fetches_share_one_connection(
    mirrored: Any, origin: Any, git_ssh: Any
) -> None:
    before = git_ssh.connections()
    async with mirrored(git_ssh.url(origin.path), access=access(git_ssh)) as mirror:
        await mirror.update()
        pushed = origin.commit({"a": "1"})
        assert (await mirror.update()).hash == pushed
        await mirror.update()
        assert mirror.look_every == pytest.approx(OTHER_EVERY, rel=0.11)
    assert git_ssh.connections() - before == 1


async def test_a_change_is_pushed_over_ssh(
    mirrored: Any, origin: Any, git_ssh: Any, change: Any
) -> None:
    origin.git("config", "receive.denyCurrentBranch", "ignore")
    async with mirrored(git_ssh.url(origin.path), access=access(git_ssh)) as mirror:
        commit = await mirror.push(change({"a": b"by piped"}))
    assert origin.git("rev-parse", "main") == commit


async def test_a_host_keeps_the_key_that_it_showed_first(
    mirrored: Any, origin: Any, git_ssh: Any, tmp_path: Path
) -> None:
    url = git_ssh.url(origin.path)
    async with mirrored(url, access=access(git_ssh)) as mirror:
        head = await mirror.update()
    assert git_ssh.known_hosts.split()[2] in (tmp_path / "m" / "known_hosts").read_text()
    git_ssh.change_host_key()
    git_ssh.stop()
    git_ssh.start()
    async with mirrored(url, access=access(git_ssh)) as mirror:
        with pytest.raises(Denied, match="shows another key than before") as caught:
            await mirror.update()
        assert "known_hosts" in caught.value.hint
        # The operator checks the new key and lets the host in.
        (tmp_path / "m" / "known_hosts").write_text(git_ssh.known_hosts)
        assert (await mirror.update()).hash == head.hash


async def test_only_known_hosts_where_the_user_wants_it_so(
    mirrored: Any, origin: Any, git_ssh: Any, home: Path
) -> None:
    (home / ".ssh" / "config").write_text("StrictHostKeyChecking yes\n")
    url = git_ssh.url(origin.path)
    async with mirrored(url, access=access(git_ssh)) as mirror:
        with pytest.raises(Denied, match="the host is unknown"):
            await mirror.update()
        (home / ".ssh" / "known_hosts").write_text(git_ssh.known_hosts)
        assert (await mirror.update()).message == "first"


async def test_the_configuration_names_host_and_ssh_file(
    mirrored: Any, origin: Any, git_ssh: Any, tmp_path: Path
) -> None:
    own = tmp_path / "ssh settings"
    own.write_text(f"Host git.example.com\n  Port {git_ssh.port}\n")
    user = git_ssh.url(origin.path).removeprefix("ssh://").partition("@")[0]
    settings = GitAccess(
        ssh_key=git_ssh.private_key.encode(),
        ssh_host="git.example.com",
        ssh_host_name="127.0.0.1",
        ssh_config_file=str(own),
    )
    async with mirrored(f"{user}@git.example.com:{origin.path}", access=settings) as mirror:
        assert (await mirror.update()).message == "first"


async def test_a_wrong_key_is_told(
    mirrored: Any, origin: Any, git_ssh: Any, tmp_path: Path
) -> None:
    new_key(tmp_path / "other")
    other = GitAccess(ssh_key=(tmp_path / "other").read_bytes())
    async with mirrored(git_ssh.url(origin.path), access=other) as mirror:
        with pytest.raises(Denied, match="access was refused"):
            await mirror.update()


async def test_a_host_that_is_away_is_told_and_comes_back(
    mirrored: Any, origin: Any, git_ssh: Any
) -> None:
    async with mirrored(git_ssh.url(origin.path), access=access(git_ssh)) as mirror:
        head = await mirror.update()
        git_ssh.stop()
        try:
            with pytest.raises(Unavailable):
                await mirror.update()
            assert await mirror.read_file(head.hash, "README") == b"hello\n"
        finally:
            git_ssh.start()
        assert (await mirror.update()).hash == head.hash
