# SPDX-License-Identifier: Apache-2.0
"""The directory of a supervisor belongs to nobody else, and so does what answers in it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecd.plugins.process.client import SupervisorClient
from pipecd.plugins.process.state_file import SupervisorDirectory
from pipecd.sdk import UserMistake

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def link_the_directory(path: Path) -> None:
    path.with_name("elsewhere").mkdir()
    path.symlink_to(path.with_name("elsewhere"))


def link_control(path: Path) -> None:
    path.mkdir()
    path.with_name("elsewhere").mkdir(mode=0o755)
    (path / "control").symlink_to(path.with_name("elsewhere"))


def put_a_file(path: Path) -> None:
    path.mkdir()
    (path / "control").write_text("")


def open_to_everyone(path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)


def own_by_another(path: Path) -> None:
    path.mkdir()
    os.chown(path, NOBODY, -1)


def own_control_by_another(path: Path) -> None:
    (path / "control").mkdir(parents=True)
    os.chown(path / "control", NOBODY, -1)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        pytest.param(link_the_directory, "is a link", id="a link"),
        pytest.param(link_control, "is a link", id="a link to the control directory"),
        pytest.param(put_a_file, "is no directory", id="a file"),
        pytest.param(open_to_everyone, "every user may write", id="a directory for everyone"),
        pytest.param(own_by_another, "of another user", id="one of another user", marks=as_root),
        pytest.param(
            own_control_by_another,
            "of another user",
            id="a control directory of another user",
            marks=as_root,
        ),
    ],
)
async def test_no_supervisor_starts_in(
    prepare: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "target"
    prepare(path)
    before = (tmp_path / "elsewhere").stat().st_mode if (tmp_path / "elsewhere").exists() else 0
    with pytest.raises(UserMistake, match=reason):
        await SupervisorClient.at(path).ensure()
    assert not before or (tmp_path / "elsewhere").stat().st_mode == before
    assert not (path / "control" / "lock").exists()


def test_a_directory_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    SupervisorDirectory(tmp_path / "link" / "target").create()
    assert (tmp_path / "data/target/control").stat().st_mode & 0o777 == 0o700


def test_an_existing_control_directory_is_closed(tmp_path: Path) -> None:
    (tmp_path / "target/control").mkdir(parents=True, mode=0o755)
    SupervisorDirectory(tmp_path / "target").create()
    assert (tmp_path / "target/control").stat().st_mode & 0o777 == 0o700


@as_root
def test_what_another_user_serves_is_no_supervisor(tmp_path: Path) -> None:
    directory = SupervisorDirectory(tmp_path / "target")
    directory.create()
    with directory.listen() as listening:
        directory.connect().close()
        # The kernel notes who makes a socket listen.
        os.seteuid(NOBODY)
        try:
            listening.listen()
        finally:
            os.seteuid(0)
        with pytest.raises(PermissionError, match="the user 65534"):
            directory.connect()
