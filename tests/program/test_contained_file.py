# SPDX-License-Identifier: Apache-2.0
"""Files that a repository names are read from inside of its working copy only."""

import os
import socket
from pathlib import Path

import pytest

from pipecd.model.errors import UserMistake
from pipecd.program.contained_file import contained_path, read_contained, validate_tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("of the host")
    (tmp_path / "beside").mkdir()
    root = tmp_path / "root"
    (root / "app").mkdir(parents=True)
    (root / "app" / "file").write_text("content")
    (root / "app" / "inside").symlink_to("../app/file")
    (root / "app" / "link").symlink_to("../../outside")
    (root / "app" / "absolute").symlink_to("/etc/passwd")
    (root / "app" / "device").symlink_to("/dev/zero")
    (root / "app" / "loop").symlink_to("loop")
    (root / "app" / "up").symlink_to("../..")
    (root / "app" / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "app" / "fifo")
    return root


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("app/file", id="a file"),
        pytest.param("app/../app/./file", id="a file by a detour inside"),
        pytest.param("app/inside", id="a link that stays inside"),
    ],
)
def test_a_file_inside_is_read(root: Path, path: str) -> None:
    assert read_contained(root, path) == b"content"
    assert read_contained(root, root / path, limit=7) == b"content"


def test_the_root_may_be_reached_by_a_link(root: Path) -> None:
    link = root.with_name("link")
    link.symlink_to(root)

    assert read_contained(link, link / "app" / "file") == b"content"
    assert contained_path(link, "app") == root / "app"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        pytest.param("/etc/passwd", "leads outside", id="an absolute path"),
        pytest.param("../outside", "leads outside", id="a path upwards"),
        pytest.param("../beside/../outside", "leads outside", id="a path by a neighbour"),
        pytest.param("app/link", "leads outside", id="a relative link"),
        pytest.param("app/absolute", "leads outside", id="an absolute link"),
        pytest.param("app/up/outside", "leads outside", id="a link to a directory above"),
        pytest.param("app/device", "leads outside", id="a link to a device"),
        pytest.param("app/loop", "not a path", id="a loop of links"),
        pytest.param("app/fi\0le", "not a path", id="a NUL"),
        pytest.param("app/" + "n" * 300, "not a path|cannot be read", id="too long a name"),
        pytest.param("app", "is a directory", id="a directory"),
        pytest.param("app/fifo", "not a regular file", id="a FIFO"),
        pytest.param("app/dangling", "does not exist", id="a link to nothing"),
        pytest.param("app/file/below", "cannot be read", id="a path below a file"),
    ],
)
def test_anything_else_is_refused_without_naming_the_host(
    root: Path, path: str, message: str
) -> None:
    with pytest.raises(UserMistake, match=message) as refused:
        read_contained(root, path)
    assert str(root.parent) not in str(refused.value)


def test_a_file_above_the_limit_is_refused(root: Path) -> None:
    with pytest.raises(UserMistake, match="larger than 6 bytes"):
        read_contained(root, "app/file", limit=6)


def test_a_socket_is_not_opened(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(UserMistake, match="not a regular file"):
            read_contained(tmp_path, "s")


@pytest.mark.parametrize("link", ["link", "absolute", "device", "up", "fifo"])
def test_a_tree_may_not_lead_outside(root: Path, link: str) -> None:
    chart = root / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "templates" / "name").symlink_to(f"../../app/{link}")

    with pytest.raises(UserMistake, match="chart/templates/name") as refused:
        validate_tree(root, "chart")
    assert str(root.parent) not in str(refused.value)


def test_a_tree_behind_a_link_is_validated_too(root: Path) -> None:
    (root / "chart").mkdir()
    (root / "chart" / "shared").symlink_to("../app")

    with pytest.raises(UserMistake, match="app/"):
        validate_tree(root, "chart")


def test_a_tree_may_have_links_that_stay_inside(root: Path) -> None:
    (root / "chart").mkdir()
    (root / "chart" / "self").symlink_to(".")
    (root / "chart" / "file").symlink_to("../app/file")
    (root / "chart" / "nothing").symlink_to("nowhere")

    validate_tree(root, "chart")
