# SPDX-License-Identifier: Apache-2.0
"""The directory of sockets belongs to piped alone."""

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from pipecd.model.errors import UserMistake
from pipecd.piped.pluginhost.sockets import socket_directory


@pytest.fixture
def workspace() -> Generator[Path]:
    """A workspace with a short path."""
    directory = Path(tempfile.mkdtemp(prefix="w-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


def test_it_is_private_and_removed(workspace: Path) -> None:
    with socket_directory(workspace) as directory:
        assert directory == workspace / "sockets"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert not directory.exists()


def test_what_a_killed_piped_left_is_removed(workspace: Path) -> None:
    left = workspace / "sockets"
    left.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(left / "piped.sock"))
    with socket_directory(workspace) as directory:
        assert list(directory.iterdir()) == []
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["a link", "a file", "a directory of another user"])
def test_what_is_not_ours_is_refused(kind: str, workspace: Path, tmp_path: Path) -> None:
    taken = workspace / "sockets"
    (tmp_path / "kept").write_text("")
    match kind:
        case "a link":
            taken.symlink_to(tmp_path)
        case "a file":
            taken.write_text("")
        case _:
            if os.geteuid() != 0:
                pytest.skip("only root can give a directory to another user")
            taken.mkdir(mode=0o777)
            os.chown(taken, 65534, 65534)
    with (
        pytest.raises(UserMistake, match="not a directory of the user that piped runs as"),
        socket_directory(workspace),
    ):
        pass
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize("kind", ["a long path", "writable by others", "no workspace"])
def test_it_is_elsewhere_if_the_workspace_does_not_fit(kind: str, workspace: Path) -> None:
    chosen: Path | None = workspace
    match kind:
        case "a long path":
            chosen = workspace / ("x" * 90)
        case "writable by others":
            workspace.chmod(0o777)
        case _:
            chosen = None
    with socket_directory(chosen) as directory:
        assert not directory.is_relative_to(workspace)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(directory / "plugin-9999.sock"))
    assert not directory.exists()
