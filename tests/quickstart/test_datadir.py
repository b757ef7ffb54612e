# SPDX-License-Identifier: Apache-2.0
"""The directory of a quickstart keeps its secrets and keeps others out."""

import stat
from pathlib import Path

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_control_plane, read_piped
from pipecd.model.errors import UserMistake
from pipecd.quickstart.datadir import DataDir, Identity, locked
from pipecd.quickstart.files import write_control_plane, write_piped
from pipecd.quickstart.sample import make_repository


def test_what_was_made_up_is_found_again_and_private(tmp_path: Path) -> None:
    with locked(tmp_path / "a" / "b") as data:
        identity, key = data.identity(), data.key()
    with locked(tmp_path / "a" / "b") as data:
        assert (data.identity(), data.key()) == (identity, key)
        for file in (data.path / "identity.json", data.encryption_key):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_holder_is_refused_with_the_first_one_named(tmp_path: Path) -> None:
    with (
        locked(tmp_path),
        pytest.raises(UserMistake, match=r"process \d+.*--data-dir"),
        locked(tmp_path),
    ):
        pass


def test_a_damaged_identity_is_told(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_text("{")
    with pytest.raises(UserMistake, match="damaged"):
        DataDir(tmp_path).identity()


def test_the_files_it_writes_can_be_read_whatever_the_path(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "it's: #1")
    data.path.mkdir()
    spec = read_control_plane(write_control_plane(data, address="http://127.0.0.1:1"), file="cp")
    assert spec.datastore.config.path == str(data.path / "pipecd.db")
    text = write_piped(data, Identity("p", "piped", "key"), host="127.0.0.1", port=1)
    piped = read_piped(text, file="piped", catalog=load_catalog()).spec
    assert piped.repositories[0].remote == data.repository.as_uri()


async def test_the_sample_repository_is_made_once(tmp_path: Path) -> None:
    await make_repository(tmp_path)
    before = (tmp_path / ".git" / "refs" / "heads" / "main").read_text()
    await make_repository(tmp_path)
    assert (tmp_path / ".git" / "refs" / "heads" / "main").read_text() == before
