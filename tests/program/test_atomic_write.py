# SPDX-License-Identifier: Apache-2.0
"""Files that are written as a whole."""

import errno
import os
import stat
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipecd.program.atomic_write import write_atomic, write_private


@pytest.fixture
def _an_open_umask() -> Generator[None, None, None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"a much longer one")

    write_atomic(file, b"new")

    assert file.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("_an_open_umask")
def test_a_file_is_as_open_as_the_process_allows(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"")

    assert _mode(tmp_path / "file") == 0o644


@pytest.mark.usefixtures("_an_open_umask")
def test_a_private_file_is_for_its_owner_whatever_was_there_before(tmp_path: Path) -> None:
    file, left = tmp_path / "key", tmp_path / "key.new"
    for path in (file, left):
        path.write_bytes(b"old")
        path.chmod(0o666)
    with left.open("rb") as stranger:
        write_private(file, b"secret")

        assert stranger.read() == b"old"
    assert (file.read_bytes(), _mode(file)) == (b"secret", 0o600)


def test_a_file_that_cannot_be_replaced_leaves_no_scratch(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    (occupied / "within").mkdir(parents=True)

    with pytest.raises(OSError, match="irectory"):
        write_atomic(occupied, b"new")

    assert list(tmp_path.iterdir()) == [occupied]


def test_two_with_a_scratch_file_each_may_write_at_once(tmp_path: Path) -> None:
    file, contents = tmp_path / "file", [bytes([n]) * 10_000 for n in range(8)]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda c: write_atomic(file, c, scratch=tmp_path / f"{c[0]}"), contents))

    assert file.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [file]


def test_the_content_is_on_disk_before_the_name_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced, fsync = tmp_path / "file", list[tuple[str, bool]](), os.fsync

    def watch(opened: int) -> None:
        synced.append((Path(f"/proc/self/fd/{opened}").readlink().name, file.exists()))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", watch)
    write_atomic(file, b"new")

    assert synced == [("file.new", False), (tmp_path.name, True)]


@pytest.mark.parametrize(
    ("number", "is_error"),
    [
        pytest.param(errno.EINVAL, False, id="a file system that cannot sync directories is fine"),
        pytest.param(errno.EIO, True, id="a broken disk is reported"),
    ],
)
def test_a_directory_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_error: bool
) -> None:
    def fail_on_directories(opened: int) -> None:
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail_on_directories)
    try:
        write_atomic(tmp_path / "file", b"new")
    except OSError as e:
        assert (is_error, e.errno) == (True, number)
    else:
        assert not is_error
    assert (tmp_path / "file").read_bytes() == b"new"
